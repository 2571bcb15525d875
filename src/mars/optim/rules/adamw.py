"""AdamW's direction."""

import math

import torch
from torch import Tensor

from mars.optim.buckets import Tensors
from mars.optim.routing import Recipe


def adamw_direction(tensors: Tensors, gradients: list[Tensor], recipe: Recipe) -> list[Tensor]:
    """Return m^ / (sqrt(v^) + eps) after v <- beta2 * v + (1 - beta2) * gradients^2.

    With amsgrad, v^ is built from the largest v so far.
    """
    second_moments = tensors.exp_avg_sqs
    torch._foreach_mul_(second_moments, recipe.beta2)
    torch._foreach_addcmul_(second_moments, gradients, gradients, value=1 - recipe.beta2)
    if recipe.amsgrad:
        torch._foreach_maximum_(tensors.max_exp_avg_sqs, second_moments)
        second_moments = tensors.max_exp_avg_sqs

    # m^ / (sqrt(v^) + eps) = m / ((sqrt(v) / sqrt(1 - beta2^t) + eps) * (1 - beta1^t))
    # The division is not in place: autograd keeps the square roots.
    roots = torch._foreach_sqrt(second_moments)
    denominators = list(
        torch._foreach_div(roots, bias_correction(recipe.beta2, recipe.step) ** 0.5)
    )
    torch._foreach_add_(denominators, recipe.eps)
    torch._foreach_mul_(denominators, bias_correction(recipe.beta1, recipe.step))
    return list(torch._foreach_div(tensors.exp_avgs, denominators))


def torch_step_(
    tensors: Tensors, gradients: list[Tensor], recipe: Recipe, *, divisor: Tensor | None = None
) -> None:
    """Write m, v and x in one pass by torch's own fused AdamW, on the gradients given.

    With the corrected second moment MARS-AdamW is AdamW on the pseudo-gradient c~, so torch's
    kernel can do all that follows the correction; and the lean form is AdamW on the gradient, once
    `previous.take_back_` has prepared the momentum. The gradients are first divided, in place, by
    ``divisor``, which is a float32.
    """
    step = step_tensor(recipe, like=tensors.params[0])
    torch._fused_adamw_(
        tensors.params,
        gradients,
        tensors.exp_avgs,
        tensors.exp_avg_sqs,
        tensors.max_exp_avg_sqs,
        [step] * len(tensors.params),
        lr=recipe.lr,
        beta1=recipe.beta1,
        beta2=recipe.beta2,
        weight_decay=recipe.weight_decay,
        eps=recipe.eps,
        amsgrad=recipe.amsgrad,
        maximize=False,
        grad_scale=divisor,
    )
    # torch's kernel leaves out what tells autograd that a tensor it has saved is not the same.
    torch.autograd.graph.increment_version(tensors.params)


def step_tensor(recipe: Recipe, *, like: Tensor) -> Tensor:
    """Return the step as torch's kernel wants it."""
    if isinstance(recipe.step, Tensor):
        return recipe.step
    return torch.tensor(recipe.step, dtype=torch.float32, device=like.device)


def torch_step_applies(tensors: Tensors, recipe: Recipe) -> bool:
    """Whether `torch_step_` does what this recipe asks for.

    Both moments must be built from one gradient, in the parameter's own dtype, and unobserved by
    autograd; a learning rate or step on another device would have to be read back. The kernel walks
    memory, so all tensors must be contiguous: it does not look at strides.
    """
    param = tensors.params[0]
    one_gradient = recipe.second_moment == "corrected" or recipe.previous == "folded"
    numbers = [n for n in (recipe.lr, recipe.step) if isinstance(n, Tensor)]
    return (
        one_gradient
        and param.dtype == tensors.exp_avgs[0].dtype
        and param.device.type in ("cpu", "cuda")
        and all(n.device == param.device for n in numbers)
        and all(t.is_contiguous() for t in (*tensors.written(), *tensors.grads))
        and not torch.is_grad_enabled()
    )


def bias_correction(beta: float, step: float | Tensor) -> float | Tensor:
    """Return 1 - beta^step, on the device if that is where the step is."""
    if beta == 0:
        return 1.0
    if isinstance(step, Tensor):
        # In float32, 1 - beta^step loses digits at small steps; expm1 keeps them.
        return -torch.expm1(step * math.log(beta))
    return 1.0 - float(beta**step)

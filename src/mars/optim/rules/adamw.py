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


def bias_correction(beta: float, step: float | Tensor) -> float | Tensor:
    """Return 1 - beta^step, on the device if that is where the step is."""
    if beta == 0:
        return 1.0
    if isinstance(step, Tensor):
        # In float32, 1 - beta^step loses digits at small steps; expm1 keeps them.
        return -torch.expm1(step * math.log(beta))
    return 1.0 - float(beta**step)

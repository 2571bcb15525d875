"""The idea of MARS on one page: the corrected gradient c_t, its clip, and the momentum.

    c_t = g_t + k (g_t - g_prev)           k = gamma * beta1 / (1 - beta1)
    c~_t = c_t / max(1, |c_t| / max_norm)
    m_t = beta1 * m_{t-1} + (1 - beta1) * c~_t

Where g_prev comes from is the business of `previous`; what m_t becomes, of the rules.
"""

import torch
from torch import Tensor


def corrected_gradients(
    grads: list[Tensor], last_grads: list[Tensor], *, weight: float
) -> list[Tensor]:
    """Return c = g + k (g - g_prev) with k = ``weight``, leaving both inputs untouched."""
    # lerp(a, b, w) = a + w (b - a), so lerp(g_prev, g, 1 + k) is c in one pass over memory.
    return list(torch._foreach_lerp(last_grads, grads, 1 + weight))


def norms(slices: list[Tensor], *, slices_per_tensor: list[int]) -> Tensor:
    """Return the 2-norm of each tensor as a vector, from consecutive slices of the tensors."""
    of_slices = torch.stack(slices)
    if len(slices) == len(slices_per_tensor):
        return of_slices
    # The norm of a tensor is the norm of its slices' norms.
    by_tensor = torch.split(of_slices, slices_per_tensor)
    return torch.stack([torch.linalg.vector_norm(own) for own in by_tensor])


def clip_scales(norm: Tensor, *, max_norm: float) -> Tensor:
    """Return what to multiply by so that no norm exceeds ``max_norm``: exactly 1 below it."""
    return max_norm / norm.clamp(min=max_norm)


def accumulate_(exp_avgs: list[Tensor], corrected: list[Tensor], *, beta1: float) -> None:
    """Turn m_{t-1} into m_t = beta1 * m_{t-1} + (1 - beta1) * c~_t."""
    torch._foreach_mul_(exp_avgs, beta1)
    torch._foreach_add_(exp_avgs, corrected, alpha=1 - beta1)


def accumulate_lean_(
    exp_avgs: list[Tensor], grads: list[Tensor], *, beta1: float, gamma: float
) -> None:
    """Turn w_{t-1} into the unclipped m_t without a previous gradient.

    With (1 - beta1) k = gamma * beta1, the momentum of the unclipped correction is

        m_t = beta1 * (m_{t-1} - gamma_t * g_{t-1}) + (1 - beta1 + gamma_t * beta1) * g_t

    so the buffer carries w_{t-1} = m_{t-1} - gamma_t * g_{t-1} from step to step;
    `previous.hand_over_` makes it from m_t once the rule has used m_t. At gamma = 0 this is the
    plain exponential moving average.
    """
    torch._foreach_mul_(exp_avgs, beta1)
    torch._foreach_add_(exp_avgs, grads, alpha=1 - beta1 + gamma * beta1)

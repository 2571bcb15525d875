"""Where the previous gradient comes from.

Approx mode keeps a copy of its own in ``last_grad``: gradients may be zeroed, accumulated into,
rebucketed or freed by anyone in between. The lean form keeps none: what the next step needs of
g_t is taken out of the momentum before it is put away.
"""

import torch
from torch import Tensor


def remember_(last_grads: list[Tensor], grads: list[Tensor]) -> None:
    """Keep a copy of the gradients, in the buffer's dtype, for the next step's correction."""
    copy_(last_grads, grads)


def copy_(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source into its target, converting dtypes."""
    if torch.is_grad_enabled():  # autograd does not know _foreach_copy_
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
    else:
        torch._foreach_copy_(targets, sources)


def hand_over_(exp_avgs: list[Tensor], grads: list[Tensor], *, next_gamma: float) -> None:
    """Turn m_t into w_t = m_t - gamma_{t+1} * g_t, all that the next lean step needs."""
    if next_gamma:
        torch._foreach_sub_(exp_avgs, grads, alpha=next_gamma)


def take_back_(exp_avgs: list[Tensor], grads: list[Tensor], *, gamma: float) -> None:
    """Turn w_{t-1} into w_{t-1} + gamma_t * g_t, whose plain moving average with g_t is m_t."""
    if gamma:
        torch._foreach_add_(exp_avgs, grads, alpha=gamma)

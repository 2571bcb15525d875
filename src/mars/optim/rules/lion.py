"""Lion's direction."""

import torch
from torch import Tensor

from mars.optim.buckets import Tensors
from mars.optim.routing import Recipe


def lion_direction(tensors: Tensors, gradients: list[Tensor], recipe: Recipe) -> list[Tensor]:
    """Return sign(m)."""
    return list(torch._foreach_sign(tensors.exp_avgs))

"""MARS-M's direction: Muon's, scaled to the root mean square of an AdamW update."""

import math

from torch import Tensor

from mars.optim.buckets import Tensors
from mars.optim.orthogonalize import matrix_view, orthogonalize
from mars.optim.routing import Recipe


def muon_direction(tensors: Tensors, gradients: list[Tensor], recipe: Recipe) -> list[Tensor]:
    """Return NewtonSchulz(m) * 0.2 * sqrt(max(rows, cols))."""
    rows, cols = matrix_view(tensors.exp_avgs[0]).shape
    scale = 0.2 * math.sqrt(max(rows, cols))
    return orthogonalize(tensors.exp_avgs, scale=scale, dtype=recipe.orthogonalize_dtype)

"""MARS-Shampoo's direction: Shampoo without accumulation is an orthogonalised momentum."""

import math

from torch import Tensor

from mars.optim.buckets import Tensors
from mars.optim.orthogonalize import matrix_view, orthogonalize
from mars.optim.routing import Recipe


def shampoo_direction(tensors: Tensors, gradients: list[Tensor], recipe: Recipe) -> list[Tensor]:
    """Return NewtonSchulz(m / (1 - beta1)) * sqrt(max(1, rows / cols)).

    Newton-Schulz normalises its input, so the division by 1 - beta1 has no effect and is left out.
    """
    rows, cols = matrix_view(tensors.exp_avgs[0]).shape
    scale = math.sqrt(max(1.0, rows / cols))
    return orthogonalize(tensors.exp_avgs, scale=scale, dtype=recipe.orthogonalize_dtype)

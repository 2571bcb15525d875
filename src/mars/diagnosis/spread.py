"""Mean and variance of gradients that come one at a time, in memory for one of them."""

import torch
from torch import Tensor


class Spread:
    """The mean of lists of tensors, and each one's contribution to their sum of squares.

    The contribution of the n-th, which has weight w and raises the sum of weights to W, is
    w (1 - w / W) |x_n - mean before|^2. They add up to the weighted sum of squares around the
    final mean. With equal weights they are the squared lengths of Helmert contrasts: uncorrelated
    for independent x, and each has the variance of x as its expectation, so their own spread says
    how well the variance is known without any x being kept.
    """

    def __init__(self) -> None:
        self.mean: list[Tensor] = []
        self.weight = 0.0
        self._contributions: list[Tensor] = []

    def add(self, tensors: list[Tensor], *, weight: float = 1.0) -> None:
        """Take the next one."""
        self.weight += weight
        if not self.mean:
            self.mean = [tensor.clone() for tensor in tensors]
            return
        share = weight / self.weight
        differences = torch._foreach_sub(tensors, self.mean)
        torch._foreach_add_(self.mean, differences, alpha=share)
        self._contributions.append(weight * (1 - share) * squared_norms(list(differences)))

    def contributions(self, places: list[int]) -> list[float]:
        """Return the contributions of some of the tensors; the first one has none."""
        return [float(each[places].sum()) for each in self._contributions]

    def variance(self, places: list[int]) -> float:
        """Return the unbiased variance of one of weight 1, summed over some of the tensors."""
        values = self.contributions(places)
        return sum(values) / len(values)


def squared_norms(tensors: list[Tensor]) -> Tensor:
    """Return the squared 2-norm of each tensor, in float64 on the host."""
    found = [torch.linalg.vector_norm(t, dtype=torch.float64) for t in tensors]
    return torch.stack(found).cpu().square()

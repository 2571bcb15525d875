"""What becomes of a stream of gradients: the plain average, and MARS's momentum in each mode.

    ema      u_t = beta1 u_{t-1} + (1 - beta1) g_t
    approx   m_t likewise of c_t = g_t + k (g_t - g_{t-1}), g_{t-1} being of the last sample
    exact    m_t likewise of c_t = g_t + k (g_t - g'_t), g'_t being of this sample at x_{t-1}

and the two again with c_t clipped as the optimizer clips it. The arithmetic is `mars.optim`'s.
"""

import inspect
from dataclasses import dataclass

import torch
from torch import Tensor

from mars.config import schema
from mars.optim.correction import accumulate_, clip_scales, corrected_gradients
from mars.optim.optimizer import MARS
from mars.optim.options import Clip

GRADIENT, EMA, APPROX, EXACT = "gradient", "ema", "approx", "exact"
_CLIPPED = "_clipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """The numbers of MARS's correction."""

    beta1: float
    gamma: float
    clip: Clip | None
    max_norm: float

    @property
    def weight(self) -> float:
        """k = gamma * beta1 / (1 - beta1), the weight of the gradient difference."""
        return self.gamma * self.beta1 / (1 - self.beta1)

    @property
    def estimators(self) -> tuple[str, ...]:
        """The names of what is estimated."""
        plain = (GRADIENT, EMA, APPROX, EXACT)
        return plain if self.clip is None else (*plain, APPROX + _CLIPPED, EXACT + _CLIPPED)

    def start_weight(self, estimator: str, *, steps: int) -> float:
        """Return what is left of the start in an estimator after some steps, unclipped."""
        if estimator == GRADIENT:
            return 0.0
        # m = (1 - gamma) u + gamma g in approx mode: docs/algorithm.md.
        share = 1 - self.gamma if estimator.startswith(APPROX) else 1.0
        return float(share * self.beta1**steps)


def correction_of(optimizer: schema.Optimizer) -> Correction:
    """Return the correction of a run: its own, or MARS's defaults if it has none."""
    default = {
        name: parameter.default for name, parameter in inspect.signature(MARS).parameters.items()
    }
    is_mars = optimizer.name.startswith("mars-")
    betas = optimizer.betas if is_mars and optimizer.betas else default["betas"]
    clip = default["clip"] if optimizer.clip is None else optimizer.clip
    return Correction(
        beta1=betas[0],
        gamma=default["gamma"] if optimizer.gamma is None else optimizer.gamma,
        clip=None if clip == "none" else clip,
        max_norm=default["max_norm"] if optimizer.max_norm is None else optimizer.max_norm,
    )


class Momenta:
    """Every estimator of one stream, from a common start.

    The start is what all of them would be had every gradient before been ``start``: a constant
    gradient is its own average and needs no correction.
    """

    def __init__(self, start: list[Tensor], correction: Correction) -> None:
        self._correction = correction
        self._gradient = start
        names = [name for name in correction.estimators if name != GRADIENT]
        self._averages = {
            name: [t.clone() for t in (self._clipped(start) if _CLIPPED in name else start)]
            for name in names
        }

    def update(self, gradient: list[Tensor], at_previous: list[Tensor]) -> None:
        """Take the next gradient, and that of the same sample at the previous point."""
        self._accumulate_(EMA, gradient)
        for mode, previous in ((APPROX, self._gradient), (EXACT, at_previous)):
            corrected = corrected_gradients(gradient, previous, weight=self._correction.weight)
            self._accumulate_(mode, corrected)
            if self._correction.clip is not None:
                self._accumulate_(mode + _CLIPPED, self._clipped(corrected))
        self._gradient = gradient

    def estimates(self) -> dict[str, list[Tensor]]:
        """Return what each estimator is now."""
        return {GRADIENT: self._gradient, **self._averages}

    def _accumulate_(self, name: str, gradient: list[Tensor]) -> None:
        accumulate_(self._averages[name], gradient, beta1=self._correction.beta1)

    def _clipped(self, corrected: list[Tensor]) -> list[Tensor]:
        found = torch.stack([torch.linalg.vector_norm(c) for c in corrected])
        if self._correction.clip == "global":
            found = torch.linalg.vector_norm(found).expand(len(corrected))
        scales = clip_scales(found, max_norm=self._correction.max_norm)
        return list(torch._foreach_mul(corrected, list(scales.unbind())))

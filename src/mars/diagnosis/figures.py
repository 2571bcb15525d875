"""Bias and variance of each estimator, from what the streams have left.

All are in units of |G|^2, the squared norm of the large batch's gradient. The squared distance of
the streams' mean from G contains the chance of both; what is known of it is subtracted:

    bias = |mean - G|^2 - variance / streams - noise of G - w^2 noise of the start

with w the weight that the start of the window still has. By chance it may be negative.
"""

from dataclasses import dataclass

from torch import Tensor

from mars.diagnosis.estimators import EMA
from mars.diagnosis.intervals import mean_interval, ratio, ratio_interval
from mars.diagnosis.measure import Measured
from mars.diagnosis.spread import Spread, squared_norms


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is known of one estimator; what is None cannot be known from so few streams."""

    bias: float
    bias_noise: float
    """What chance adds to the squared distance from G, and is subtracted."""
    variance: float
    variance_low: float | None
    variance_high: float | None
    error: float
    """Bias and variance together: the expected squared distance from the true gradient."""
    ratio_to_ema: float
    """Variance over that of the plain average."""
    ratio_low: float | None
    ratio_high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """The figures of one step by kind of layers, and by estimator."""

    step: int
    history: int
    start_weight: float
    """What is left in an average of what came before the window."""
    kinds: dict[str, dict[str, Figures]]
    squared_norm: dict[str, float]
    """|G|^2."""
    squared_norm_noise: dict[str, float]
    """The part of it that is the sampling noise of G."""


def step_figures(measured: Measured, places: dict[str, list[int]]) -> StepFigures:
    """Return the figures of each kind of layers, given the places of its parameters."""
    squares = squared_norms(measured.truth.mean)
    return StepFigures(
        step=measured.step,
        history=measured.length,
        start_weight=measured.correction.start_weight(EMA, steps=measured.length),
        kinds={
            kind: {name: _figures(measured, name, own) for name in measured.streams}
            for kind, own in places.items()
        },
        squared_norm={kind: float(squares[own].sum()) for kind, own in places.items()},
        squared_norm_noise={kind: _noise(measured.truth, own) for kind, own in places.items()},
    )


def _figures(measured: Measured, name: str, places: list[int]) -> Figures:
    spread, truth = measured.streams[name], measured.truth
    unit = _squared([truth.mean[place] for place in places])
    contributions = spread.contributions(places)
    variance = mean_interval(contributions)
    against_ema = ratio_interval(contributions, measured.streams[EMA].contributions(places))
    start_weight = measured.correction.start_weight(name, steps=measured.length)
    noise = variance.value / spread.weight + _noise(truth, places)
    noise += start_weight**2 * _noise(measured.start, places)
    bias = _squared([spread.mean[place] - truth.mean[place] for place in places]) - noise
    return Figures(
        bias=ratio(bias, unit),
        bias_noise=ratio(noise, unit),
        variance=ratio(variance.value, unit),
        variance_low=None if variance.low is None else ratio(variance.low, unit),
        variance_high=None if variance.high is None else ratio(variance.high, unit),
        error=ratio(bias + variance.value, unit),
        ratio_to_ema=against_ema.value,
        ratio_low=against_ema.low,
        ratio_high=against_ema.high,
    )


def _noise(spread: Spread, places: list[int]) -> float:
    """Return the variance of a mean."""
    return spread.variance(places) / spread.weight


def _squared(tensors: list[Tensor]) -> float:
    return float(squared_norms(tensors).sum())

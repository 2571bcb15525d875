"""One line for each arm: the mean of its seeds at its best rate, and how far they spread."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from mars.report.downsample import smoothed
from mars.report.results import AtRate
from mars.report.summary import ArmSummary
from mars.report.trials import Curve, Floats, Trial

_WINDOWS = 40  # a training loss is averaged over this part of a run


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """The mean over seeds; the band from the lowest to the highest seed, if there are several."""

    steps: Floats
    counts: Floats
    seconds: Floats
    losses: Floats
    low: Floats | None
    high: Floats | None
    seeds: int

    def along(self, axis: str) -> Floats:
        """Return the positions on an axis: ``steps``, ``counts`` or ``seconds``."""
        return {"steps": self.steps, "counts": self.counts, "seconds": self.seconds}[axis]


def shown_rate(summary: ArmSummary) -> AtRate | None:
    """Return the best rate of an arm, or while none is known the one that is lowest so far."""
    rates = [rate for rate in summary.arm.rates if rate.trials]
    if summary.best_lr is not None:
        return next(rate for rate in rates if rate.lr == summary.best_lr)
    return min(rates, key=_lowest_so_far, default=None)


def validation_line(summary: ArmSummary) -> Line | None:
    """Return an arm's validation loss."""
    return _mean([trial.validation for trial in shown_trials(summary)])


def training_line(summary: ArmSummary) -> Line | None:
    """Return an arm's training loss, smoothed, without a band: its noise is the batches'."""
    line = _mean([trial.train for trial in shown_trials(summary)])
    if line is None:
        return None
    losses = smoothed(line.losses, width=window(len(line.losses)))
    return Line(line.steps, line.counts, line.seconds, losses, None, None, line.seeds)


def measure_line(summary: ArmSummary, name: str) -> tuple[Floats, Floats] | None:
    """Return steps and smoothed mean over seeds of another training measure, if there is any."""
    found = [trial.measures[name] for trial in shown_trials(summary) if name in trial.measures]
    # A measure has no place in tokens and seconds of its own.
    line = _mean([Curve(steps, steps, steps, values) for steps, values in found])
    if line is None:
        return None
    return line.steps, smoothed(line.losses, width=window(len(line.losses)))


def window(records: int) -> int:
    """Return how many records a smoothed value is the mean of, at most."""
    return 2 * (records // (2 * _WINDOWS)) + 1


def shown_trials(summary: ArmSummary) -> tuple[Trial, ...]:
    """Return the trials whose mean is drawn: without those that diverged, if any did not."""
    rate = shown_rate(summary)
    trials = rate.trials if rate else ()
    return tuple(trial for trial in trials if not trial.is_diverged) or trials


def _mean(curves: Sequence[Curve]) -> Line | None:
    """Return the mean of curves at the steps that all of them have."""
    curves = [curve for curve in curves if len(curve.steps)]
    if not curves:
        return None
    steps = reduce(np.intersect1d, [curve.steps for curve in curves])
    rows = [np.isin(curve.steps, steps) for curve in curves]
    counts, seconds, losses = (
        np.array([getattr(curve, name)[row] for curve, row in zip(curves, rows, strict=True)])
        for name in ("counts", "seconds", "losses")
    )
    several = len(curves) > 1
    return Line(
        steps,
        counts.mean(axis=0),
        seconds.mean(axis=0),
        losses.mean(axis=0),
        losses.min(axis=0) if several else None,
        losses.max(axis=0) if several else None,
        len(curves),
    )


def _lowest_so_far(rate: AtRate) -> float:
    losses = [trial.validation.losses for trial in rate.trials]
    last = [loss[np.isfinite(loss)][-1] for loss in losses if np.isfinite(loss).any()]
    return float(np.mean(last)) if last else np.inf

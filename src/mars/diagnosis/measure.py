"""Streams of independent micro-batches along the path to a step, and the gradient at its end."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from mars.config.errors import FailedError
from mars.diagnosis.estimators import Correction, Momenta
from mars.diagnosis.gradients import Gradients, Point, Tick, make_seed
from mars.diagnosis.plan import Plan
from mars.diagnosis.spread import Spread, squared_norms

# What a seed is for: one of the numbers it is made from.
_TRUTH, _START, _STREAM = range(1, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was found at one step."""

    step: int
    length: int
    """Steps from the start of the window to the step."""
    correction: Correction
    start: Spread
    """The gradient that every estimator started from, a sequence having weight 1."""
    truth: Spread
    """The gradient G of a large batch at the step, likewise."""
    streams: dict[str, Spread]
    """By estimator, a stream having weight 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """How to measure: on which gradients, with which correction and sizes, from which seed."""

    gradients: Gradients
    correction: Correction
    plan: Plan
    seed: int

    def measure(self, path: Sequence[Point], *, step: int, tick: Tick) -> Measured:
        """Return what every estimator makes of the gradients along a path that ends at a step."""
        seeds = (self.seed, step)
        start = self._large_gradient(path[0], seed=make_seed(*seeds, _START), tick=tick)
        truth = self._large_gradient(path[-1], seed=make_seed(*seeds, _TRUTH), tick=tick)
        streams = {name: Spread() for name in self.correction.estimators}
        for number in range(self.plan.streams):
            seed = make_seed(*seeds, _STREAM, number)
            _add(streams, self._stream(path, start.mean, seed=seed, tick=tick))
        measured = Measured(
            step=step,
            length=len(path) - 1,
            correction=self.correction,
            start=start,
            truth=truth,
            streams=streams,
        )
        _check_finite(measured)
        return measured

    def _large_gradient(self, point: Point, *, seed: int, tick: Tick) -> Spread:
        samples, size = self.gradients.samples(seed), self.plan.micro_batch_size
        spread = Spread()
        for first in range(0, self.plan.large_batch, size):
            last = min(first + size, self.plan.large_batch)
            batch = samples(range(first, last))
            spread.add(
                self.gradients.at(point, batch, seed=make_seed(seed, first)), weight=last - first
            )
            tick(last - first)
        return spread

    def _stream(
        self, path: Sequence[Point], start: list[Tensor], *, seed: int, tick: Tick
    ) -> Momenta:
        """Return the estimators after one stream of micro-batches."""
        samples, size = self.gradients.samples(seed), self.plan.micro_batch_size
        momenta = Momenta(start, self.correction)
        for number, (before, here) in enumerate(pairwise(path)):
            batch = samples(range(number * size, (number + 1) * size))
            # One seed for both evaluations of a sample: they see the same dropout.
            chance = make_seed(seed, number)
            at_previous = self.gradients.at(before, batch, seed=chance)
            momenta.update(self.gradients.at(here, batch, seed=chance), at_previous)
            tick(2 * size)
        return momenta


def _add(streams: dict[str, Spread], momenta: Momenta) -> None:
    # A function of its own: a name would keep these momenta while the next stream runs.
    for name, estimate in momenta.estimates().items():
        streams[name].add(estimate)


def _check_finite(measured: Measured) -> None:
    """Raise if a gradient on the way was not finite: every figure would be none."""
    spreads = (measured.start, measured.truth, *measured.streams.values())
    if not all(squared_norms(spread.mean).isfinite().all() for spread in spreads):
        raise FailedError(
            f"the gradients before step {measured.step} are not finite: the run has diverged "
            "there; look at earlier steps with --at"
        )

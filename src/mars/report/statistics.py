"""Means, intervals and tests on plain numbers, one a seed.

`scipy.special` has the t distribution that `scipy.stats` is built on, and is imported in a fraction
of the time.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special  # type: ignore[import-untyped]  # it ships no types

Floats = NDArray[np.float64]

CLAIM_SEEDS = 3
"""Common seeds that a claim needs."""
CLAIM_LEVEL = 0.05
"""Adjusted p-value below which a difference is called one."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its confidence interval, which a single value does not have."""

    mean: float
    low: float | None
    high: float | None
    count: int


@dataclass(frozen=True, slots=True)
class Paired:
    """The mean difference of two arms, ours minus the baseline's, over the seeds of both."""

    difference: Estimate
    p_value: float | None
    """Of no difference, by the paired t-test; None for a single seed."""
    seeds: tuple[int, ...]
    doubt: float = 0.0
    """Variance in interval and p-value beyond what the differences themselves show."""


def summarize(values: Sequence[float], confidence: float = 0.95, *, doubt: float = 0.0) -> Estimate:
    """Return the mean of finite values with its t interval.

    ``doubt`` is a variance of the mean that the values do not show, and that widens the interval.
    """
    mean, count = _mean(values), len(values)
    if count < 2:
        return Estimate(mean, None, None, count)
    error = math.sqrt(variance(values) / count + doubt)
    margin = error * float(special.stdtrit(count - 1, (1 + confidence) / 2))
    return Estimate(mean, mean - margin, mean + margin, count)


def paired_difference(
    ours: Mapping[int, float], baseline: Mapping[int, float], *, doubt: float = 0.0
) -> Paired | None:
    """Return how far finite values, one a seed, lie from the baseline's of the same seeds.

    Seeds that one of the two does not have are left out; None where they have none in common.
    ``doubt`` is a variance of the difference that the values do not show.
    """
    seeds = tuple(sorted(ours.keys() & baseline.keys()))
    if not seeds:
        return None
    differences = [ours[seed] - baseline[seed] for seed in seeds]
    estimate = summarize(differences, doubt=doubt)
    return Paired(estimate, _p_value(differences, doubt), seeds, doubt)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values that allow for being the smallest of several, by Holm's steps."""
    adjusted = [1.0] * len(p_values)
    floor = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        floor = max(floor, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = floor
    return adjusted


def first_reached(positions: Floats, losses: Floats, target: float) -> float | None:
    """Return where a curve first comes down to a target, or None where it never does.

    Between two points the lowest loss so far is taken to fall in a straight line.
    """
    below = np.flatnonzero(losses <= target)  # never true of NaN
    if not len(below):
        return None
    at = int(below[0])
    before = np.fmin.reduce(losses[:at], initial=math.inf)
    if not math.isfinite(before):
        return float(positions[at])
    fraction = (before - target) / (before - losses[at])
    return float(positions[at - 1] + fraction * (positions[at] - positions[at - 1]))


def squared_shortfall(gap: float, variance: float) -> float:
    """Return the mean of min(0, x)^2 for a normal x around ``gap``.

    What was seen ``gap`` behind, with an error of this variance, may be ahead in truth: by how
    much, squared, on average.
    """
    if variance <= 0:
        return 0.0
    deviation = math.sqrt(variance)
    ratio = gap / deviation
    density = math.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
    return max(0.0, variance * ((1 + ratio**2) * float(special.ndtr(-ratio)) - ratio * density))


def variance(values: Sequence[float]) -> float:
    """Return the unbiased variance of finite values; 0 for a single one."""
    mean = _mean(values)
    if len(values) < 2:
        return 0.0
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _mean(values: Sequence[float]) -> float:
    if not values or not all(map(math.isfinite, values)):
        raise ValueError(f"only finite values have a mean, got {list(values)}")
    # Equal values have a mean without rounding, and so no variance.
    return values[0] if min(values) == max(values) else math.fsum(values) / len(values)


def _p_value(differences: Sequence[float], doubt: float) -> float | None:
    if len(differences) < 2:
        return None
    mean = _mean(differences)
    error = math.sqrt(variance(differences) / len(differences) + doubt)
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * special.stdtr(len(differences) - 1, -abs(mean) / error))

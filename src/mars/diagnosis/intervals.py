"""95 % intervals of means of positive values and of ratios of such means, by the jackknife.

Both are intervals of the logarithm: a variance is positive, and a ratio is as likely to be twice
too large as half.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

_TAIL = 0.975


class Interval(NamedTuple):
    """A value and what contains it; low and high are None where they cannot be known."""

    value: float
    low: float | None
    high: float | None


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean of independent values."""
    total = sum(values)
    return _jackknife(len(values), lambda i: total - values[i], total / len(values))


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> Interval:
    """Return the ratio of the sums of values that come in pairs; over zero it is NaN."""
    upper, lower = sum(above), sum(below)
    return _jackknife(
        len(above), lambda i: ratio(upper - above[i], lower - below[i]), ratio(upper, lower)
    )


def ratio(above: float, below: float) -> float:
    """Return a quotient, NaN over zero."""
    return above / below if below else math.nan


def student_quantile(freedom: int, *, probability: float = _TAIL) -> float:
    """Return the quantile of Student's distribution with a whole number of degrees of freedom."""
    low, high = 0.0, 1.0
    while _student(high, freedom) < probability:
        low, high = high, 2 * high
    for _ in range(80):  # more halvings than a float has bits
        middle = (low + high) / 2
        low, high = (middle, high) if _student(middle, freedom) < probability else (low, middle)
    return high


def _jackknife(count: int, without: Callable[[int], float], value: float) -> Interval:
    """Return an interval from the values that leave out one each."""
    if count < 2:
        return Interval(value, None, None)
    left_out = [without(i) for i in range(count)]
    if not all(0 < each < math.inf for each in left_out):
        return Interval(value, None, None)
    logs = [math.log(each) for each in left_out]
    centre = math.fsum(logs) / count
    error = math.sqrt((count - 1) / count * math.fsum((each - centre) ** 2 for each in logs))
    width = student_quantile(count - 1) * error
    factor = math.exp(width) if width < 700 else math.inf
    return Interval(value, value / factor, value * factor)


def _student(t: float, freedom: int) -> float:
    """Return the distribution function at t >= 0: Abramowitz and Stegun 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    is_odd = freedom % 2
    term, total = (math.cos(angle), 0.0) if is_odd else (1.0, 0.0)
    for n in range(1 + is_odd, freedom, 2):
        total += term
        term *= square * n / (n + 1)
    within = 2 / math.pi * (angle + sine * total) if is_odd else sine * total
    return 0.5 + within / 2

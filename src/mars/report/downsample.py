"""Fewer points that look the same: lowest and highest of each stretch, and both ends."""

import numpy as np
from numpy.typing import NDArray

from mars.report.trials import Floats


def kept(values: Floats, *, points: int) -> NDArray[np.int64]:
    """Return at most ``points`` indices, in order, with the ends and the extremes of each stretch.

    A stretch without any finite value keeps its first, so that a gap stays a gap.
    """
    if points < 4:
        raise ValueError(f"points must be at least 4, got {points}")
    count = len(values)
    if count <= points:
        return np.arange(count)
    # Two of the points are the ends; each stretch in between gives its lowest and highest.
    size = -(-(count - 2) // ((points - 2) // 2))
    starts = np.arange(1, count - 1, size)
    padded = np.full(len(starts) * size, np.nan)
    padded[: count - 2] = values[1:-1]
    stretches = padded.reshape(-1, size)
    is_finite = np.isfinite(stretches)
    lowest = starts + np.where(is_finite, stretches, np.inf).argmin(axis=1)
    highest = starts + np.where(is_finite, stretches, -np.inf).argmax(axis=1)
    return np.unique(np.concatenate([[0, count - 1], lowest, highest]))


def spread(count: int, *, points: int) -> NDArray[np.int64]:
    """Return at most ``points`` indices below ``count``, evenly spread, with both ends."""
    if count <= points:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, points).round().astype(np.int64))


def smoothed(values: Floats, *, width: int) -> Floats:
    """Return the mean of up to ``width`` values around each, of as many on either side.

    A window that reaches over an end, or over a value that is not finite, is cut there on both
    sides alike or leaves it out, so that a line is not bent towards its inside.
    """
    count = len(values)
    reach = np.minimum(width // 2, np.minimum(np.arange(count), np.arange(count)[::-1]))
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    numbers = np.concatenate([[0], np.cumsum(finite)])
    first, last = np.arange(count) - reach, np.arange(count) + reach + 1
    total, number = sums[last] - sums[first], numbers[last] - numbers[first]
    made: Floats = np.where(finite, total / np.maximum(number, 1), np.nan)
    return made

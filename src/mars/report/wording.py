"""Figures as they stand in a sentence."""

import math
from collections.abc import Sequence

from mars.report.statistics import CLAIM_LEVEL, Estimate


def decimals(estimate: Estimate) -> int:
    """Return how many decimals show an estimate: two digits of its margin, three at least.

    Where there is no margin, two digits of the estimate itself.
    """
    margin = 0.0 if estimate.high is None else estimate.high - estimate.mean
    shown = margin if margin > 0 else abs(estimate.mean)
    return min(6, max(3, 1 + math.ceil(-math.log10(shown)))) if shown > 0 else 3


def plain(value: float, places: int = 3) -> str:
    """Return a loss."""
    return f"{value:.{places}f}" if abs(value) < 1e5 else f"{value:.3g}"


def signed(value: float, places: int = 3) -> str:
    """Return a difference with its sign, which zero does not have."""
    text = plain(value, places)
    if float(text) == 0:
        return plain(0.0, places)
    return text if value < 0 else f"+{text}"


def interval(estimate: Estimate, *, places: int) -> str:
    """Return the interval of a difference: ``95 % interval -0.391 to -0.363``."""
    if estimate.low is None or estimate.high is None:
        return "no interval"
    return f"95 % interval {signed(estimate.low, places)} to {signed(estimate.high, places)}"


def loss_with_interval(estimate: Estimate) -> str:
    """Return a loss as ``1.534 (95 % interval 1.520 to 1.548, 3 seeds)``."""
    places = decimals(estimate)
    mean = plain(estimate.mean, places)
    if estimate.low is None or estimate.high is None:
        return f"{mean} (one seed)"
    low, high = plain(estimate.low, places), plain(estimate.high, places)
    return f"{mean} (95 % interval {low} to {high}, {count(estimate.count, 'seed')})"


def percent_with_interval(estimate: Estimate, *, of: str) -> str:
    """Return a fraction as ``62 % of its tokens (95 % interval 58 % to 66 %, 3 seeds)``."""
    is_close = estimate.high is not None and estimate.high - estimate.mean < 0.01
    places = 1 if is_close else 0
    mean = f"{100 * estimate.mean:.{places}f} % of {of}"
    if estimate.low is None or estimate.high is None:
        return f"{mean} (one seed)"
    # No part of a run is below nothing, whatever the interval of two seeds says.
    low, high = 100 * max(0.0, estimate.low), 100 * estimate.high
    seeds = count(estimate.count, "seed")
    return f"{mean} (95 % interval {low:.{places}f} % to {high:.{places}f} %, {seeds})"


def p_text(p_value: float) -> str:
    """Return a p-value: ``p = 0.012``, or ``p < 0.001``."""
    if p_value < 0.001:
        return "p < 0.001"
    is_close = round(p_value, 3) == CLAIM_LEVEL  # four digits show on which side
    return f"p = {p_value:.{4 if is_close else 3 if p_value < 0.1 else 2}f}"


def count(number: int, noun: str) -> str:
    """Return a number of things: ``1 seed``, ``5 seeds``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def called(label: str) -> str:
    """Return an arm's label as a noun: ``mars-adamw (gamma 0.05)``."""
    optimizer, comma, settings = label.partition(", ")
    return f"{optimizer} ({settings})" if comma else label


def value_text(value: object) -> str:
    """Return a value of a config: ``0.025``, ``0.9/0.95``, ``true``, ``none``."""
    match value:
        case bool() | None:
            return str(value).lower()
        case float():
            short = f"{value:g}"
            return short if float(short) == value else str(value)
        case tuple():
            return "/".join(map(value_text, value))
        case _:
            return str(value)


def listed(words: Sequence[str]) -> str:
    """Return words as a list: ``a, b and c``."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"

"""The table of arms as text: the same cells on the page, in Markdown and in the terminal."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from mars.report.analysis import Analysis
from mars.report.statistics import Estimate
from mars.report.summary import ArmSummary, Call
from mars.report.wording import p_text

DASH = "\N{EN DASH}"
_MINUS = "\N{MINUS SIGN}"
_BYTES = ("B", "kB", "MB", "GB", "TB")

CALLS: dict[Call, str] = {
    "baseline": "baseline",
    "lower": "lower",
    "higher": "higher",
    "undecided": "undecided",
    "two seeds": "two seeds: no claim",
    "one seed": "one seed: no claim",
    "diverged": "diverged",
    "unfinished": "unfinished",
    "not compared": "not compared",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """What a table says in one place."""

    text: str
    detail: str = ""
    """The interval, or whatever else stands below in small print."""
    value: float | None = None
    """What the column sorts by; None goes last."""
    call: str = ""
    """What the difference is called, in a word."""
    chance: str = ""
    """The p-value behind that."""
    margin: str = ""
    """Half of the interval, where there is room for no more."""


@dataclass(frozen=True, slots=True)
class Column:
    """A quantity of every arm."""

    title: str
    short: str
    """For the terminal."""
    note: str
    """What it is, in a sentence."""
    rank: int
    """The highest go first where there is no room."""
    cell: Callable[[ArmSummary], Cell]


def columns(analysis: Analysis) -> list[Column]:
    """Return the columns, each of which turns an arm into its cell."""
    units = {trial.unit for trial in analysis.results.trials}
    unit = "samples" if units == {"samples"} else "tokens"
    of_baseline = f"as a share of {analysis.results.baseline or 'the baseline'}'s own"
    return [
        Column("Arm", "arm", "What is compared.", 0, _arm),
        Column("Best rate", "rate", "Learning rate with the lowest loss.", 2, _rate),
        Column(
            "Validation loss",
            "val loss",
            "At the end of training: mean over seeds, and its 95 % interval.",
            0,
            lambda arm: _estimate(arm.loss),
        ),
        Column("Seeds", "seeds", "Finished runs at the best rate.", 6, _seeds),
        Column(
            "Difference",
            "difference",
            "To the baseline, seed by seed: below zero is a lower loss.",
            1,
            _difference,
        ),
        Column(
            f"{unit.capitalize()} to baseline",
            unit,
            f"{unit.capitalize()} until the baseline's final loss, {of_baseline}.",
            3,
            lambda arm: _to_baseline(arm, arm.tokens_to_baseline),
        ),
        Column(
            "Seconds to baseline",
            "seconds",
            f"Seconds until the baseline's final loss, {of_baseline}.",
            4,
            lambda arm: _to_baseline(arm, arm.seconds_to_baseline),
        ),
        Column("Step time", "step", "Median of a training step.", 5, _step),
        Column("Optimizer memory", "memory", "State that the optimizer keeps.", 7, _memory),
        Column("Diverged", "diverged", "Runs that diverged, at any rate.", 8, _diverged),
    ]


def number(value: float, *, digits: int = 4, sign: bool = False) -> str:
    """Return a number with a minus sign that is as wide as a plus."""
    if math.isnan(value):
        return DASH
    if math.isinf(value):
        return "∞" if value > 0 else f"{_MINUS}∞"
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("+-")
    return text.replace("-", _MINUS)


def interval(estimate: Estimate, *, digits: int = 4, sign: bool = False, scale: float = 1) -> str:
    """Return an interval as ``1.23 to 1.45``, or nothing where there is none."""
    if estimate.low is None or estimate.high is None:
        return ""
    low, high = (
        number(scale * end, digits=digits, sign=sign) for end in (estimate.low, estimate.high)
    )
    return f"{low} to {high}"


def margin(estimate: Estimate, *, digits: int = 4, scale: float = 1) -> str:
    """Return half an interval as ``±0.02``, or nothing where there is none."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"±{number(scale * (estimate.high - estimate.low) / 2, digits=digits)}"


def rate_text(lr: float) -> str:
    """Return a learning rate."""
    return f"{lr:g}"


def shortened(label: str, *, length: int = 28) -> str:
    """Return a label that fits beside a figure: of a long one both ends, which tell arms apart."""
    if len(label) <= length:
        return label
    head, tail = length // 2, (length - 1) // 2
    return f"{label[:head]}\N{HORIZONTAL ELLIPSIS}{label[len(label) - tail :]}"


def bytes_text(value: float | None) -> str:
    """Return bytes with three digits."""
    if value is None:
        return DASH
    power = 0
    while abs(value) >= 999.5 and power + 1 < len(_BYTES):
        value, power = value / 1000, power + 1
    return f"{value:.3g} {_BYTES[power]}"


def seconds_text(value: float) -> str:
    """Return a short time with three digits."""
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _arm(summary: ArmSummary) -> Cell:
    return Cell(summary.label)


def _rate(summary: ArmSummary) -> Cell:
    if summary.best_lr is None:
        return Cell(DASH)
    edge = "edge of grid" if summary.is_at_edge else ""
    return Cell(rate_text(summary.best_lr), edge, summary.best_lr)


def _estimate(estimate: Estimate | None) -> Cell:
    if estimate is None:
        return Cell(DASH)
    return Cell(number(estimate.mean), interval(estimate), estimate.mean, margin=margin(estimate))


def _seeds(summary: ArmSummary) -> Cell:
    return Cell(str(len(summary.losses)), value=len(summary.losses))


def _difference(summary: ArmSummary) -> Cell:
    call = CALLS[summary.call]
    if summary.paired is None:
        return Cell("0" if summary.call == "baseline" else DASH, call=call, value=_zero(summary))
    difference = summary.paired.difference
    return Cell(
        number(difference.mean, sign=True),
        interval(difference, sign=True),
        difference.mean,
        call,
        "" if summary.adjusted_p is None else p_text(summary.adjusted_p),
        margin(difference),
    )


def _zero(summary: ArmSummary) -> float | None:
    return 0.0 if summary.call == "baseline" else None


def _to_baseline(summary: ArmSummary, estimate: Estimate | None) -> Cell:
    if summary.call == "baseline":
        return Cell("100 %", value=1.0)
    if estimate is not None:
        text = f"{number(100 * estimate.mean, digits=0)} %"
        detail = interval(estimate, digits=0, scale=100)
        return Cell(text, f"{detail} %" if detail else "", estimate.mean)
    if summary.reached is None:
        return Cell(DASH)
    reached, seeds = summary.reached
    return Cell(f"{reached} of {seeds} seeds", "reached it") if reached else Cell("never")


def _step(summary: ArmSummary) -> Cell:
    estimate = summary.step_seconds
    if estimate is None:
        return Cell(DASH)
    return Cell(seconds_text(estimate.mean), value=estimate.mean)


def _memory(summary: ArmSummary) -> Cell:
    return Cell(bytes_text(summary.optimizer_bytes), value=summary.optimizer_bytes)


def _diverged(summary: ArmSummary) -> Cell:
    trials = summary.arm.trials
    count = sum(trial.is_diverged for trial in trials)
    return Cell(f"{count} of {len(trials)}", value=count)

"""What each static figure shows, drawn on axes: the same for the page and for paper."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from mars.report.analysis import Analysis
from mars.report.cells import rate_text, shortened
from mars.report.curves import Line, measure_line, validation_line
from mars.report.downsample import spread
from mars.report.palette import DASHES, MARKERS, Style, styles
from mars.report.statistics import Estimate
from mars.report.summary import ArmSummary

_POINTS = 160
_START = 0.2  # of a run, which the vertical axis need not show: losses fall too far there
_BAND = 0.16
_MARKED = 25  # lines of at most so many points have markers


@dataclass(frozen=True, slots=True)
class Colors:
    """Colours of a drawing: of paper, or names that the page replaces by its own."""

    text: str
    rule: str
    arms: tuple[str, ...]


def draw_curves(axes: Axes, analysis: Analysis, colors: Colors, *, against: str) -> None:
    """Draw the mean validation loss of every arm; a band spans its seeds."""
    look = styles(analysis)
    lines = [(arm, validation_line(arm)) for arm in analysis.arms]
    drawn = [(arm, line) for arm, line in lines if line is not None]
    for arm, line in drawn:
        _draw_line(axes, line, look[arm.label], colors, against=against, label=arm.label)
    unit = drawn[0][0].arm.trials[0].unit if drawn else "tokens"
    axes.set_xlabel({"counts": unit}.get(against, against))
    axes.set_ylabel("validation loss")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    limits = _limits([line for _, line in drawn], against=against)
    if limits is not None:
        axes.set_ylim(*limits)


def draw_sensitivity(axes: Axes, analysis: Analysis, colors: Colors) -> None:
    """Draw the final loss of every arm at every rate, with intervals; crosses are divergences."""
    look = styles(analysis)
    axes.set_xscale("log")
    for arm in analysis.arms:
        mine = look[arm.label]
        known = [(each.lr, each.loss) for each in arm.sensitivity if each.loss is not None]
        if known:
            draw_estimates(
                axes,
                [lr for lr, _ in known],
                [loss for _, loss in known],
                mine,
                colors,
                label=arm.label,
            )
        lost = [each.lr for each in arm.sensitivity if each.diverged]
        # On the upper edge, in units of the axes: a diverged run has no loss to stand at.
        axes.plot(
            lost,
            [0.97] * len(lost),
            linestyle="",
            marker="x",
            color=colors.arms[mine.color],
            transform=axes.get_xaxis_transform(),
        )
    rates = sorted({each.lr for arm in analysis.arms for each in arm.sensitivity})
    axes.set_xlabel("learning rate")
    axes.set_ylabel("final validation loss")
    _rate_ticks(axes, rates)


def draw_forest(axes: Axes, analysis: Analysis, colors: Colors) -> None:
    """Draw each arm's difference to the baseline with its interval, arm below arm."""
    look = styles(analysis)
    compared = [(arm, arm.paired.difference) for arm in analysis.arms if arm.paired is not None]
    axes.axvline(0, color=colors.text, linewidth=0.8)
    for row, (arm, difference) in enumerate(compared):
        mine = look[arm.label]
        axes.errorbar(
            [difference.mean],
            [row],
            xerr=_reach([difference]),
            color=colors.arms[mine.color],
            marker=MARKERS[mine.marker],
        )
    axes.set_yticks(range(len(compared)), [shortened(arm.label) for arm, _ in compared])
    axes.set_ylim(len(compared) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    baseline = shortened(analysis.results.baseline or "")
    axes.set_xlabel(f"difference in final validation loss to {baseline}")
    axes.grid(visible=False, axis="y")


def draw_bars(
    axes: Axes,
    analysis: Analysis,
    colors: Colors,
    values: Sequence[tuple[ArmSummary, float]],
    *,
    title: str,
) -> None:
    """Draw a bar for each arm."""
    look = styles(analysis)
    for row, (arm, value) in enumerate(values):
        axes.barh(row, value, color=colors.arms[look[arm.label].color], height=0.6)
    axes.set_yticks(range(len(values)), [shortened(arm.label) for arm, _ in values])
    axes.invert_yaxis()
    axes.set_xlabel(title)
    axes.grid(visible=False, axis="y")


def draw_measure(axes: Axes, analysis: Analysis, colors: Colors, *, name: str, title: str) -> None:
    """Draw a training measure of the arms that recorded it."""
    look = styles(analysis)
    for arm in analysis.arms:
        line = measure_line(arm, name)
        if line is not None:
            keep = spread(len(line[0]), points=_POINTS)
            mine = look[arm.label]
            axes.plot(
                line[0][keep],
                line[1][keep],
                color=colors.arms[mine.color],
                linestyle=_dash(mine),
                label=arm.label,
            )
    axes.set_xlabel("steps")
    axes.set_ylabel(title)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _draw_line(
    axes: Axes, line: Line, mine: Style, colors: Colors, *, against: str, label: str
) -> None:
    keep = spread(len(line.steps), points=_POINTS)
    along, color = line.along(against)[keep], colors.arms[mine.color]
    if line.low is not None and line.high is not None:
        axes.fill_between(
            along, line.low[keep], line.high[keep], color=color, alpha=_BAND, linewidth=0
        )
    axes.plot(
        along,
        line.losses[keep],
        color=color,
        linestyle=_dash(mine),
        marker=MARKERS[mine.marker] if len(keep) <= _MARKED else None,
        label=label,
    )


def draw_estimates(
    axes: Axes,
    along: Sequence[float],
    estimates: Sequence[Estimate],
    mine: Style,
    colors: Colors,
    *,
    label: str,
) -> None:
    """Draw a line through estimates along something, with their intervals."""
    axes.errorbar(
        along,
        [estimate.mean for estimate in estimates],
        yerr=_reach(estimates),
        color=colors.arms[mine.color],
        linestyle=_dash(mine),
        marker=MARKERS[mine.marker],
        label=label,
    )


def _reach(estimates: Sequence[Estimate]) -> list[list[float]]:
    """Return how far intervals reach below and above the mean: nowhere where there is none."""
    below = [max(e.mean - (e.mean if e.low is None else e.low), 0) for e in estimates]
    above = [max((e.mean if e.high is None else e.high) - e.mean, 0) for e in estimates]
    return [below, above]


def _limits(lines: Sequence[Line], *, against: str) -> tuple[float, float] | None:
    """Return limits that fit the losses after the start of the runs."""
    values = []
    for line in lines:
        along = line.along(against)
        late = along >= _START * along.max(initial=0)
        for losses in (line.losses, line.low, line.high):
            if losses is not None:
                values.append(losses[late & np.isfinite(losses)])
    every = np.concatenate(values) if values else np.empty(0)
    if not len(every):
        return None
    margin = 0.05 * (every.max() - every.min()) or 0.01 * abs(every.max()) or 0.01
    return float(every.min() - margin), float(every.max() + margin)


def _rate_ticks(axes: Axes, rates: Sequence[float]) -> None:
    """Put ticks at the rates that were tried, or at powers of ten where those are too many."""
    if 0 < len(rates) <= 7:
        axes.set_xticks(rates, [rate_text(rate) for rate in rates], minor=False)
        axes.set_xticks([], minor=True)
        axes.tick_params(axis="x", rotation=30 if len(rates) > 4 else 0)
        if len(rates) == 1:
            axes.set_xlim(rates[0] / math.sqrt(10), rates[0] * math.sqrt(10))
    else:
        plain_log(axes.xaxis)


def plain_log(axis: Axis) -> None:
    """Label a logarithmic axis with plain numbers: formulas are not typeset here."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _dash(mine: Style) -> str | tuple[float, tuple[float, ...]]:
    return (0, DASHES[mine.dash]) if DASHES[mine.dash] else "solid"

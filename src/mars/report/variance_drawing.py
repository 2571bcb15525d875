"""Static figures of a diagnosis, drawn on axes."""

from matplotlib.axes import Axes

from mars.report.drawing import Colors, draw_estimates, plain_log
from mars.report.palette import MARKERS, style
from mars.report.statistics import Estimate
from mars.report.variance import ESTIMATORS, KINDS, MODES, Diagnosis, ratios


def draw_variance(axes: Axes, diagnosis: Diagnosis, colors: Colors, *, kind: str) -> None:
    """Draw the variance of every estimator by step, for one kind of layer, with intervals."""
    axes.set_yscale("log")
    plain_log(axes.yaxis)
    for index, name in enumerate(diagnosis.estimators):
        moments = [
            (step, diagnosis.moments[step, kind, name])
            for step in diagnosis.steps
            if (step, kind, name) in diagnosis.moments
        ]
        known = [
            (step, Estimate(each.variance, each.low, each.high, 0))
            for step, each in moments
            if each.variance > 0
        ]
        if known:
            draw_estimates(
                axes,
                [step for step, _ in known],
                [estimate for _, estimate in known],
                style(index),
                colors,
                label=ESTIMATORS.get(name, name),
            )
    axes.set_xlabel("step")
    axes.set_ylabel("variance / squared gradient")


def draw_ratios(axes: Axes, diagnosis: Diagnosis, colors: Colors) -> None:
    """Draw the variance of each mode over that of the average, by kind, at the last step."""
    axes.axvline(100, color=colors.text, linewidth=0.8)
    for mode in MODES:
        found = [
            (row, 100 * by_step[-1][1])
            for row, kind in enumerate(diagnosis.kinds)
            if (by_step := ratios(diagnosis, mode, kind=kind))
        ]
        if found:
            mine = style(diagnosis.estimators.index(mode))
            axes.plot(
                [value for _, value in found],
                [row for row, _ in found],
                linestyle="",
                marker=MARKERS[mine.marker],
                markersize=6,
                color=colors.arms[mine.color],
                label=ESTIMATORS[mode],
            )
    axes.set_yticks(range(len(diagnosis.kinds)), [KINDS.get(k, k) for k in diagnosis.kinds])
    axes.set_ylim(len(diagnosis.kinds) - 0.5, -0.5)
    axes.set_xlabel("variance, % of the average's")

"""The data of the interactive charts, as the page's scripts read them.

A colour is the name of a custom property, a label is escaped: charts read some tags in text.
"""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mars.report.analysis import Analysis
from mars.report.cells import rate_text, shortened
from mars.report.curves import Line, measure_line, training_line, validation_line
from mars.report.downsample import kept, spread
from mars.report.palette import Style, style, styles
from mars.report.statistics import Estimate
from mars.report.summary import ArmSummary
from mars.report.trials import Curve, Floats, Trial
from mars.report.variance import ESTIMATORS, KINDS, Diagnosis

# Any: what becomes JSON is a tree of plain values.
Json = dict[str, Any]

_VARIANCE, _BIAS = "variance", "squared bias"
_MEAN_POINTS = 400
_ALL_POINTS = 80_000
"""Points of all single runs together, for each kind of loss."""
_RUN_POINTS = (120, 1000)
"""The fewest and the most of one run."""


def curves_data(analysis: Analysis) -> Json:
    """Return the loss curves: of every arm its mean and band, and every single run."""
    look = styles(analysis)
    trials = analysis.results.trials
    points = int(np.clip(_ALL_POINTS // max(len(trials), 1), *_RUN_POINTS))
    return {
        "unit": trials[0].unit,
        "arms": [
            {
                "label": arm.label,
                "color": look[arm.label].color_name,
                "soft": look[arm.label].soft_name,
                "dash": look[arm.label].dash,
                "marker": look[arm.label].marker,
                "validation": _mean(validation_line(arm)),
                "training": _mean(training_line(arm)),
                "runs": [_run(trial, points=points) for trial in arm.arm.trials],
            }
            for arm in analysis.arms
        ],
    }


def sensitivity_data(analysis: Analysis) -> Json:
    """Return the final loss by learning rate; a diverged rate is a cross on the upper edge."""
    look, traces = styles(analysis), []
    edge = _above([at.loss for arm in analysis.arms for at in arm.sensitivity if at.loss])
    for arm in analysis.arms:
        mine = look[arm.label]
        known = [(at.lr, at.loss) for at in arm.sensitivity if at.loss is not None]
        traces.append(_points(arm.label, known, mine, template="lr %{x:g}: %{y:.4f}"))
        lost = [at.lr for at in arm.sensitivity if at.diverged]
        if lost:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "x": lost,
                    "y": [_short(edge)] * len(lost),
                    "name": html.escape(arm.label, quote=False),
                    "marker": {"symbol": "x", "size": 10, "color": mine.color_name},
                    "hovertemplate": "lr %{x:g}: diverged",
                }
            )
    rates = sorted({at.lr for arm in analysis.arms for at in arm.sensitivity})
    ticks = {"tickvals": rates, "ticktext": [rate_text(rate) for rate in rates]}
    xaxis = {"title": "learning rate", "type": "log", **(ticks if len(rates) <= 7 else {})}
    return _view(traces, xaxis=xaxis, yaxis={"title": "final validation loss"})


def bars_data(values: Sequence[tuple[ArmSummary, float]], analysis: Analysis, title: str) -> Json:
    """Return a bar for each arm."""
    look = styles(analysis)
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": [_short(value) for _, value in values],
        # Numbers with names as ticks: two labels that begin alike stay two bars.
        "y": list(range(len(values))),
        "marker": {"color": [look[arm.label].color_name for arm, _ in values]},
        "hovertemplate": "%{x:.4g}<extra></extra>",
    }
    names = [html.escape(shortened(arm.label), quote=False) for arm, _ in values]
    yaxis = {"title": "", "autorange": "reversed", "tickvals": bars["y"], "ticktext": names}
    return _view([bars], xaxis={"title": title, "rangemode": "tozero"}, yaxis=yaxis)


def measure_data(analysis: Analysis, *, name: str, title: str) -> Json:
    """Return a training measure of the arms that recorded it."""
    look, traces = styles(analysis), []
    for arm in analysis.arms:
        line = measure_line(arm, name)
        if line is not None:
            keep = spread(len(line[0]), points=_MEAN_POINTS)
            mine = look[arm.label]
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "x": _numbers(line[0][keep]),
                    "y": _numbers(line[1][keep]),
                    "name": html.escape(arm.label, quote=False),
                    "line": {"color": mine.color_name, "dash": mine.dash, "width": 2},
                    "hovertemplate": "step %{x}: %{y:.4g}",
                }
            )
    return _view(traces, xaxis={"title": "steps"}, yaxis={"title": title, "rangemode": "tozero"})


def variance_data(diagnosis: Diagnosis) -> Json:
    """Return variance and bias of every estimator by step, a view for each kind of layer."""
    views = {}
    for kind in diagnosis.kinds:
        for title, is_bias in ((_VARIANCE, False), (_BIAS, True)):
            traces = [
                _points(
                    ESTIMATORS.get(name, name),
                    _moments(diagnosis, kind, name, is_bias=is_bias),
                    style(index),
                    template="step %{x}: %{y:.4g}",
                )
                for index, name in enumerate(diagnosis.estimators)
            ]
            # A bias may lie below zero, where a logarithm has nothing to show.
            yaxis = {"title": f"{title} / squared gradient", "type": "linear" if is_bias else "log"}
            view = _view(traces, xaxis={"title": "step"}, yaxis=yaxis)["views"][""]
            views[f"{KINDS.get(kind, kind)},{title}"] = view
    kinds = [KINDS.get(kind, kind) for kind in diagnosis.kinds]
    choices = [["Layers", kinds], ["Quantity", [_VARIANCE, _BIAS]]]
    return {"choices": choices, "views": views}


def _moments(
    diagnosis: Diagnosis, kind: str, name: str, *, is_bias: bool
) -> list[tuple[float, Estimate]]:
    found = []
    for step in diagnosis.steps:
        each = diagnosis.moments.get((step, kind, name))
        if each is not None and is_bias:
            found.append((float(step), Estimate(each.bias, None, None, 0)))
        elif each is not None:
            found.append((float(step), Estimate(each.variance, each.low, each.high, 0)))
    return found


def _above(estimates: Sequence[Estimate]) -> float:
    """Return a place above all estimates and their intervals, where nothing else is drawn."""
    ends = [end for e in estimates for end in (e.mean, e.low, e.high) if end is not None]
    return max(ends) + 0.06 * ((max(ends) - min(ends)) or 1) if ends else 1.0


def _view(traces: list[Json], *, xaxis: Json, yaxis: Json) -> Json:
    layout = {"xaxis": xaxis, "yaxis": yaxis}
    return {"choices": [], "views": {"": {"data": traces, "layout": layout}}}


def _points(
    label: str, known: Sequence[tuple[float, Estimate]], mine: Style, *, template: str
) -> Json:
    """Return estimates with their intervals along something."""
    means = [estimate.mean for _, estimate in known]
    above = [0.0 if e.high is None else max(e.high - e.mean, 0) for _, e in known]
    below = [0.0 if e.low is None else max(e.mean - e.low, 0) for _, e in known]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [along for along, _ in known],
        "y": [_short(mean) for mean in means],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [_short(each) for each in above],
            "arrayminus": [_short(each) for each in below],
            "color": mine.color_name,
            "thickness": 1.25,
            "width": 4,
        },
        "name": html.escape(label, quote=False),
        "line": {"color": mine.color_name, "dash": mine.dash, "width": 2},
        "marker": {"symbol": mine.marker, "size": 7, "color": mine.color_name},
        "hovertemplate": template,
    }


def _run(trial: Trial, *, points: int) -> Json:
    status = ", diverged" if trial.is_diverged else "" if trial.is_complete else ", unfinished"
    return {
        "label": f"lr {rate_text(trial.lr)}, seed {trial.seed}{status}",
        "validation": _curve(trial.validation, points=points),
        "training": _curve(trial.train, points=points),
    }


def _curve(curve: Curve, *, points: int) -> Json | None:
    if not len(curve.steps):
        return None
    keep = kept(curve.losses, points=points)
    # Most runs count as many tokens each step: one number stands for all of them.
    per_step = curve.counts[-1] / curve.steps[-1] if curve.steps[-1] else 0
    is_even = np.array_equal(curve.counts, per_step * curve.steps)
    counts = {"per_step": per_step} if is_even else {"counts": _numbers(curve.counts[keep])}
    return {
        "steps": _numbers(curve.steps[keep]),
        "seconds": _numbers(curve.seconds[keep]),
        "losses": _numbers(curve.losses[keep]),
        **counts,
    }


def _mean(line: Line | None) -> Json | None:
    if line is None:
        return None
    keep = spread(len(line.steps), points=_MEAN_POINTS)
    columns: Mapping[str, Floats | None] = {
        "steps": line.steps,
        "counts": line.counts,
        "seconds": line.seconds,
        "losses": line.losses,
        "low": line.low,
        "high": line.high,
    }
    return {name: _numbers(values[keep]) for name, values in columns.items() if values is not None}


def _numbers(values: Floats) -> list[float | int | None]:
    return [_short(value) for value in values.tolist()]


def _short(value: float) -> float | int | None:
    """Return a number with five digits, which no screen can tell from all of them."""
    if not np.isfinite(value):
        return None
    if value == int(value) and abs(value) < 2**53:
        return int(value)
    return float(f"{value:.5g}")

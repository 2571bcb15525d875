"""The page's figures that become interactive: curves, sensitivity, cost, MARS's measures."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from mars.report.analysis import Analysis
from mars.report.blocks import Chart, figure, folded, legend
from mars.report.cells import bytes_text, number, rate_text, seconds_text
from mars.report.curves import measure_line, shown_rate, training_line, validation_line, window
from mars.report.drawing import draw_bars, draw_curves, draw_measure, draw_sensitivity
from mars.report.interactive import bars_data, curves_data, measure_data, sensitivity_data
from mars.report.markup import Markup, join, tag
from mars.report.palette import styles
from mars.report.summary import ArmSummary
from mars.report.svg import COLORS, inline_svg

MEASURES = {
    "correction_ratio": (
        "correction ratio",
        "Norm of MARS's correction relative to that of the gradient.",
    ),
    "gradient_cosine": (
        "gradient cosine",
        "Cosine between the gradients of one step and the one before.",
    ),
    "clip_rate": ("clip rate", "Share of tensors whose corrected gradient was clipped."),
}


class _Quantity(NamedTuple):
    """What a bar stands for: its name, the unit of the axis, and the values as text."""

    title: str
    unit: str
    scale: float
    values: Sequence[tuple[ArmSummary, float]]
    texts: Sequence[str]


def loss_curves(analysis: Analysis) -> Markup:
    """Return the loss of every arm along its run."""
    ends = _ends(analysis)
    axes = {"counts": analysis.results.trials[0].unit, "seconds": "seconds"}
    alts = {
        against: f"Validation loss against {name}, mean over seeds. At the end: {ends}."
        for against, name in axes.items()
    }
    statics = [
        inline_svg(
            partial(draw_curves, analysis=analysis, colors=COLORS, against=against),
            name=f"curves-{against}",
            alt=alt,
        )
        for against, alt in alts.items()
    ]
    look = styles(analysis)
    return figure(
        name="curves",
        static=statics,
        caption=_curves_caption(analysis),
        alt=alts["counts"],
        legend=legend([(_at_rate(arm), look[arm.label]) for arm in analysis.arms]),
        chart=Chart(script="curves", data=curves_data(analysis), has_runs=True),
    )


def sensitivity(analysis: Analysis) -> Markup:
    """Return the final loss by learning rate."""
    alt = f"Final validation loss by learning rate. {_by_rate(analysis)}."
    drawn = inline_svg(
        partial(draw_sensitivity, analysis=analysis, colors=COLORS), name="rates", alt=alt
    )
    look = styles(analysis)
    return figure(
        name="sensitivity-figure",
        static=[drawn],
        caption="Final validation loss at every learning rate that was tried: mean over seeds, "
        "with its 95 % interval where there are several. A cross on the upper edge is a rate at "
        "which at least one run diverged.",
        alt=alt,
        legend=legend([(arm.label, look[arm.label]) for arm in analysis.arms]),
        chart=Chart(script="views", data=sensitivity_data(analysis)),
    )


def costs(analysis: Analysis) -> Markup | None:
    """Return step time and memory, as sentences and as bars."""
    quantities = [quantity for quantity in _quantities(analysis) if quantity.values]
    figures = [_bars(analysis, quantity) for quantity in quantities]
    if not figures:
        return None
    said = tag("ul", *(tag("li", sentence) for sentence in analysis.cost), class_="prose")
    words = folded("In words, against the baseline", said) if analysis.cost else None
    return join([tag("div", *figures, class_="pair"), words])


def measures(analysis: Analysis) -> Markup | None:
    """Return MARS's own measures, where any arm recorded them."""
    figures = [made for name in MEASURES if (made := _measure(analysis, name)) is not None]
    return tag("div", *figures, class_="pair") if figures else None


def _ends(analysis: Analysis) -> str:
    lines = [(arm, validation_line(arm)) for arm in analysis.arms]
    return ", ".join(
        f"{arm.label} {number(line.losses[-1])}"
        for arm, line in lines
        if line is not None and len(line.losses)
    )


def _at_rate(arm: ArmSummary) -> str:
    rate = shown_rate(arm)
    return arm.label if rate is None else f"{arm.label}, lr {rate_text(rate.lr)}"


def _curves_caption(analysis: Analysis) -> str:
    lines = [line for arm in analysis.arms if (line := training_line(arm)) is not None]
    records = max((window(len(line.losses)) for line in lines), default=1)
    smoothing = f" Training losses are averaged over {records} records." if records > 1 else ""
    return (
        "Mean over seeds at the best learning rate of each arm; the band reaches from the lowest "
        "to the highest seed. The vertical axis leaves out the start of the runs, where losses "
        f"fall the most.{smoothing}"
    )


def _by_rate(analysis: Analysis) -> str:
    parts = []
    for arm in analysis.arms:
        told = (
            f"{rate_text(at.lr)} {'diverged' if at.loss is None else number(at.loss.mean)}"
            for at in arm.sensitivity
            if at.loss is not None or at.diverged
        )
        parts.append(f"{arm.label}: {', '.join(told) or 'unfinished'}")
    return "; ".join(parts)


def _quantities(analysis: Analysis) -> list[_Quantity]:
    arms = analysis.arms
    steps = [(arm, arm.step_seconds.mean) for arm in arms if arm.step_seconds is not None]
    states = [(arm, arm.optimizer_bytes) for arm in arms if arm.optimizer_bytes is not None]
    peaks = [(arm, arm.peak_memory_bytes) for arm in arms if arm.peak_memory_bytes is not None]
    return [
        _Quantity("Step time", "milliseconds", 1e3, steps, [seconds_text(v) for _, v in steps]),
        _Quantity("Optimizer memory", "MB", 1e-6, states, [bytes_text(v) for _, v in states]),
        _Quantity("Peak memory", "MB", 1e-6, peaks, [bytes_text(v) for _, v in peaks]),
    ]


def _bars(analysis: Analysis, quantity: _Quantity) -> Markup:
    values = [(arm, quantity.scale * value) for arm, value in quantity.values]
    told = ", ".join(
        f"{arm.label} {text}" for (arm, _), text in zip(values, quantity.texts, strict=True)
    )
    name = quantity.title.lower().replace(" ", "-")
    draw = partial(draw_bars, analysis=analysis, colors=COLORS, values=values, title=quantity.unit)
    alt = f"{quantity.title}: {told}."
    height = 0.7 + 0.26 * len(values)
    return figure(
        name=f"{name}-figure",
        static=[inline_svg(draw, name=name, alt=alt, height=height)],
        caption=alt,
        alt=alt,
        chart=Chart(
            script="views",
            data=bars_data(values, analysis, f"{quantity.title.lower()}, {quantity.unit}"),
            is_small=True,
        ),
    )


def _measure(analysis: Analysis, name: str) -> Markup | None:
    title, about = MEASURES[name]
    lines = [(arm, measure_line(arm, name)) for arm in analysis.arms]
    found = [(arm, line) for arm, line in lines if line is not None]
    if not found:
        return None
    means = ", ".join(f"{arm.label} {line[1].mean():.3g}" for arm, line in found)
    alt = f"{title.capitalize()} by step. Mean over the run: {means}."
    look = styles(analysis)
    draw = partial(draw_measure, analysis=analysis, colors=COLORS, name=name, title=title)
    return figure(
        name=f"measure-{name}",
        static=[inline_svg(draw, name=name, alt=alt, height=2.4)],
        caption=f"{about} Mean over the run: {means}.",
        alt=alt,
        legend=legend([(arm.label, look[arm.label]) for arm, _ in found]),
        chart=Chart(
            script="views",
            data=measure_data(analysis, name=name, title=title),
            is_small=True,
        ),
    )

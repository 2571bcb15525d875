"""The page's part on variance: what each mode of MARS removes, on the runs that were diagnosed."""

from functools import partial

from mars.report.analysis import Analysis
from mars.report.blocks import Chart, figure, folded, legend, table
from mars.report.cells import Cell, rate_text
from mars.report.interactive import variance_data
from mars.report.markup import Markup, join, tag
from mars.report.palette import style
from mars.report.svg import COLORS, inline_svg
from mars.report.variance import (
    ESTIMATORS,
    KINDS,
    MODES,
    Diagnosis,
    diagnoses,
    ratios,
    sentences,
)
from mars.report.variance_drawing import draw_ratios, draw_variance


def variance(analysis: Analysis) -> Markup | None:
    """Return what the diagnoses found, if there are any."""
    found = diagnoses(analysis)
    return join(_shown(each, f"variance-{i}") for i, each in enumerate(found)) if found else None


def _shown(diagnosis: Diagnosis, name: str) -> Markup:
    trial = diagnosis.trial
    return join(
        [
            tag("h3", f"{diagnosis.label}, lr {rate_text(trial.lr)}, seed {trial.seed}"),
            *(tag("p", sentence) for sentence in sentences(diagnosis)),
            _by_kind(diagnosis, f"{name}-kinds"),
            _by_step(diagnosis, name),
            folded("Variance and bias in numbers", _table(diagnosis, f"{name}-table")),
        ]
    )


def _by_kind(diagnosis: Diagnosis, name: str) -> Markup:
    told = "; ".join(
        f"{KINDS.get(kind, kind)}: "
        + ", ".join(
            f"{mode} {found[-1][1]:.1%}"
            for mode in MODES
            if (found := ratios(diagnosis, mode, kind=kind))
        )
        for kind in diagnosis.kinds
    )
    step = diagnosis.steps[-1]
    alt = f"Variance relative to the plain average at step {step}. {told}."
    drawn = inline_svg(
        partial(draw_ratios, diagnosis=diagnosis, colors=COLORS),
        name=f"{name}-drawing",
        alt=alt,
        height=0.7 + 0.28 * len(diagnosis.kinds),
    )
    entries = [
        (ESTIMATORS[mode], style(diagnosis.estimators.index(mode)))
        for mode in MODES
        if mode in diagnosis.estimators
    ]
    return figure(
        name=name,
        static=[drawn],
        caption=f"Variance at step {step} as a share of the plain average's, by kind of layer. "
        "Left of 100 % the correction removes variance that averaging alone does not.",
        alt=alt,
        legend=legend(entries),
    )


def _by_step(diagnosis: Diagnosis, name: str) -> Markup:
    last = diagnosis.steps[-1]
    told = ", ".join(
        f"{ESTIMATORS.get(estimator, estimator)} {each.variance:.3g}"
        for (step, kind, estimator), each in diagnosis.moments.items()
        if step == last and kind == diagnosis.kinds[0]
    )
    alt = f"Variance over squared gradient by step, {KINDS.get(diagnosis.kinds[0])}. Last: {told}."
    drawn = inline_svg(
        partial(draw_variance, diagnosis=diagnosis, colors=COLORS, kind=diagnosis.kinds[0]),
        name=f"{name}-steps",
        alt=alt,
    )
    settings = ", ".join(
        f"{key.replace('_', ' ')} {value:g}" for key, value in diagnosis.settings.items()
    )
    entries = [(ESTIMATORS.get(e, e), style(i)) for i, e in enumerate(diagnosis.estimators)]
    return figure(
        name=name,
        static=[drawn],
        caption="Variance over the squared norm of the true gradient, by step; bars are 95 % "
        f"intervals. Measured with {settings}.",
        alt=alt,
        legend=legend(entries),
        chart=Chart(script="views", data=variance_data(diagnosis)),
    )


def _table(diagnosis: Diagnosis, name: str) -> Markup:
    titles = ("Layers", "Step", "Estimator", "Variance", "Squared bias")
    rows = []
    for (step, kind, estimator), each in diagnosis.moments.items():
        span = "" if each.low is None or each.high is None else f"{each.low:.4g} to {each.high:.4g}"
        rows.append(
            [
                Cell(KINDS.get(kind, kind)),
                Cell(str(step), value=step),
                Cell(ESTIMATORS.get(estimator, estimator)),
                Cell(f"{each.variance:.4g}", span, each.variance),
                Cell(f"{each.bias:.4g}", value=each.bias),
            ]
        )
    return table(
        [(title, "") for title in titles],
        rows,
        name=name,
        caption="Relative to the squared norm of the true gradient of the same parameters. A bias "
        "may lie below zero by chance: its own sampling noise has been subtracted.",
        is_sortable=True,
        text_columns=(2,),
    )

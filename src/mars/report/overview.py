"""The page's answer: the verdict, the table of arms, their differences to the baseline."""

from functools import partial

from mars.metrics.quantities import count_text
from mars.report.analysis import Analysis
from mars.report.blocks import figure, folded, pairs, table
from mars.report.cells import columns, interval, number
from mars.report.drawing import draw_forest
from mars.report.equality import budget
from mars.report.markup import Markup, join, tag
from mars.report.svg import COLORS, inline_svg
from mars.report.wording import count


def header(analysis: Analysis) -> Markup:
    """Return the title and what was compared, in a line."""
    results = analysis.results
    about = tag("p", results.description) if results.description else None
    return tag("header", tag("h1", results.title), tag("p", _scope(analysis), class_="meta"), about)


def verdict(analysis: Analysis) -> Markup:
    """Return what came out."""
    # A percent sign stays with its number.
    said = [sentence.replace(" %", "\N{NO-BREAK SPACE}%") for sentence in analysis.verdict]
    return tag(
        "section",
        tag("h2", "Verdict", id="verdict"),
        *(tag("p", sentence) for sentence in said),
        class_="verdict",
        aria_labelledby="verdict",
    )


def results_table(analysis: Analysis) -> Markup:
    """Return the table of arms, and their differences to the baseline as a figure."""
    made = columns(analysis)
    shown = table(
        [(column.title, column.note) for column in made],
        [[column.cell(arm) for column in made] for arm in analysis.arms],
        name="arms",
        caption=_caption(analysis),
        is_sortable=True,
    )
    notes = pairs([(column.title, column.note) for column in made[1:]])
    return join([shown, folded("What the columns mean", notes), _forest(analysis)])


def _scope(analysis: Analysis) -> str:
    """Return the size of the comparison, in words."""
    results = analysis.results
    trial = results.trials[0]
    parts = [
        count(len(results.arms), "arm"),
        count(len(results.trials), "run"),
        count(len(results.seeds), "seed"),
    ]
    parameters = trial.manifest.get("parameters")
    if isinstance(parameters, int):
        parts.append(f"{count_text(parameters)} parameters")
    budgets = {(each.config.training.steps, budget(each.config)) for each in results.trials}
    if len(budgets) == 1:
        steps, total = budgets.pop()
        parts.append(f"{steps:,} steps, {count_text(total)} {trial.unit} a run")
    return " · ".join(parts)


def _caption(analysis: Analysis) -> str:
    baseline = analysis.results.baseline
    against = f" Compared with {baseline}, the baseline." if baseline else ""
    return f"Each arm at its best learning rate.{against} Small print: 95 % intervals over seeds."


def _forest(analysis: Analysis) -> Markup | None:
    compared = [(arm, arm.paired.difference) for arm in analysis.arms if arm.paired is not None]
    if not compared:
        return None
    told = "; ".join(
        f"{arm.label} {number(each.mean, sign=True)}"
        + (f" ({span})" if (span := interval(each, sign=True)) else "")
        for arm, each in compared
    )
    alt = f"Difference in final validation loss to {analysis.results.baseline}: {told}."
    drawn = inline_svg(
        partial(draw_forest, analysis=analysis, colors=COLORS),
        name="forest",
        alt=alt,
        height=0.7 + 0.26 * len(compared),
    )
    return figure(
        name="differences",
        static=[drawn],
        caption="Difference in final validation loss to the baseline, paired by seed, with its "
        "95 % interval where there are several seeds. Left of zero is better.",
        alt=alt,
    )

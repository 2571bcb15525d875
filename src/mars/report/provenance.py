"""Where the results come from: configs, environment, limits, the command, every single run."""

import numpy as np

from mars.config.toml import as_toml
from mars.metrics.quantities import duration_text
from mars.report.analysis import Analysis
from mars.report.blocks import folded, pairs, table
from mars.report.cells import DASH, Cell, number, rate_text, seconds_text
from mars.report.environment import differences, environment
from mars.report.grouping import COMPARED
from mars.report.markup import Markup, join, tag
from mars.report.trials import Floats, Trial


def configuration(analysis: Analysis) -> Markup:
    """Return what the arms differ in, and folded away what they share."""
    found = differences(analysis.results)
    labels = [arm.label for arm in analysis.results.arms if arm.rates]
    rows = [
        [Cell(_short(key)), *(Cell(_value(values[label])) for label in labels)]
        for key, values in found.items()
    ]
    shared = [
        (key, _value(_read(analysis.results.trials[0], key)))
        for key in COMPARED
        if key not in found and key != "seed"
    ]
    if rows:
        shown = table(
            [("Key", ""), *((label, "") for label in labels)],
            rows,
            name="differing",
            caption="Keys in which the arms differ, each at its best rate. "
            f"{DASH}: left to the optimizer's default.",
            text_columns=range(1, len(labels) + 1),
        )
    else:
        alone = "There is one arm." if len(labels) == 1 else "The arms do not differ in any key."
        shown = tag("p", alone)
    known = [(key, value) for key, value in shared if value != DASH]
    title = "Its config" if len(labels) == 1 else "What they share"
    return join([shown, folded(title, pairs(known), name="shared")])


def surroundings(analysis: Analysis) -> Markup:
    """Return versions, hardware and data."""
    found = environment(analysis.results)
    entries = [(name, "; ".join(map(_grouped, values))) for name, values in found.items()]
    seconds = sum(_seconds(trial) for trial in analysis.results.trials)
    return pairs([*entries, ("training time", f"{duration_text(seconds)}, all runs together")])


def limits(analysis: Analysis) -> Markup:
    """Return what the data do not show."""
    return tag("ul", *(tag("li", caveat) for caveat in analysis.caveats), class_="prose")


def repetition(analysis: Analysis) -> Markup:
    """Return the command that repeats the comparison, or each of its runs."""
    command = analysis.results.command
    if command is not None:
        return tag("pre", tag("code", command), tabindex="0")
    example = analysis.results.trials[0].path / "run.toml"
    return join(
        [
            tag("p", "Each run repeats from the config in its directory, such as:"),
            tag("pre", tag("code", f"mars train {example} --out again"), tabindex="0"),
        ]
    )


def all_runs(analysis: Analysis) -> Markup:
    """Return every run with its outcome, folded away."""
    titles = (
        *("Arm", "Rate", "Seed", "Final loss", "Lowest loss"),
        *("Steps", "Time", "Step time", "Outcome", "Directory"),
    )
    rows = [_run(arm.label, trial) for arm in analysis.results.arms for trial in arm.trials]
    shown = table(
        [(title, "") for title in titles],
        rows,
        name="runs-table",
        caption="Every run. Losses are validation losses.",
        is_sortable=True,
        text_columns=(8, 9),
    )
    return folded(f"{len(rows)} runs", shown, name="every-run")


def _run(label: str, trial: Trial) -> list[Cell]:
    losses = trial.validation.losses
    lowest = float(np.nanmin(losses)) if np.isfinite(losses).any() else None
    last = trial.final_loss
    steps = _last(trial.train.steps, trial.validation.steps)
    outcome = "diverged" if trial.is_diverged else "finished" if trial.is_complete else "unfinished"
    step_seconds = trial.step_seconds
    return [
        Cell(label),
        Cell(rate_text(trial.lr), value=trial.lr),
        Cell(str(trial.seed), value=trial.seed),
        Cell(number(last), value=last if np.isfinite(last) else None),
        Cell(DASH if lowest is None else number(lowest), value=lowest),
        Cell(f"{steps:,.0f}", value=steps),
        Cell(duration_text(_seconds(trial)), value=_seconds(trial)),
        Cell(DASH if step_seconds is None else seconds_text(step_seconds), value=step_seconds),
        Cell(outcome),
        Cell(str(trial.path)),
    ]


def _seconds(trial: Trial) -> float:
    return _last(trial.train.seconds, trial.validation.seconds)


def _last(*columns: Floats) -> float:
    """Return how far a run has come."""
    return max((float(column[-1]) for column in columns if len(column)), default=0.0)


def _read(trial: Trial, key: str) -> object:
    section, _, name = key.rpartition(".")
    return getattr(getattr(trial.config, section) if section else trial.config, name)


def _short(key: str) -> str:
    """Return a key without the section that most of what differs is in."""
    return key.removeprefix("optimizer.")


def _grouped(text: str) -> str:
    """Return a large whole number in groups of three digits, anything else as it is."""
    return f"{int(text):,}" if text.isascii() and text.isdigit() else text


def _value(value: object) -> str:
    if value is None:
        return DASH
    return value if isinstance(value, str) else as_toml(value)

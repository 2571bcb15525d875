"""``mars diagnose``: how much variance MARS removes from the gradients of a run."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mars.commands.study_options import DiagnoseOptions
from mars.diagnosis.plan import Asked, check_numbers
from mars.metrics.display import print_text
from mars.metrics.quantities import duration_text, percent_text

if TYPE_CHECKING:
    from mars.diagnosis.figures import Figures, StepFigures
    from mars.diagnosis.results import Diagnosis
    from mars.diagnosis.run import Work

Clock = Callable[[], float]

_REFRESH_SECONDS = 0.25
_LINE_SECONDS = 10.0
_BAR_WIDTH = 30
# A large batch whose noise makes up more of its squared norm is called too small.
_NOISY_SHARE = 0.1
# Clipped estimators are shown where the clip changes their variance by more.
_CLIP_SHARE = 0.005
# Averages that owe more to the start of their window are called young.
_YOUNG_SHARE = 0.25
# What the whole table needs; a narrower one leaves the errors to the file.
_FULL_WIDTH = 96


def diagnose(options: DiagnoseOptions, console: Console) -> None:
    """Do what the command line asks for."""
    asked = Asked(
        at=options.at,
        streams=options.streams,
        history=options.history,
        micro_batch_size=options.micro_batch_size,
        large_batch=options.large_batch,
    )
    check_numbers(asked)
    # Torch is imported from here on: refusals of the numbers come at once.
    from mars.diagnosis.results import write
    from mars.diagnosis.run import diagnose as measure
    from mars.training.hardware import memory_errors_in_words
    from mars.training.run_directory import RunDirectory, command

    with (
        memory_errors_in_words(way_out="lower --micro-batch-size or --history"),
        _shown(console) as observe,
    ):
        made = measure(
            RunDirectory(options.run),
            asked,
            observe=observe,
            tell=lambda line: print_text(console, Text(line)),
        )
    path = write(made, options.run)
    show(made, console)
    print_text(console, Text(f"\nWritten to {path}. Next:"))
    print_text(console, Text(f"  {command('report', str(options.run))}", style="cyan"))


def show(diagnosis: "Diagnosis", console: Console) -> None:
    """Print the figures as a table, and what is to be known about them."""
    console.print()
    console.print(_table(diagnosis, width=console.width))
    for note in _notes(diagnosis):
        print_text(console, Text(note, style="dim"))


def _table(diagnosis: "Diagnosis", *, width: int) -> Table:
    table = Table(
        title="Variance and squared error over the squared gradient, [95 %]",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        collapse_padding=True,
    )
    for left in ("\nstep", "\nlayers"):
        table.add_column(left, no_wrap=True)
    columns = ["variance\ngradient", "variance\naverage", "approx\n/ average", "exact\n/ average"]
    if width >= _FULL_WIDTH:
        columns += ["error\naverage", "error\napprox", "error\nexact"]
    for right in columns:
        table.add_column(right, justify="right", no_wrap=True)
    for step in diagnosis.steps:
        for row in _rows(step):
            table.add_row(*row[: len(table.columns)], style="bold" if row[0] else None)
    return table


def _rows(step: "StepFigures") -> Iterator[tuple[str, ...]]:
    """Yield the rows of a step: all layers, the same with the clip if it matters, each kind."""
    for number, (kind, figures) in enumerate(step.kinds.items()):
        yield _row(str(step.step) if number == 0 else "", kind, figures, mode="")
        if number == 0 and _is_clipped(figures):
            yield _row("", "clipped", figures, mode="_clipped")


def _row(step: str, kind: str, figures: "dict[str, Figures]", *, mode: str) -> tuple[str, ...]:
    gradient, average = figures["gradient"], figures["ema"]
    approx, exact = figures[f"approx{mode}"], figures[f"exact{mode}"]
    variances = (f"{gradient.variance:.3g}", f"{average.variance:.3g}")
    errors = (f"{each.error:.3g}" for each in (average, approx, exact))
    return step, kind, *variances, _ratio(approx), _ratio(exact), *errors


def _ratio(figures: "Figures") -> str:
    """Return a ratio of variances with its interval."""
    if figures.ratio_low is None or figures.ratio_high is None:
        return f"{figures.ratio_to_ema:.3g}"
    return f"{figures.ratio_to_ema:.2f} [{figures.ratio_low:.2f}, {figures.ratio_high:.2f}]"


def _is_clipped(figures: "dict[str, Figures]") -> bool:
    pairs = [(figures[mode], figures.get(f"{mode}_clipped")) for mode in ("approx", "exact")]
    return any(
        clipped and abs(clipped.variance - plain.variance) > _CLIP_SHARE * plain.variance
        for plain, clipped in pairs
    )


def _notes(diagnosis: "Diagnosis") -> Iterator[str]:
    correction, plan = diagnosis.correction, diagnosis.plan
    whose = "the run's own" if diagnosis.is_own_correction else "MARS's defaults"
    yield (
        f"{plan.streams} streams of {plan.micro_batch_size} sequences a step over {plan.history} "
        f"steps, against {plan.large_batch} sequences; beta1 {correction.beta1:g}, "
        f"gamma {correction.gamma:g}, {whose}."
    )
    yield "average = plain moving average; error = bias + variance, against the true gradient."
    for step in diagnosis.steps:
        if step.start_weight > _YOUNG_SHARE:
            yield (
                f"At step {step.step} averages look back to the run's start or the window's, and "
                f"{percent_text(step.start_weight)} of them is that start, which has no variance."
            )
        norm, noise = step.squared_norm["all"], step.squared_norm_noise["all"]
        if noise > _NOISY_SHARE * norm:
            yield (
                f"At step {step.step}, {percent_text(noise / norm)} of the large batch's squared "
                "gradient is its own noise; a larger --large-batch has less."
            )


class _Pace:
    """The time that work still takes, at the pace since it was first looked at."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first: tuple[float, int] | None = None
        self._last = clock()

    def line(self, work: "Work", *, every: float) -> str | None:
        """Return how far the work is, or None if the last answer is not so long ago."""
        now = self._clock()
        if self._first is None:
            self._first = (now, work.done)
        started, done_before = self._first
        if now - self._last < every or work.done == done_before:
            return None
        self._last = now
        left = (now - started) * (work.total - work.done) / (work.done - done_before)
        return f"{percent_text(work.done / work.total)}  {duration_text(left)} left  {work.doing}"


@contextmanager
def _shown(
    console: Console, *, clock: Clock = time.monotonic
) -> Iterator[Callable[["Work"], None]]:
    """Give what shows progress: a bar on a terminal, elsewhere a line now and then.

    The bar has no thread, so the work has the cores; the terminal is given back at the end.
    """
    pace = _Pace(clock)
    if not (console.is_interactive and console.file.isatty()):

        def print_line(work: "Work") -> None:
            if line := pace.line(work, every=_LINE_SECONDS):
                print_text(console, Text(line))

        yield print_line
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def draw(work: "Work") -> None:
            if line := pace.line(work, every=_REFRESH_SECONDS):
                grid = Table.grid(padding=(0, 1))
                bar = ProgressBar(total=work.total, completed=work.done, width=_BAR_WIDTH)
                grid.add_row(bar, line)
                live.update(grid, refresh=True)

        yield draw

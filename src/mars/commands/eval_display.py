"""What ``mars eval`` shows: progress, and the results beside the published ones."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from mars.evaluation.published import NINE, Rows, published_rows
from mars.evaluation.results import Measured, TaskResult
from mars.evaluation.tasks import Asked
from mars.metrics.display import print_text
from mars.metrics.quantities import loss_text

Tell = Callable[[str], None]
Advance = Callable[[int, int], None]
Heard = Callable[[str], Advance]

_DASH = "-"


@contextmanager
def shown(console: Console, *, quiet: bool) -> Iterator[tuple[Tell, Heard]]:
    """Give what shows lines, and progress by what is going on; a bar needs a terminal."""
    if quiet or not console.is_terminal:

        def say(line: str) -> None:
            if not quiet:
                print_text(console, Text(line))

        yield say, lambda _: lambda _done, _total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bars = {name: progress.add_task(name, total=None) for name in ("tasks", "validation")}
        for bar in bars.values():
            progress.update(bar, visible=False)

        def heard(name: str) -> Advance:
            return lambda done, total: progress.update(
                bars[name], completed=done, total=total, visible=done < total
            )

        yield (lambda line: progress.console.print(line, markup=False)), heard


def show(measured: Measured, console: Console, *, asked: Asked | None, place: Path | None) -> None:
    """Print the results, and where they are written."""
    if asked is not None:
        size, rows = published_rows(int(measured.model["parameters"]))
        # A tag has no result of its own: all are shown then, else what was named.
        is_whole = not set(asked.names) <= measured.tasks.keys()
        results = {n: each for n, each in measured.tasks.items() if is_whole or n in asked.names}
        console.print(_table(results, rows if _have_rows(results) else {}, title=_title(measured)))
        for note in _notes(results, asked, size=size):
            print_text(console, Text(note, style="dim"))
    if (found := measured.validation) is not None:
        line = (
            f"Validation loss {loss_text(found.loss)} (perplexity {found.perplexity:.4g}, "
            f"{found.bits_per_byte:.4f} bits per byte) on {found.tokens:,} tokens of "
            f"{found.corpus}, {found.context_length} at a time"
        )
        print_text(console, Text(line))
    if place is not None:
        print_text(console, Text(f"Written to {place}."))


def _title(measured: Measured) -> str:
    step = measured.common.get("step")
    return f"{measured.model['source']}" + (f", step {step}" if step is not None else "")


def _have_rows(results: Mapping[str, TaskResult]) -> bool:
    return any(name in NINE for name in results)


def _table(results: Mapping[str, TaskResult], rows: Rows, *, title: str) -> Table:
    table = Table(title=Text(title), title_justify="left", title_style="bold", box=None)
    table.add_column("task", no_wrap=True)
    table.add_column("metric", no_wrap=True)
    for name in ("%", "± error", "examples", *rows):
        table.add_column(name, justify="right", no_wrap=True)
    for name, result in results.items():
        table.add_row(*_row(name, result, rows))
    if set(NINE) <= results.keys():
        own = [results[name].metrics[results[name].primary or ""] for name in NINE]
        means = [sum(row.values()) / len(row) for row in rows.values()]
        table.add_row(
            "mean of nine", "", _percent(sum(own) / len(own)), "", "", *map(_percent, means)
        )
    return table


def _row(name: str, result: TaskResult, rows: Rows) -> Iterator[str]:
    metric = result.primary or ""
    is_fraction = metric.startswith(("acc", "exact_match", "f1"))
    value, error = result.metrics.get(metric), result.errors.get(metric)
    yield name
    yield metric
    yield _percent(value) if is_fraction else f"{value:.4g}" if value is not None else _DASH
    yield _percent(error) if is_fraction else f"{error:.2g}" if error is not None else _DASH
    yield f"{result.examples:,}"
    for row in rows.values():
        yield _percent(row.get(name))


def _percent(fraction: float | None) -> str:
    return _DASH if fraction is None else f"{100 * fraction:.2f}"


def _notes(results: Mapping[str, TaskResult], asked: Asked, *, size: str) -> Iterator[str]:
    if _have_rows(results):
        yield (
            f"OpenAI, AdamW, MARS-AdamW: the paper's {size}, 50B tokens of FineWeb-Edu (OpenAI: "
            "its own weights), zero-shot on whole test sets."
        )
    shots = {name: each.num_fewshot for name, each in results.items() if each.num_fewshot}
    if shots:
        yield "Examples shown: " + ", ".join(f"{name} {count}" for name, count in shots.items())
    cut = [name for name, each in results.items() if each.examples < each.available]
    if cut:
        yield f"--limit {asked.limit}: a part of {', '.join(cut)}; errors are of the part."

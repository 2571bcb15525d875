"""What a person sees of a preparation: a bar on a terminal, a line now and then elsewhere."""

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from mars.data import building

SECONDS_BETWEEN_LINES = 5.0


@contextlib.contextmanager
def watching(console: Console) -> Iterator[Callable[[building.Progress], None]]:
    """Yield what shows how far a preparation is."""
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("reading")

        def draw(progress: building.Progress) -> None:
            bar.update(
                task,
                completed=progress.tally.consumed,
                total=progress.total_bytes,
                description=in_words(progress),
            )

        yield draw


def _lines(console: Console) -> Callable[[building.Progress], None]:
    told = time.monotonic()

    def tell(progress: building.Progress) -> None:
        nonlocal told
        if time.monotonic() - told >= SECONDS_BETWEEN_LINES:
            told = time.monotonic()
            console.print(in_words(progress), markup=False, highlight=False, soft_wrap=True)

    return tell


def in_words(progress: building.Progress) -> str:
    """Return how far a preparation is in one line."""
    done, total = progress.tally.consumed, progress.total_bytes
    left = progress.seconds_left
    return ", ".join(
        [
            f"{done / total:.0%} of {total / 1e6:,.0f} MB" if total else "nothing to read",
            f"{progress.tally.documents:,} documents",
            f"{progress.text_bytes / 1e6 / max(progress.seconds, 1e-9):,.1f} MB of text a second",
            "no end known" if left is None else f"{timedelta(seconds=round(left))} left",
        ]
    )

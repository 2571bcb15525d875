"""A run on a terminal, or as lines in a log.

Neither display has a thread of its own: training has the cores to itself, and what is shown is as
old as the last record.
"""

import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from mars.metrics.display import (
    Display,
    Header,
    Summary,
    header_text,
    print_text,
    printable,
    summary_text,
)
from mars.metrics.layout import frame, train_line, validation_line
from mars.metrics.progress import Progress
from mars.metrics.record import Record

Clock = Callable[[], float]

_REFRESH_SECONDS = 0.25
_LINE_SECONDS = 5.0


def make_display(console: Console, *, clock: Clock = time.monotonic) -> Display:
    """Return a live display where the console can redraw and show it, else plain lines."""
    # A variable that forces colours makes rich take a log file for a terminal: ask the file too.
    redraws = console.is_interactive and console.file.isatty()
    if redraws and not console.options.ascii_only:
        return LiveDisplay(console, clock=clock)
    return PlainDisplay(console, clock=clock)


class PlainDisplay:
    """A line for the first, the last and every validation record, in between one in 5 s."""

    def __init__(self, console: Console, *, clock: Clock = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._progress = Progress(total_steps=0)
        self._last_line: float | None = None

    def start(self, header: Header) -> None:
        """Print the header."""
        self._progress = _progress(header)
        print_text(self._console, header_text(header))

    def train(self, record: Record) -> None:
        """Print a line, if the last one is some time ago."""
        self._progress.train(record)
        now = self._clock()
        due = self._last_line is None or now - self._last_line >= _LINE_SECONDS
        if due or record.step >= self._progress.total_steps:
            self._last_line = now
            print_text(self._console, Text(train_line(self._progress, record)))

    def validation(self, record: Record) -> None:
        """Print a line."""
        self._progress.validation(record)
        print_text(self._console, Text(validation_line(self._progress, record)))

    def message(self, text: str) -> None:
        """Print the text."""
        print_text(self._console, Text(text))

    def finish(self, summary: Summary) -> None:
        """Print the summary."""
        print_text(self._console, summary_text(summary))

    def close(self) -> None:
        """Do nothing: nothing is held."""


class LiveDisplay:
    """A progress bar and a table, drawn again in place at most four times a second."""

    def __init__(self, console: Console, *, clock: Clock = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._progress = Progress(total_steps=0)
        self._checkpoints = ""
        self._live = Live(console=console, auto_refresh=False)
        self._last_refresh: float | None = None

    def start(self, header: Header) -> None:
        """Print the header; the bar appears below it."""
        self._progress = _progress(header)
        self._checkpoints = printable(header.checkpoints, encoding=self._console.encoding)
        print_text(self._console, header_text(header))
        self._live.start()
        self._refresh()

    def train(self, record: Record) -> None:
        """Take the record, and draw if the last time is long enough ago."""
        self._progress.train(record)
        if self._last_refresh is None or self._clock() - self._last_refresh >= _REFRESH_SECONDS:
            self._refresh()

    def validation(self, record: Record) -> None:
        """Take the record, and draw."""
        self._progress.validation(record)
        self._refresh()

    def message(self, text: str) -> None:
        """Print the text above the bar."""
        print_text(self._console, Text(text))

    def finish(self, summary: Summary) -> None:
        """Draw for the last time and print the summary below."""
        self._refresh()
        self.close()
        print_text(self._console, Text("\n") + summary_text(summary))

    def close(self) -> None:
        """Stop drawing and show the cursor again."""
        self._live.stop()

    def _refresh(self) -> None:
        self._last_refresh = self._clock()
        width = self._console.width
        self._live.update(frame(self._progress, self._checkpoints, width=width), refresh=True)


def _progress(header: Header) -> Progress:
    return Progress(total_steps=header.total_steps, first_step=header.resumed_from or 0)

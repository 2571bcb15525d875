"""A comparison on a terminal, or as lines in a log."""

import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from mars.comparison.board import Board, State
from mars.comparison.plan import PlannedArm
from mars.comparison.runner import View
from mars.metrics.display import print_text
from mars.metrics.quantities import duration_text, loss_text

Clock = Callable[[], float]

_REFRESH_SECONDS = 0.25
_HEADINGS = ("arm", "rates", "runs", "lost", "best so far")
_NARROWEST_BAR, _WIDEST_BAR = 8, 24
# Rate, bar, percentage and loss.
_RUNNING_WIDTH = 11 + _NARROWEST_BAR + 5 + 8
# As wide as it gets, so that what stands beside it does not move.
_BEST_WIDTH = len("2.345 at 0.0012")


def make_view(console: Console, *, clock: Clock = time.monotonic) -> View:
    """Return a live table where the console can redraw and show it, else plain lines."""
    # A variable that forces colours makes rich take a log file for a terminal: ask the file too.
    redraws = console.is_interactive and console.file.isatty()
    if redraws and not console.options.ascii_only:
        return LiveView(console, clock=clock)
    return PlainView(console)


class PlainView:
    """A line for each run that is over, and one that says how long all will take."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._has_estimated = False

    def update(self, board: Board) -> None:
        """Print how long it will take, once that is known."""
        if not self._has_estimated and board.is_estimable:
            self._has_estimated = True
            self.message(estimate_line(board))

    def ended(self, board: Board, state: State) -> None:
        """Print a line about the run."""
        left = board.seconds_left()
        eta = "" if left is None or board.over == board.total else f"  eta {duration_text(left)}"
        self.message(f"{board.over}/{board.total}  {ended_line(state)}{eta}")

    def message(self, text: str) -> None:
        """Print the text."""
        print_text(self._console, Text(text))

    def close(self) -> None:
        """Do nothing: nothing is held."""


class LiveView:
    """A table with a row an arm, drawn again in place at most four times a second."""

    def __init__(self, console: Console, *, clock: Clock = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._live = Live(console=console, auto_refresh=False)
        self._last_refresh: float | None = None
        self._lines = PlainView(console)

    def update(self, board: Board) -> None:
        """Draw, if the last time is long enough ago; print how long it will take, once."""
        self._lines.update(board)
        now = self._clock()
        is_early = self._last_refresh is not None and now - self._last_refresh < _REFRESH_SECONDS
        if is_early and board.over < board.total:
            return
        self._last_refresh = now
        self._live.start()
        self._live.update(frame(board, width=self._console.width), refresh=True)

    def ended(self, board: Board, state: State) -> None:
        """Print what has failed above the table, which shows the rest."""
        if state.status == "failed":
            self._lines.ended(board, state)

    def message(self, text: str) -> None:
        """Print the text above the table."""
        self._lines.message(text)

    def close(self) -> None:
        """Stop drawing and show the cursor again; the last table stays."""
        self._live.stop()


def estimate_line(board: Board) -> str:
    """Return how long a comparison takes in all, as its first steps suggest."""
    seconds = board.elapsed + (board.seconds_left() or 0.0)
    runs = board.total - board.reused
    processes = min(board.processes, runs)
    there = f" beside {board.reused} that are finished" if board.reused else ""
    where = f"{processes} process{'es' if processes != 1 else ''}"
    what = f"{runs} run{'s' if runs != 1 else ''}{there}"
    return f"{what}, about {_time_in_words(seconds)} on {where} (from the first steps)"


def ended_line(state: State) -> str:
    """Return how a run ended."""
    trial = state.trial
    if state.status == "failed":
        told = f"failed: {state.reason}"
    elif state.status == "diverged":
        told = f"diverged at step {state.step}"
    else:
        told = f"validation loss {loss_text(state.validation)}"
    took = "" if state.seconds is None else f"  in {duration_text(state.seconds)}"
    return f"{trial.arm}  lr {trial.lr:g}  seed {trial.seed}  {told}{took}"


def frame(board: Board, *, width: int) -> Text:
    """Return what a person sees of a running comparison: the total, then a row an arm.

    Running trials stand beside their arm where there is room, else below it. The total comes
    first: where the arms are too many for the terminal, it is the end that goes.
    """
    rows = [_HEADINGS, *(_cells(board, arm) for arm in board.plan.arms)]
    shown = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in shown]
    widths[-1] = max(widths[-1], _BEST_WIDTH)
    widths[0] = min(widths[0], max(12, width - sum(widths[1:]) - 2 * len(widths)))
    start = sum(widths) + 2 * len(widths)
    is_beside = width - start >= _RUNNING_WIDTH
    indent = start if is_beside else 2
    bar_width = min(_WIDEST_BAR, width - indent - _RUNNING_WIDTH + _NARROWEST_BAR)
    heading, *lines = (_row(cells, widths) for cells in zip(*shown, strict=True))
    heading.stylize("dim")
    made = [_total(board, width=width), heading]
    for arm, line in zip(board.plan.arms, lines, strict=True):
        states = [state for state in board.of(arm.label) if state.status == "running"]
        running = [_running(state, bar_width=bar_width) for state in states]
        beside = running.pop(0) if is_beside and running else Text()
        made += [line + beside, *(Text(" " * indent) + each for each in running)]
    return Text("\n", no_wrap=True, overflow="crop").join(made)


def _cells(board: Board, arm: PlannedArm) -> tuple[str, ...]:
    """Return what is known of an arm, in the order of the headings; empty is not shown."""
    states = board.of(arm.label)
    over = sum(state.is_over for state in states)
    lost = sum(state.status in ("diverged", "failed") for state in states)
    return (
        arm.label,
        f"{board.rates_over(arm)}/{len(arm.rates)}",
        f"{over}/{len(states) + board.expected_of(arm)}",
        str(lost or ""),
        _best(states),
    )


def _row(cells: tuple[str, ...], widths: list[int]) -> Text:
    """Return cells as a line: the label and the best on the left, numbers on the right."""
    label = cells[0] if len(cells[0]) <= widths[0] else f"{cells[0][: widths[0] - 1]}…"
    *numbers, best = zip(cells[1:], widths[1:], strict=True)
    middle = (f"{cell:>{width}}" for cell, width in numbers)
    return Text("  ".join((f"{label:{widths[0]}}", *middle, f"{best[0]:{best[1]}}", "")))


def _running(state: State, *, bar_width: int) -> Text:
    done = bar_width * state.step // state.steps
    return Text.assemble(
        f"lr {state.trial.lr:<7.4g} ",
        ("━" * done, "green"),
        ("─" * (bar_width - done), "bright_black"),
        f" {100 * state.step // state.steps:3}%",
        f" {loss_text(state.loss)}",
    )


def _best(states: list[State]) -> str:
    known = [s for s in states if s.validation is not None and s.status != "diverged"]
    if not known:
        return "-"
    best = min(known, key=lambda state: state.validation or 0.0)
    return f"{loss_text(best.validation)} at {best.trial.lr:g}"


def _total(board: Board, *, width: int) -> Text:
    left = board.seconds_left() if board.is_estimable else None
    words = f" {board.over}/{board.total} runs  {duration_text(board.elapsed)}"
    if left is not None and board.over < board.total:
        words += f"  about {duration_text(left)} left of {duration_text(board.elapsed + left)}"
    room = max(0, min(width, 100) - len(words) - 1)
    done = room * board.over // max(board.total, 1)
    return Text.assemble(
        ("━" * done, "green"), ("─" * (room - done), "bright_black"), (words, "bold")
    )


def _time_in_words(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} seconds"
    if seconds < 5400:
        return f"{round(seconds / 60)} minutes"
    return f"{seconds / 3600:.1f} hours"

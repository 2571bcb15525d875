"""What a person sees of a comparison: on a terminal of any width, and in a log."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from comparison.comparisons import make_plan
from mars.comparison.board import Board
from mars.comparison.live import (
    LiveView,
    PlainView,
    ended_line,
    estimate_line,
    frame,
    make_view,
)
from mars.comparison.messages import Event
from mars.comparison.plan import search_trials


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def board(tmp_path, clock):
    """A comparison in which one run is finished, one diverged, one failed and one half done."""
    plan = make_plan(tmp_path, tmp_path / "corpus", seeds=(0, 1, 2), steps=40)
    made = Board(plan, clock=clock)
    made.plan_trials(search_trials(plan))
    made.processes = 2
    return made


def go_on(board: Board, clock: Clock) -> None:
    """Let the four trials of the search get somewhere."""
    (mars, adamw, mars_again, adamw_again) = (s.trial.path for s in board.states.values())
    for path in (mars, adamw, mars_again):
        board.states[path].status = "running"
        board.take(path, Event(kind="started"))
        for number in (1, 10, 20):
            told = Event(kind="train", step=number, loss=2.3456, seconds=number * 0.5)
            board.take(path, told)
    clock.now = 20.0
    board.take(mars, Event(kind="finished", step=40, loss=1.9876))
    board.take(adamw, Event(kind="finished", step=31, loss=90.0, is_diverged=True))
    board.take(mars_again, Event(kind="validation", step=20, loss=2.5))
    board.take(adamw_again, Event(kind="failed", reason="the disk is full"))


def test_a_row_says_how_far_an_arm_is_and_what_is_best(board, clock):
    go_on(board, clock)
    total, heading, mars, adamw = frame(board, width=80).plain.split("\n")
    assert heading.split() == ["arm", "rates", "runs", "lost", "best", "so", "far"]
    assert mars.split()[:6] == ["mars-adamw", "1/2", "1/4", "1.988", "at", "0.01"]
    assert mars.split()[6:8] == ["lr", "0.02"]
    assert mars.endswith(" 50% 2.346")
    assert adamw.split() == ["adamw", "2/2", "2/4", "2", "-"]
    assert " 3/8 runs  0:20" in total


def test_the_total_says_what_is_left_once_that_is_known(board, clock):
    assert frame(board, width=80).plain.split("\n")[0].endswith(" 0/8 runs  0:00")
    go_on(board, clock)
    left = board.seconds_left()
    # 20 steps of half a second, and four runs of 40 on two processes.
    assert left == pytest.approx(10 + 40)
    assert frame(board, width=80).plain.split("\n")[0].endswith("about 0:50 left of 1:10")


@pytest.mark.parametrize("width", [80, 81, 95, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_bars_are_full(width, board, clock):
    for _ in range(2):
        lines = frame(board, width=width).plain.split("\n")
        assert max(map(len, lines)) <= width
        assert len(lines[0]) == min(width, 100) - 1
        go_on(board, clock)
    bar = [character for character in lines[2] if character in "━─"]
    assert 8 <= len(bar) <= 24
    assert bar.count("━") == len(bar) // 2


def test_running_trials_stand_below_an_arm_whose_label_leaves_no_room(tmp_path, clock):
    plan = make_plan(tmp_path, tmp_path / "corpus")
    label = "mars-adamw, gamma 0.025, betas 0.95/0.99"
    arms = (replace(plan.arms[0], label=label), plan.arms[1])
    plan = replace(plan, arms=arms)
    board = Board(plan, clock=clock)
    board.plan_trials(search_trials(plan))
    go_on(board, clock)
    lines = frame(board, width=80).plain.split("\n")
    assert lines[2].startswith(f"{label}  ")
    assert lines[3].startswith("  lr 0.02    ━━━━━")
    assert lines[3].endswith(" 50% 2.346")
    assert len(lines) == 5
    wide = frame(board, width=130).plain.split("\n")
    assert len(wide) == 4
    assert wide[2].endswith(" 50% 2.346")


def test_a_label_that_fits_nowhere_is_cut(tmp_path, clock):
    plan = make_plan(tmp_path, tmp_path / "corpus")
    arms = (replace(plan.arms[0], label="x" * 200), plan.arms[1])
    board = Board(replace(plan, arms=arms), clock=clock)
    board.plan_trials(search_trials(board.plan))
    lines = frame(board, width=80).plain.split("\n")
    assert max(map(len, lines)) <= 80
    assert "xxx…  " in lines[2]


def test_the_estimate_is_one_line_in_words(board, clock):
    go_on(board, clock)
    assert estimate_line(board) == (
        "8 runs, about 70 seconds on 2 processes (from the first steps)"
    )
    clock.now += 3600
    assert "about 61 minutes" in estimate_line(board)
    clock.now += 3600
    assert "about 2.0 hours" in estimate_line(board)
    board.processes = 1
    assert "on 1 process (" in estimate_line(board)
    board.processes = 64
    assert "on 8 processes (" in estimate_line(board)
    board.take(next(reversed(board.states)), Event(kind="finished", step=40, loss=1.0))
    assert estimate_line(board).startswith("7 runs beside 1 that are finished, about ")


def test_a_log_has_a_line_for_each_run_that_is_over_and_one_estimate(board, clock):
    console = Console(file=io.StringIO(), width=80)
    view = PlainView(console)
    view.update(board)
    assert console.file.getvalue() == ""
    go_on(board, clock)
    view.update(board)
    view.update(board)
    for state in board.states.values():
        if state.is_over:
            view.ended(board, state)
    lines = console.file.getvalue().splitlines()
    assert lines == [
        "8 runs, about 70 seconds on 2 processes (from the first steps)",
        "3/8  mars-adamw  lr 0.01  seed 0  validation loss 1.988  in 0:20  eta 0:50",
        "3/8  adamw  lr 0.01  seed 0  diverged at step 31  in 0:20  eta 0:50",
        "3/8  adamw  lr 1000  seed 0  failed: the disk is full  eta 0:50",
    ]


def test_a_run_that_was_there_has_no_duration(board):
    path = next(iter(board.states))
    state = board.take(path, Event(kind="finished", step=40, loss=1.0))
    assert ended_line(state) == "mars-adamw  lr 0.01  seed 0  validation loss 1.000"


def test_the_live_table_is_drawn_four_times_a_second_and_stays_at_the_end(board):
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    now = Clock()
    view = LiveView(console, clock=now)
    drawn = []
    for at in (0.0, 0.1, 0.2, 0.26, 0.3, 0.52):
        now.now = at
        before = len(console.file.getvalue())
        view.update(board)
        drawn.append(len(console.file.getvalue()) > before)
    assert drawn == [True, False, False, True, False, True]
    failed = board.take(next(iter(board.states)), Event(kind="failed", reason="why"))
    view.ended(board, failed)
    view.message("a line")
    view.close()
    view.close()
    shown = console.file.getvalue()
    assert "failed: why" in shown
    assert "a line" in shown
    assert shown.endswith("\x1b[?25h")  # the cursor is back


def test_the_last_state_is_drawn_however_soon(board):
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    view = LiveView(console, clock=lambda: 0.0)
    view.update(board)
    for path in board.states:
        board.take(path, Event(kind="finished", step=40, loss=1.0))
    board.expect_no_more()
    view.update(board)
    view.close()
    assert " 4/4 runs" in console.file.getvalue()


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_only_a_terminal_that_can_redraw_gets_the_live_table(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(make_view(Console(file=Terminal())), LiveView)
    assert isinstance(make_view(Console(file=io.StringIO())), PlainView)
    # A variable that forces colours makes no terminal of a file.
    assert isinstance(make_view(Console(file=io.StringIO(), force_terminal=True)), PlainView)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_view(Console(file=Terminal())), PlainView)

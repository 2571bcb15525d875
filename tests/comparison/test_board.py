"""How far a comparison is, and how long the rest will take."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comparison.comparisons import make_plan
from mars.comparison.board import Board, Pace, makespan
from mars.comparison.messages import Event, Job
from mars.comparison.plan import confirming_trials, search_trials

seconds = st.floats(0, 1e6)


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def board(tmp_path, clock):
    plan = make_plan(tmp_path, tmp_path / "corpus", seeds=(0, 1, 2), steps=40)
    made = Board(plan, clock=clock)
    made.plan_trials(search_trials(plan))
    return made


def start(board: Board, path: str, *, step: int = 0) -> None:
    board.states[path].status = "running"
    board.take(path, Event(kind="started", step=step))


def step(board: Board, path: str, number: int, at: float) -> None:
    board.take(path, Event(kind="train", step=number, loss=2.0, seconds=at))


def finish(board: Board, path: str, **fields) -> None:
    board.take(path, Event(**{"kind": "finished", "step": 40, "loss": 1.5, **fields}))


def paths(board: Board, arm: str) -> list[str]:
    return [state.trial.path for state in board.of(arm)]


@given(st.lists(seconds), st.lists(seconds), st.integers(1, 8))
def test_a_makespan_lies_between_its_bounds(running, waiting, processes):
    running = running[:processes]
    found = makespan(running, waiting, processes=processes)
    work = sum(running) + sum(waiting)
    longest = max([*running, *waiting], default=0.0)
    # Graham's bounds for taking what is next whenever somebody is free.
    assert found >= max(longest, work / processes) * (1 - 1e-12)
    assert found <= (work / processes + longest) * (1 + 1e-12)


@given(st.lists(seconds, max_size=20))
def test_one_process_takes_the_sum(waiting):
    assert makespan([], waiting, processes=1) == pytest.approx(sum(waiting))


def test_no_order_of_three_beats_the_best_schedule_by_more_than_a_third():
    for order in permutations((3.0, 3.0, 2.0, 2.0, 2.0)):
        assert makespan([], order, processes=2) in (6.0, 7.0, 8.0)
    assert makespan([1.0, 5.0], [3.0], processes=2) == 5.0


@given(st.integers(1, 50), st.floats(1e-3, 10), st.floats(0, 100))
def test_a_steady_pace_is_found_whatever_the_first_step_took(log_every, step_seconds, first):
    pace = Pace()
    for number in (1, *range(log_every, 401, log_every)):
        pace.take(number, first + (number - 1) * step_seconds)
    assert pace.step_seconds == pytest.approx(step_seconds, rel=1e-6)
    assert pace.is_known


def test_steps_that_compile_do_not_count_once_there_are_others():
    pace = Pace()
    pace.take(1, 30.0)
    assert pace.step_seconds is None
    pace.take(10, 61.0)  # the second step compiled too
    assert pace.step_seconds == pytest.approx(31 / 9)
    pace.take(20, 62.0)
    assert pace.step_seconds == pytest.approx(0.1)


def test_a_pace_is_known_after_twenty_steps_or_five_seconds():
    for number, at, is_known in (
        (19, 2.0, False),
        (20, 2.0, True),
        (3, 5.9, False),
        (3, 6.0, True),
    ):
        pace = Pace()
        pace.take(1, 1.0)
        pace.take(number, at)
        assert pace.is_known == is_known
    assert not Pace().is_known


def test_all_runs_are_counted_those_of_the_second_phase_too(board):
    # Two arms of two rates on one seed, then two arms on two seeds.
    assert (board.total, board.over) == (8, 0)
    assert [board.expected_of(arm) for arm in board.plan.arms] == [2, 2]
    board.plan_trials(confirming_trials(board.plan, {"adamw": 0.01}))
    board.expect_no_more()
    assert board.total == 6
    assert [board.expected_of(arm) for arm in board.plan.arms] == [0, 0]


def test_planning_a_trial_again_keeps_what_is_known_of_it(board):
    finish(board, paths(board, "adamw")[0])
    board.plan_trials(search_trials(board.plan))
    assert board.over == 1


def test_a_rate_is_over_when_all_its_search_is(tmp_path):
    plan = make_plan(tmp_path, tmp_path / "corpus", seeds=(0, 1), search_seeds=2)
    board = Board(plan)
    board.plan_trials(search_trials(plan))
    arm = plan.arms[1]
    first, second, *_ = [s.trial.path for s in board.of("adamw") if s.trial.lr == 0.01]
    assert board.rates_over(arm) == 0
    finish(board, first)
    assert board.rates_over(arm) == 0
    board.take(second, Event(kind="failed", reason="x"))
    assert board.rates_over(arm) == 1


def test_there_is_no_estimate_before_every_running_trial_has_shown_its_pace(board):
    one, two = paths(board, "adamw")[0], paths(board, "mars-adamw")[0]
    assert (board.is_estimable, board.seconds_left()) == (False, None)
    start(board, one)
    step(board, one, 1, 0.1)
    assert board.seconds_left() is None
    step(board, one, 20, 2.0)
    assert board.is_estimable
    start(board, two)
    assert not board.is_estimable
    step(board, two, 1, 0.2)
    step(board, two, 20, 4.0)
    assert board.is_estimable


def test_the_estimate_counts_every_run_to_come_at_the_pace_of_its_arm(board):
    adamw, mars = paths(board, "adamw"), paths(board, "mars-adamw")
    start(board, adamw[0])
    for number in (1, 10, 20):
        step(board, adamw[0], number, number * 0.1)
    # Half of one run, then 3 of the search and 4 of the second phase, as long as all known arms.
    assert board.seconds_left() == pytest.approx(0.1 * (20 + 3 * 40 + 4 * 40))
    board.processes = 2
    start(board, mars[0])
    for number in (1, 10, 20):
        step(board, mars[0], number, number * 0.3)
    # 2 s and 6 s are left of those that run; 12 s start at 2 and 4 s at 6. Then 12, 4, 12, 4.
    assert board.seconds_left() == pytest.approx(14.0 + 16.0)


def test_a_finished_trial_corrects_the_pace_by_all_that_it_took(board, clock):
    path, other = paths(board, "adamw")
    start(board, path)
    step(board, path, 1, 0.1)
    step(board, path, 20, 2.0)
    clock.now += 8.0  # validations and checkpoints included
    finish(board, path)
    assert board.states[path].step_seconds == pytest.approx(0.2)
    start(board, other)
    step(board, other, 1, 0.1)
    step(board, other, 20, 2.0)
    board.expect_no_more()
    assert board.seconds_left() == pytest.approx(0.2 * (20 + 2 * 40))


def test_a_resumed_trial_is_timed_over_the_steps_it_made_here(board, clock):
    path = paths(board, "adamw")[0]
    start(board, path, step=30)
    clock.now += 5.0
    finish(board, path)
    assert board.states[path].step_seconds == pytest.approx(0.5)
    assert board.reused == 0


def test_trials_that_were_there_and_diverged_ones_say_nothing_of_the_pace(board, clock):
    there, diverged = paths(board, "adamw")
    finish(board, there)
    start(board, diverged)
    step(board, diverged, 1, 0.1)
    step(board, diverged, 20, 2.0)
    clock.now += 1.0
    finish(board, diverged, step=25, is_diverged=True)
    assert board.states[diverged].status == "diverged"
    assert (board.reused, board.over, board.seconds_left()) == (1, 2, None)


def test_elapsed_time_is_that_of_the_clock(board, clock):
    clock.now += 12.5
    assert board.elapsed == 12.5


@given(
    st.builds(
        Event,
        kind=st.sampled_from(["train", "failed"]),
        step=st.integers(0, 10**9),
        loss=st.none() | st.floats(allow_nan=False, allow_infinity=False),
        reason=st.text(),
    )
)
def test_events_and_jobs_survive_the_pipe(event):
    line = event.as_json()
    assert "\n" not in line
    assert Event.from_json(line) == event
    job = Job(path=event.reason, config=event.reason, keep_checkpoints=True)
    assert Job.from_json(job.as_json().encode()) == job
    assert "\n" not in job.as_json()


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_not_finite_arrives_as_unknown(loss):
    assert Event.from_json(Event(kind="train", loss=loss).as_json()).loss is None

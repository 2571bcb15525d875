"""What is asked for: defaults, and one-line refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mars.config.errors import RefusedError
from mars.config.schema import Optimizer, Run, Training
from mars.diagnosis.estimators import correction_of
from mars.diagnosis.plan import Asked, check_numbers, default_history, make_plan
from mars.diagnosis.replay import sequences_a_step

CONFIG = Run(training=Training(steps=500, batch_size=16))


def planned(config: Run = CONFIG, *, reached: int = 500, beta1: float = 0.95, **asked):
    return make_plan(Asked(**asked), config, reached=reached, beta1=beta1)


def test_the_defaults_are_those_of_the_documentation():
    plan = planned()
    assert plan.steps == (50, 250, 500)
    assert (plan.streams, plan.history) == (16, 40)
    assert (plan.micro_batch_size, plan.large_batch) == (16, 2048)


@pytest.mark.parametrize(
    ("reached", "steps"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (40, (4, 20, 40))]
)
def test_a_run_that_has_not_come_far_is_looked_at_on_its_way(reached, steps):
    assert planned(reached=reached).steps == steps


@pytest.mark.parametrize(
    ("beta1", "steps"), [(0.0, 2), (0.5, 4), (0.9, 20), (0.95, 40), (0.98, 100), (0.99, 200)]
)
def test_the_default_history_forgets_all_but_an_eighth(beta1, steps):
    assert default_history(beta1) == steps
    # (1 - x)^(2 / x) stays below e^-2.
    assert beta1**steps < 0.1354


def test_no_history_is_longer_than_the_way_to_the_last_step():
    plan = planned(at="7,3", history=10)
    assert plan.steps == (3, 7)
    assert plan.history == 7
    assert [plan.window(step) for step in plan.steps] == [3, 7]


def test_the_work_of_a_step_is_two_gradients_a_point_and_two_large_batches():
    plan = planned(at="100", streams=3, history=5, micro_batch_size=2, large_batch=64)
    assert plan.sequences(100) == 2 * 3 * 5 * 2 + 2 * 64


@pytest.mark.parametrize("exact", [False, True])
def test_a_step_of_exact_mode_counts_twice(exact):
    config = Run(optimizer=Optimizer(exact=exact), training=Training(batch_size=6))
    assert sequences_a_step(config) == (12 if exact else 6)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=8))
def test_steps_are_taken_once_each_in_order(steps):
    at = ", ".join(map(str, steps))
    assert planned(at=at).steps == tuple(sorted(set(steps)))


@pytest.mark.parametrize("at", ["0", "", "a", "1,,2", "-5", "1.5", "1e3", "50,", "²", "5 0"])
def test_what_is_no_list_of_steps_is_refused(at):
    with pytest.raises(RefusedError, match="--at takes steps from 1 on, separated by commas"):
        check_numbers(Asked(at=at))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"streams": 1}, "--streams 1 must be at least 2"),
        ({"streams": -3}, "--streams -3 must be at least 2"),
        ({"history": 0}, "--history 0 must be at least 1"),
        ({"micro_batch_size": 0}, "--micro-batch-size 0 must be at least 1"),
        ({"large_batch": 0}, "--large-batch 0 must be at least 1"),
        ({"large_batch": 31}, "--large-batch 31 must be at least twice the micro-batch of 16"),
        ({"micro_batch_size": 1025}, "--large-batch 2048 must be at least twice"),
        ({"at": "50,501"}, "--at 501 lies beyond step 500, which is as far as the run has come"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(asked, words):
    with pytest.raises(RefusedError) as refusal:
        planned(**asked)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_run_without_a_step_is_refused():
    with pytest.raises(RefusedError, match="has not taken a step yet"):
        planned(reached=0)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (Optimizer(), (0.95, 0.025, "tensor", 1.0)),
        (Optimizer(name="adamw", betas=(0.9, 0.95)), (0.95, 0.025, "tensor", 1.0)),
        (Optimizer(name="muon"), (0.95, 0.025, "tensor", 1.0)),
        (
            Optimizer(name="mars-m", betas=(0.9, 0.9), gamma=0.1, clip="global", max_norm=2.0),
            (0.9, 0.1, "global", 2.0),
        ),
        (Optimizer(name="mars-lion", gamma=0.0, clip="none"), (0.95, 0.0, None, 1.0)),
    ],
)
def test_the_correction_is_the_runs_own_or_mars_defaults(optimizer, expected):
    made = correction_of(optimizer)
    assert (made.beta1, made.gamma, made.clip, made.max_norm) == expected
    assert made.weight == pytest.approx(made.gamma * made.beta1 / (1 - made.beta1))

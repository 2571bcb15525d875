import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mars.metrics.progress import Curve, Progress
from mars.metrics.record import Record


def record(step, *, split="train", loss=2.0, seconds=None, unit="tokens", **extra):
    return Record(
        step=step,
        split=split,
        loss=loss,
        lr=0.1,
        seconds=step * 2.0 if seconds is None else seconds,
        count=step * 100,
        unit=unit,
        extra=extra,
    )


def test_nothing_is_known_before_the_first_record():
    progress = Progress(total_steps=10)
    assert (progress.step, progress.seconds(), progress.seconds_left()) == (0, None, None)
    assert progress.per_second() is None


def test_time_left_follows_the_pace_since_the_first_record():
    progress = Progress(total_steps=100)
    # The first step took 50 s, as a compilation does; the pace is 2 s a step.
    for step in range(1, 11):
        progress.train(record(step, seconds=48 + 2.0 * step))
    assert progress.seconds_left() == 90 * 2.0
    assert progress.seconds() == 68


def test_a_resumed_run_counts_only_its_own_steps():
    progress = Progress(total_steps=1000, first_step=900)
    assert progress.step == 900
    progress.train(record(910))
    progress.train(record(920))
    assert progress.seconds_left() == 80 * 2.0


def test_the_time_of_validations_counts():
    progress = Progress(total_steps=20)
    progress.train(record(5, seconds=5.0))
    progress.train(record(10, seconds=10.0))
    progress.validation(record(10, split="val", seconds=15.0))
    assert progress.seconds_left() == 10 * (15 - 5) / 5


def test_time_left_never_is_negative():
    progress = Progress(total_steps=2)
    for step in (1, 2, 3):
        progress.train(record(step))
    assert progress.seconds_left() == 0


@pytest.mark.parametrize("unit", ["tokens", "samples"])
def test_a_measured_speed_goes_before_the_pace(unit):
    progress = Progress(total_steps=10)
    progress.train(record(1, unit=unit))
    progress.train(record(2, unit=unit))
    assert progress.per_second() == 50
    progress.train(record(3, unit=unit, **{f"{unit}_per_second": 77.0}))
    assert progress.per_second() == 77


def test_the_best_validation_is_the_lowest_finite_one():
    progress = Progress(total_steps=10)
    for step, loss in enumerate([math.nan, 3.0, 2.0, math.nan, 2.5, -math.inf]):
        progress.validation(record(step, split="val", loss=loss))
    assert (progress.best_validation.step, progress.best_validation.loss) == (2, 2.0)
    assert progress.last_validation.step == 5


def test_the_smoothed_loss_starts_at_the_first_and_ignores_what_is_not_finite():
    progress = Progress(total_steps=10)
    progress.train(record(1, loss=math.nan))
    assert progress.smoothed_loss is None
    progress.train(record(2, loss=4.0))
    progress.train(record(3, loss=3.0))
    progress.train(record(4, loss=math.inf))
    assert progress.smoothed_loss == pytest.approx(0.9 * 4 + 0.1 * 3)
    assert progress.last_train.loss == math.inf


@given(st.integers(1, 12).map(lambda power: 2**power), st.integers(1, 80))
def test_a_curve_keeps_the_mean_of_a_run_in_bounded_room(count, width):
    curve = Curve(points=8)
    for value in range(count):
        curve.add(float(value))
    values = curve.values(width)
    assert 1 <= len(values) <= min(width, 15)
    assert values == sorted(values)
    if count % 16 == 0 and width >= 16:  # no group is left open
        assert sum(values) / len(values) == pytest.approx((count - 1) / 2)


def test_a_curve_without_room_has_one_value():
    curve = Curve()
    for value in (1.0, 2.0, 3.0, 6.0):
        curve.add(value)
    assert curve.values(0) == [3.0]
    assert curve.values(-5) == [3.0]
    assert curve.values(4) == [1.0, 2.0, 3.0, 6.0]

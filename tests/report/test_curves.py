"""The line of an arm: the mean of its seeds at its best rate, and nothing else."""

import math
from dataclasses import replace

import numpy as np
import pytest

from mars.report.analysis import analyze
from mars.report.curves import (
    measure_line,
    shown_rate,
    shown_trials,
    training_line,
    validation_line,
    window,
)
from mars.report.trials import Curve
from report.example import FINALS, in_memory
from report.synthetic import Shape, make_config, make_results, make_trial

MARS = list(FINALS).index("mars-adamw")


def one_arm(finals, **shape):
    shapes = {"adamw": Shape(**shape)}
    (arm,) = analyze(make_results({"adamw": finals}, baseline=None, shapes=shapes)).arms
    return arm


def test_the_line_is_the_mean_over_seeds_at_the_best_rate():
    line = validation_line(in_memory().arms[MARS])
    best = FINALS["mars-adamw"][0.006]
    assert line.losses[-1] == pytest.approx(np.mean(list(best.values())))
    assert (line.low[-1], line.high[-1]) == (min(best.values()), max(best.values()))
    assert line.seeds == 3
    assert line.steps.tolist() == [50.0 * i for i in range(1, 11)]
    assert line.along("seconds") is line.seconds


def test_one_seed_has_no_band():
    line = validation_line(one_arm({0.002: {0: 1.5}}))
    assert line.low is None
    assert line.high is None
    assert line.losses[-1] == 1.5


def test_a_diverged_seed_is_not_in_the_mean():
    arm = one_arm({0.002: {0: 1.5, 1: math.inf, 2: 1.7}})
    assert [trial.seed for trial in shown_trials(arm)] == [0, 2]
    assert validation_line(arm).losses[-1] == pytest.approx(1.6)


def test_an_arm_that_diverged_everywhere_is_drawn_as_far_as_it_went():
    arm = one_arm({0.002: {0: math.inf}, 0.004: {0: math.inf}})
    assert arm.best_lr is None
    assert len(validation_line(arm).losses) == 5


def test_while_nothing_has_finished_the_lowest_rate_so_far_is_shown():
    arm = one_arm({0.002: {0: math.nan}, 0.004: {0: math.nan}})
    low = make_trial(make_config("adamw", lr=0.004, seed=0), math.nan, losses=[3.0, 1.2])
    rates = (arm.arm.rates[0], replace(arm.arm.rates[1], trials=(low,)))
    changed = replace(arm, arm=replace(arm.arm, rates=rates))
    assert shown_rate(changed).lr == 0.004
    assert shown_rate(arm).lr == 0.002


def test_an_arm_without_runs_has_no_line():
    arm = one_arm({0.002: {0: 1.5}})
    empty = replace(arm, arm=replace(arm.arm, rates=()), best_lr=None)
    assert shown_rate(empty) is None
    assert validation_line(empty) is None
    assert training_line(empty) is None


def test_seeds_meet_at_the_steps_that_all_of_them_have():
    arm = one_arm({0.002: {0: 1.5, 1: 1.7}})
    first, second = arm.arm.rates[0].trials
    curve = second.validation
    fewer = Curve(
        *(column[1::2] for column in (curve.steps, curve.counts, curve.seconds, curve.losses))
    )
    rate = replace(arm.arm.rates[0], trials=(first, replace(second, validation=fewer)))
    line = validation_line(replace(arm, arm=replace(arm.arm, rates=(rate,))))
    assert line.steps.tolist() == [100, 200, 300, 400, 500]
    assert line.losses[0] == pytest.approx((first.validation.losses[1] + fewer.losses[0]) / 2)


def test_training_losses_are_smoothed_and_have_no_band():
    arm = one_arm({0.002: {0: 1.5}}, records=400)
    (trial,) = shown_trials(arm)
    noisy = trial.train.losses + 0.2 * (-1) ** np.arange(400)
    rough = replace(trial, train=replace_losses(trial.train, noisy))
    rate = replace(arm.arm.rates[0], trials=(rough,))
    line = training_line(replace(arm, arm=replace(arm.arm, rates=(rate,))))
    assert line.low is None
    middle = slice(20, -20)
    assert np.abs(line.losses - trial.train.losses)[middle].max() < 0.03
    assert np.abs(noisy - trial.train.losses)[middle].min() > 0.19


def replace_losses(curve, losses):
    return Curve(curve.steps, curve.counts, curve.seconds, losses)


def test_the_window_is_odd_and_a_fortieth_of_the_run():
    assert [window(n) for n in (1, 79, 80, 400, 10_000)] == [1, 1, 3, 11, 251]


def test_a_measure_is_the_mean_of_the_seeds_that_recorded_it():
    arm = one_arm({0.002: {0: 1.5, 1: 1.6}})
    steps = np.array([10.0, 20.0])
    values = [np.array([0.1, 0.3]), np.array([0.3, 0.5])]
    trials = tuple(
        replace(trial, measures={"clip_rate": (steps, value)})
        for trial, value in zip(arm.arm.trials, values, strict=True)
    )
    rate = replace(arm.arm.rates[0], trials=trials)
    measured = replace(arm, arm=replace(arm.arm, rates=(rate,)))
    found = measure_line(measured, "clip_rate")
    assert found[0].tolist() == [10, 20]
    assert found[1] == pytest.approx([0.2, 0.4])
    assert measure_line(measured, "gradient_cosine") is None

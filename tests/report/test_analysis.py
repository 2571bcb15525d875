"""What is made of the results: best rates, differences, calls, and their JSON."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mars.report.analysis import analyze
from mars.report.export import CLOCK_KEYS, without_clock
from mars.report.results import Arm, AtRate, Results, collect
from mars.report.statistics import Estimate
from report.synthetic import (
    Shape,
    make_config,
    make_results,
    make_trial,
    write_comparison,
)

INF, NAN = math.inf, math.nan
ADAMW = {0.004: {0: 1.90, 1: 1.93, 2: 1.91}}


def best(finals, **kind):
    return analyze(make_results({"adamw": finals}, baseline=None, **kind)).arms[0]


def against(mars, adamw=ADAMW, **kind):
    """Return the summary of mars-m against adamw."""
    return analyze(make_results({"adamw": adamw, "mars-m": mars}, **kind)).arms[1]


def test_the_best_rate_has_the_lowest_mean_over_the_search_seeds():
    finals = {0.001: {0: 2.0, 1: 1.0}, 0.002: {0: 1.4, 1: 1.5}, 0.004: {0: 1.3, 1: 9.0}}
    assert best(finals).best_lr == 0.002
    assert best(finals, search_seeds=1).best_lr == 0.004


def test_of_equally_good_rates_the_smaller_is_taken():
    assert best({0.004: {0: 1.5, 1: 1.25}, 0.002: {0: 1.25, 1: 1.5}}).best_lr == 0.002


def test_a_rate_that_diverged_loses_to_any_that_did_not():
    finals = {0.001: {0: 5.0, 1: 5.0}, 0.002: {0: 1.0, 1: INF}}
    summary = best(finals)
    assert (summary.best_lr, summary.diverged, summary.call) == (0.001, 0, "not compared")
    assert summary.sensitivity[1] == (0.002, None, 1)
    assert summary.sensitivity[0].loss == Estimate(5.0, 5.0, 5.0, 2)


def test_of_rates_that_all_diverged_somewhere_the_one_that_did_least_is_best():
    finals = {0.001: {0: INF, 1: INF, 2: 1.0}, 0.002: {0: 1.5, 1: INF, 2: 1.6}}
    summary = best(finals)
    assert (summary.best_lr, summary.loss, summary.diverged) == (0.002, None, 1)
    assert summary.losses == {0: 1.5, 1: INF, 2: 1.6}
    assert summary.call == "diverged"


def test_an_arm_that_diverged_everywhere_has_no_best_rate():
    summary = best({0.001: {0: INF, 1: INF}, 0.002: {0: INF, 1: INF}})
    assert (summary.best_lr, summary.loss, summary.diverged) == (None, None, 4)
    assert (summary.losses, summary.call, summary.is_at_edge) == ({}, "diverged", False)


def test_rates_are_judged_on_the_seeds_that_all_have_finished():
    finals = {0.001: {0: 1.5, 1: 1.0, 2: 1.0}, 0.002: {0: 1.4, 1: NAN, 2: None}}
    assert best(finals).best_lr == 0.002
    nothing_common = {0.001: {0: 1.5, 1: 1.5, 2: NAN}, 0.002: {0: NAN, 1: NAN, 2: 1.0}}
    assert best(nothing_common).best_lr == 0.001


def test_an_arm_without_a_finished_run_is_unfinished():
    summary = against({0.01: {0: NAN, 1: None}})
    assert (summary.best_lr, summary.call, summary.loss) == (None, "unfinished", None)
    assert (summary.paired, summary.tokens_to_baseline, summary.reached) == (None, None, None)


@pytest.mark.parametrize(
    ("lowest_at", "is_at_edge"), [(0.001, True), (0.002, False), (0.004, True)]
)
def test_a_best_rate_at_an_end_of_its_grid_is_at_the_edge(lowest_at, is_at_edge):
    finals = {lr: {0: 1.0 if lr == lowest_at else 2.0} for lr in (0.001, 0.002, 0.004)}
    assert best(finals).is_at_edge == is_at_edge


def test_a_rate_beyond_which_runs_diverge_is_not_at_the_edge():
    assert not best({0.001: {0: 2.0}, 0.002: {0: 1.0}, 0.004: {0: INF}}).is_at_edge
    assert not best({0.001: {0: 2.0}}).is_at_edge  # nothing was searched
    assert best({0.001: {0: NAN}, 0.002: {0: 1.0}, 0.004: {0: 2.0}}).is_at_edge  # as yet


LOSSES = st.lists(st.floats(min_value=1, max_value=3), min_size=3, max_size=8)


@given(LOSSES, LOSSES)
def test_losses_and_differences_are_those_of_scipy(ours, theirs):
    count = min(len(ours), len(theirs))
    ours, theirs = np.round(ours[:count], 4), np.round(theirs[:count], 4)
    if np.ptp(ours - theirs) < 1e-3 or np.ptp(ours) < 1e-3:
        return
    summary = against(
        {0.01: dict(enumerate(ours.tolist()))}, {0.004: dict(enumerate(theirs.tolist()))}
    )
    test = stats.ttest_rel(ours, theirs)
    low, high = test.confidence_interval(0.95)
    found = summary.paired.difference
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-7)
    assert summary.paired.p_value == pytest.approx(test.pvalue, rel=1e-7, abs=1e-12)
    assert summary.adjusted_p == summary.paired.p_value
    sign = "lower" if found.mean < 0 else "higher"
    assert summary.call == (sign if test.pvalue < 0.05 else "undecided")
    low, high = stats.ttest_1samp(ours, 0).confidence_interval(0.95)
    assert (summary.loss.low, summary.loss.high) == pytest.approx((low, high), rel=1e-7)


def test_p_values_allow_for_the_number_of_arms():
    rng = np.random.default_rng(0)
    finals = {
        label: {0.01: dict(enumerate(rng.normal(mean, 0.02, 5).tolist()))}
        for label, mean in (("adamw", 2.0), ("mars-adamw", 1.97), ("mars-m", 1.9), ("muon", 2.0))
    }
    arms = analyze(make_results(finals)).arms[1:]
    ranked = sorted(arms, key=lambda arm: arm.paired.p_value)
    p_values = [arm.paired.p_value for arm in ranked]
    expected = np.maximum.accumulate([3 * p_values[0], 2 * p_values[1], p_values[2]])
    assert [arm.adjusted_p for arm in ranked] == pytest.approx(np.minimum(1, expected))


def test_identical_arms_are_not_called_different():
    summary = against({0.01: ADAMW[0.004]})
    assert summary.paired.difference == Estimate(0.0, 0.0, 0.0, 3)
    assert (summary.adjusted_p, summary.call) == (1.0, "undecided")


def test_one_seed_has_no_interval_and_two_make_no_claim():
    one = against({0.01: {1: 1.0}})
    assert (one.call, one.adjusted_p, one.loss) == ("one seed", None, Estimate(1.0, None, None, 1))
    assert one.paired.difference == Estimate(1.0 - 1.93, None, None, 1)
    two = against({0.01: {0: 1.0, 1: 1.03}})
    assert (two.call, two.adjusted_p) == ("two seeds", None)
    assert two.paired.difference.low <= two.paired.difference.mean
    three = against({0.01: {0: 1.0, 1: 1.03, 2: 1.02}})
    assert three.call == "lower"


def test_an_arm_that_diverged_on_one_seed_has_no_mean_and_is_not_compared():
    summary = against({0.01: {0: 1.0, 1: INF, 2: 1.0}})
    assert (summary.call, summary.diverged) == ("diverged", 1)
    assert (summary.loss, summary.paired, summary.adjusted_p) == (None, None, None)
    assert (summary.tokens_to_baseline, summary.reached) == (None, None)


def test_a_divergence_outside_the_search_counts_too():
    finals = {0.01: {0: 1.0, 1: INF, 2: 1.1}, 0.02: {0: 2.0}}
    summary = against(finals, search_seeds=1)
    assert (summary.best_lr, summary.call) == (0.01, "diverged")


def test_nothing_is_compared_with_a_baseline_that_diverged():
    summary = against({0.01: {0: 1.0, 1: 1.1, 2: 1.2}}, {0.004: {0: 1.0, 1: INF, 2: 1.0}})
    assert (summary.call, summary.paired) == ("not compared", None)
    assert summary.loss.mean == pytest.approx(1.1)


def test_arms_without_a_common_seed_are_not_compared():
    assert against({0.01: {3: 1.0, 4: 1.1}}).call == "not compared"


def test_arms_that_cannot_be_compared_do_not_weigh_on_those_that_can():
    finals = {
        "adamw": ADAMW,
        "mars-m": {0.01: {0: 1.80, 1: 1.85, 2: 1.82}},
        "muon": {0.01: {0: 1.0, 1: INF, 2: 1.0}},
        "lion": {0.001: {0: 2.0, 1: 2.0}},
    }
    arms = analyze(make_results(finals)).arms
    assert arms[1].adjusted_p == arms[1].paired.p_value


def test_the_baseline_is_compared_with_nothing():
    analysis = analyze(make_results({"adamw": ADAMW, "mars-m": {0.01: {0: 1.0}}}))
    baseline = analysis.arms[0]
    assert (baseline.call, baseline.paired, baseline.reached) == ("baseline", None, None)
    assert baseline.loss.mean == pytest.approx(np.mean([1.90, 1.93, 1.91]))


def test_a_rate_chosen_on_few_seeds_leaves_a_doubt():
    """The allowance is what `Choice.doubt` says, from gaps on the search seeds alone."""
    theirs = {0.004: {0: 1.90, 1: 1.93, 2: 1.91}, 0.008: {0: 1.92}}
    ours = {0.01: {0: 1.70, 1: 1.75, 2: 1.72}, 0.02: {0: 1.71}}
    summary = against(ours, theirs, search_seeds=1)
    spread = np.var([1.70 - 1.90, 1.75 - 1.93, 1.72 - 1.91], ddof=1) * (1 - 1 / 3)
    expected = 0.0
    for gap in (0.02, 0.01):
        z = gap / math.sqrt(spread)
        expected += 1.5 * spread * ((1 + z**2) * stats.norm.cdf(-z) - z * stats.norm.pdf(z))
    assert summary.paired.doubt == pytest.approx(expected)
    everywhere = {0.01: ours[0.01], 0.02: {0: 1.71, 1: 1.8, 2: 1.8}}
    assert against(everywhere).paired.doubt == 0.0
    alone = against({0.01: ours[0.01]}, {0.004: theirs[0.004]}, search_seeds=1)
    assert alone.paired.doubt == 0.0
    lost = {0.01: ours[0.01], 0.02: {0: INF, 1: 1.6}}  # it was not left by bad luck
    diverged = against(lost, {0.004: theirs[0.004]}, search_seeds=2)
    assert diverged.paired.doubt == 0.0


def results_of_curves(ours, theirs, *, seconds=(0.04, 0.04)):
    """Return one arm against adamw, by the validation losses of each seed."""
    arms = []
    for label, curves, per_step in zip(("adamw", "mars-m"), (theirs, ours), seconds, strict=True):
        shape = Shape(step_seconds=per_step)
        trials = tuple(
            make_trial(
                make_config(label, lr=0.01, seed=seed), losses[-1], losses=losses, shape=shape
            )
            for seed, losses in enumerate(curves)
        )
        rates = (AtRate(lr=0.01, trials=trials),)
        arms.append(Arm(label=label, optimizer=label, settings={}, rates=rates))
    seeds = tuple(range(len(ours)))
    return Results(
        title="curves",
        description="",
        command=None,
        arms=tuple(arms),
        baseline="adamw",
        seeds=seeds,
        search_seeds=len(seeds),
    )


def test_tokens_to_the_baseline_are_a_part_of_its_own_seed_by_seed():
    theirs = [[5.0, 4.0, 3.0, 2.0], [5.0, 4.0, 3.0, 2.5]]
    ours = [[4.0, 2.0, 1.5, 1.0], [4.0, 3.0, 2.0, 1.0]]
    summary = analyze(results_of_curves(ours, theirs)).arms[1]
    assert summary.tokens_to_baseline.mean == pytest.approx((2 / 4 + 2.5 / 4) / 2)
    assert summary.tokens_to_baseline.count == 2
    assert summary.reached == (2, 2)
    assert summary.seconds_to_baseline.mean == pytest.approx(summary.tokens_to_baseline.mean)


def test_seconds_to_the_baseline_are_measured_on_its_own_clock():
    theirs, ours = [[5.0, 4.0, 3.0, 2.0]], [[4.0, 2.0, 1.5, 1.0]]
    summary = analyze(results_of_curves(ours, theirs, seconds=(0.04, 0.06))).arms[1]
    assert summary.seconds_to_baseline.mean == pytest.approx(2 / 4 * 1.5)
    assert summary.tokens_to_baseline == Estimate(0.5, None, None, 1)
    assert summary.step_seconds.mean == pytest.approx(0.06)


def test_a_target_that_not_every_seed_reached_has_no_mean():
    theirs = [[5.0, 2.0], [5.0, 2.0], [5.0, 2.0]]
    ours = [[3.0, 1.9], [3.0, 1.9], [3.0, 2.1]]
    summary = analyze(results_of_curves(ours, theirs)).arms[1]
    assert summary.reached == (2, 3)
    assert (summary.tokens_to_baseline, summary.seconds_to_baseline) == (None, None)


def test_memory_is_the_largest_over_the_seeds():
    shapes = {"mars-m": Shape(optimizer_bytes=3e6, peak_memory_bytes=None)}
    finals = {"adamw": ADAMW, "mars-m": {0.01: {0: 1.0, 1: 1.1}}}
    baseline, summary = analyze(make_results(finals, shapes=shapes)).arms
    assert (summary.optimizer_bytes, summary.peak_memory_bytes) == (3e6, None)
    assert (baseline.optimizer_bytes, baseline.peak_memory_bytes) == (6.6e6, 4e8)


def test_sensitivity_is_the_loss_at_every_rate():
    finals = {0.001: {0: 2.0, 1: 2.2}, 0.002: {0: 1.0}, 0.004: {0: INF, 1: 1.0}, 0.008: {0: NAN}}
    found = best(finals).sensitivity
    assert [at.lr for at in found] == [0.001, 0.002, 0.004, 0.008]
    assert [at.diverged for at in found] == [0, 0, 1, 0]
    assert found[0].loss.mean == pytest.approx(2.1)
    assert found[1].loss == Estimate(1.0, None, None, 1)
    assert (found[2].loss, found[3].loss) == (None, None)


MIXED = {
    "adamw": {0.002: {0: 1.95, 1: 1.96, 2: 1.97}, 0.004: {0: 1.91, 1: 1.92, 2: 1.90}},
    "mars-m": {0.008: {0: 1.53, 1: 1.54, 2: 1.52}, 0.016: {0: 1.6, 1: INF, 2: 1.7}},
    "mars-adamw betas=[0.9,0.95]": {0.006: {0: INF, 1: INF, 2: INF}},
    "muon": {0.01: {0: NAN, 1: None, 2: None}},
}


def test_the_json_is_plain_and_whole(tmp_path):
    analysis = analyze(collect([write_comparison(tmp_path / "c", MIXED)]))
    found = analysis.as_json()
    text = json.dumps(found, allow_nan=False)
    assert json.loads(text) == found  # no tuples, no numbers as keys
    assert list(found) == [
        *("format", "title", "description", "command", "baseline", "seeds", "search_seeds"),
        *("pending", "failures", "arms", "differences", "environment"),
        *("verdict", "cost", "caveats"),
    ]
    assert [arm["label"] for arm in found["arms"]] == list(MIXED)
    assert found["arms"][0]["loss"]["mean"] == analysis.arms[0].loss.mean
    assert found["arms"][1]["paired"]["p_value"] == analysis.arms[1].paired.p_value
    diverged = found["arms"][1]["trials"][4]
    assert (diverged["is_diverged"], diverged["final_loss"]) == (True, None)
    assert found["arms"][2]["settings"] == {"optimizer.betas": [0.9, 0.95]}
    assert found["verdict"] == list(analysis.verdict)
    assert str(tmp_path) not in text


def test_only_clock_and_memory_differ_between_a_comparison_and_its_repetition(tmp_path):
    first = write_comparison(tmp_path / "a", MIXED)
    slower = Shape(step_seconds=0.07, peak_memory_bytes=5e8)
    second = write_comparison(tmp_path / "b", MIXED, shapes=dict.fromkeys(MIXED, slower))
    ours, theirs = (analyze(collect([folder])).as_json() for folder in (first, second))
    assert ours != theirs
    assert without_clock(ours) == without_clock(theirs)
    changed = set()
    for key in CLOCK_KEYS:
        if json.dumps(ours).count(f'"{key}"') and values(ours, key) != values(theirs, key):
            changed.add(key)
    assert changed == set(CLOCK_KEYS)  # no key is stripped without need


def values(found, key):
    """Return all values of a key, at any depth."""
    if isinstance(found, dict):
        own = [found[key]] if key in found else []
        return own + [each for value in found.values() for each in values(value, key)]
    return [each for value in found for each in values(value, key)] if type(found) is list else []


def test_results_are_the_same_from_memory_and_from_disk(tmp_path):
    folder = write_comparison(tmp_path / "c", MIXED)
    ours, theirs = analyze(collect([folder])), analyze(make_results(MIXED))
    assert ours.verdict == theirs.verdict
    assert ours.as_json()["arms"][1]["paired"] == theirs.as_json()["arms"][1]["paired"]

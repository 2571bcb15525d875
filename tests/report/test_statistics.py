"""Statistics against scipy and statsmodels on the same numbers."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import DescrStatsW

from mars.report.statistics import (
    Estimate,
    first_reached,
    holm,
    paired_difference,
    squared_shortfall,
    summarize,
    variance,
)

LOSSES = st.floats(min_value=0.5, max_value=12, allow_nan=False)
SAMPLES = st.lists(LOSSES, min_size=2, max_size=12)
PAIRS = st.lists(st.tuples(LOSSES, LOSSES), min_size=2, max_size=12)
# Values that differ in their last digits alone are where two ways of summing part.
NOISE = 1e-7


def by_seed(values):
    return dict(enumerate(values))


@given(SAMPLES, st.sampled_from([0.8, 0.9, 0.95, 0.99]))
def test_the_interval_is_scipys(values, confidence):
    assume(np.std(values) > NOISE)
    ours = summarize(values, confidence)
    low, high = stats.ttest_1samp(values, 0).confidence_interval(confidence)
    assert ours.mean == pytest.approx(np.mean(values), rel=1e-12)
    assert (ours.low, ours.high) == pytest.approx((low, high), rel=1e-9, abs=1e-9)
    assert ours.count == len(values)


@given(SAMPLES)
def test_the_interval_is_statsmodels(values):
    assume(np.std(values) > NOISE)
    ours = summarize(values)
    theirs = DescrStatsW(values).tconfint_mean(alpha=0.05)
    assert (ours.low, ours.high) == pytest.approx(theirs, rel=1e-9, abs=1e-9)


@given(PAIRS)
def test_the_paired_test_is_scipys(pairs):
    ours, baseline = (list(side) for side in zip(*pairs, strict=True))
    assume(np.std(np.subtract(ours, baseline)) > NOISE)
    paired = paired_difference(by_seed(ours), by_seed(baseline))
    theirs = stats.ttest_rel(ours, baseline)
    low, high = theirs.confidence_interval(0.95)
    assert paired.p_value == pytest.approx(theirs.pvalue, rel=1e-6, abs=1e-12)
    found = (paired.difference.low, paired.difference.high)
    assert found == pytest.approx((low, high), rel=1e-8, abs=1e-8)


@given(PAIRS)
def test_the_paired_test_is_statsmodels(pairs):
    ours, baseline = (list(side) for side in zip(*pairs, strict=True))
    differences = np.subtract(ours, baseline)
    assume(np.std(differences) > NOISE)
    _, p_value, _ = DescrStatsW(differences).ttest_mean(0)
    paired = paired_difference(by_seed(ours), by_seed(baseline))
    assert paired.p_value == pytest.approx(p_value, rel=1e-6, abs=1e-12)


@settings(max_examples=15)  # statsmodels collects garbage each time
@given(st.lists(st.floats(min_value=0, max_value=1), min_size=1, max_size=12))
def test_holm_is_statsmodels(p_values):
    theirs = multipletests(p_values, method="holm")[1]
    assert holm(p_values) == pytest.approx(list(theirs), rel=1e-12, abs=1e-15)


@given(st.lists(st.floats(min_value=0, max_value=1), max_size=8))
def test_holm_keeps_the_order_and_lowers_nothing(p_values):
    adjusted = holm(p_values)
    assert all(p <= a <= 1 for p, a in zip(p_values, adjusted, strict=True))
    ranked = [a for _, a in sorted(zip(p_values, adjusted, strict=True))]
    assert ranked == sorted(ranked)


@given(LOSSES, st.integers(min_value=2, max_value=9))
def test_identical_numbers_have_no_margin_and_no_rounding(value, count):
    same = by_seed([value] * count)
    assert summarize(list(same.values())) == Estimate(value, value, value, count)
    paired = paired_difference(same, same)
    assert paired.difference == Estimate(0.0, 0.0, 0.0, count)
    assert paired.p_value == 1.0


def test_a_difference_that_is_the_same_on_every_seed_is_certain():
    paired = paired_difference({0: 1.5, 1: 2.5, 2: 3.5}, {0: 1.0, 1: 2.0, 2: 3.0})
    assert paired.difference == Estimate(0.5, 0.5, 0.5, 3)
    assert paired.p_value == 0.0


def test_one_value_has_a_mean_and_no_interval():
    assert summarize([1.5]) == Estimate(1.5, None, None, 1)
    paired = paired_difference({3: 1.5}, {3: 2.0})
    assert (paired.difference, paired.p_value) == (Estimate(-0.5, None, None, 1), None)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf], [1.0, -math.inf, 2.0]])
def test_what_is_not_finite_is_never_averaged(values):
    with pytest.raises(ValueError, match="only finite values have a mean"):
        summarize(values)


def test_only_common_seeds_are_paired():
    paired = paired_difference({8: 1.0, 1: 2.0, 7: 9.0}, {1: 1.5, 8: 0.25, 5: 100.0})
    assert paired.seeds == (1, 8)
    assert paired.difference.mean == pytest.approx((0.75 + 0.5) / 2)
    assert paired_difference({0: 1.0}, {1: 1.0}) is None


@given(PAIRS, st.floats(min_value=1e-6, max_value=1))
def test_doubt_widens_the_interval_as_a_variance_and_raises_p(pairs, doubt):
    ours, baseline = (by_seed(side) for side in zip(*pairs, strict=True))
    sure = paired_difference(ours, baseline)
    unsure = paired_difference(ours, baseline, doubt=doubt)
    quantile = stats.t.ppf(0.975, len(pairs) - 1)
    margins = [(each.difference.high - each.difference.mean) / quantile for each in (sure, unsure)]
    assert margins[1] ** 2 == pytest.approx(margins[0] ** 2 + doubt, rel=1e-6)
    assert unsure.p_value >= sure.p_value
    assert unsure.difference.mean == sure.difference.mean
    assert unsure.doubt == doubt


@given(SAMPLES)
def test_the_variance_is_numpys(values):
    assert variance(values) == pytest.approx(np.var(values, ddof=1), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("gap", [0.0, 0.1, 0.5, 2.0, -0.3])
@pytest.mark.parametrize("spread", [0.01, 0.25, 1.0])
def test_the_shortfall_is_the_integral_it_stands_for(gap, spread):
    def integrand(x):
        return x**2 * stats.norm.pdf(x, gap, math.sqrt(spread))

    expected, _ = integrate.quad(integrand, -20, 0, points=[gap, -0.5])
    assert squared_shortfall(gap, spread) == pytest.approx(expected, rel=1e-6, abs=1e-10)


def test_the_shortfall_of_what_is_far_behind_or_certain_is_nothing():
    assert squared_shortfall(100.0, 1.0) == 0.0
    assert squared_shortfall(0.0, 0.0) == 0.0


def curve(*losses):
    return np.arange(1.0, len(losses) + 1) * 100, np.array(losses, dtype=float)


def test_a_target_between_validations_is_interpolated():
    positions, losses = curve(5, 4, 2, 1)
    assert first_reached(positions, losses, 3.0) == 250.0
    assert first_reached(positions, losses, 2.0) == 300.0
    assert first_reached(positions, losses, 1.25) == 375.0


def test_the_first_point_and_the_last_are_reached_exactly():
    positions, losses = curve(5, 4, 2, 1)
    assert first_reached(positions, losses, 6.0) == 100.0
    assert first_reached(positions, losses, 1.0) == 400.0
    assert first_reached(positions, losses, 0.99) is None
    assert first_reached(np.empty(0), np.empty(0), 3.0) is None


def test_a_curve_that_rises_again_counts_from_its_lowest_point_so_far():
    positions, losses = curve(5, 3, 4, 1)
    assert first_reached(positions, losses, 2.0) == 350.0  # from 3, not from 4


def test_losses_that_are_not_numbers_reach_nothing():
    assert first_reached(*curve(math.nan, math.nan), 9.0) is None
    assert first_reached(*curve(math.nan, 2.0), 3.0) == 200.0
    assert first_reached(*curve(4.0, math.nan, 2.0), 3.0) == 250.0


@given(st.lists(LOSSES, min_size=1, max_size=10), LOSSES, LOSSES)
def test_a_lower_target_is_reached_no_earlier(losses, first, second):
    positions, values = curve(*losses)
    high, low = max(first, second), min(first, second)
    at_high, at_low = (first_reached(positions, values, target) for target in (high, low))
    if at_low is not None:
        assert at_high is not None
        assert at_high <= at_low + 1e-9
    assert (at_low is None) == (min(losses) > low)

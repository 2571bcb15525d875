"""Fewer points: what must be seen of a curve is still in them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mars.report.downsample import kept, smoothed, spread

LOSSES = st.floats(0, 20, width=32) | st.just(math.nan)
CURVES = st.integers(0, 400).flatmap(lambda n: arrays(np.float64, n, elements=LOSSES))
POINTS = st.integers(4, 60)


@given(CURVES, POINTS)
def test_kept_points_are_few_in_order_and_with_both_ends(values, points):
    found = kept(values, points=points)
    assert len(found) <= points
    assert (np.diff(found) > 0).all()
    if len(values):
        assert (found[0], found[-1]) == (0, len(values) - 1)


@given(CURVES, POINTS)
def test_the_lowest_and_the_highest_value_are_kept(values, points):
    found = kept(values, points=points)
    if np.isfinite(values).any():
        assert np.nanmin(values[found]) == np.nanmin(values)
        assert np.nanmax(values[found]) == np.nanmax(values)


@given(CURVES, POINTS)
def test_no_stretch_goes_without_a_point(values, points):
    found = kept(values, points=points)
    widest = 2 * math.ceil(len(values) / ((points - 2) // 2)) + 1
    assert np.diff(found).max(initial=0) <= widest


@given(CURVES, POINTS)
def test_what_is_short_enough_is_kept_whole(values, points):
    short = values[:points]
    assert kept(short, points=points).tolist() == list(range(len(short)))


def test_a_stretch_of_gaps_stays_a_gap():
    values = np.ones(1000)
    values[400:600] = math.nan
    found = kept(values, points=42)
    assert np.isnan(values[found]).sum() >= 3
    assert np.isfinite(values[found][[0, -1]]).all()


def test_a_single_spike_among_ten_thousand_is_kept():
    values = np.ones(10_000)
    values[[1234, 8765]] = 9.0, 0.1
    assert {1234, 8765} <= set(kept(values, points=100).tolist())


def test_too_few_points_are_refused():
    with pytest.raises(ValueError, match="points must be at least 4, got 3"):
        kept(np.ones(10), points=3)


@given(st.integers(0, 500), st.integers(2, 60))
def test_spread_points_are_even_with_both_ends(count, points):
    found = spread(count, points=points)
    assert len(found) == min(count, points)
    if count > points:
        assert (found[0], found[-1]) == (0, count - 1)
        assert np.diff(found).max() - np.diff(found).min() <= 1


@given(arrays(np.float64, st.integers(1, 80), elements=st.floats(0, 20)), st.integers(1, 15))
def test_a_smoothed_value_is_the_mean_of_an_even_window(values, width):
    found = smoothed(values, width=width)
    for i in range(len(values)):
        reach = min(width // 2, i, len(values) - 1 - i)
        window = values[i - reach : i + reach + 1]
        # Sums of the whole array are subtracted: rounding is of its size.
        assert found[i] == pytest.approx(window.mean(), abs=1e-9)


@given(st.floats(-5, 5), st.floats(-5, 5), st.integers(1, 15))
def test_smoothing_leaves_a_straight_line(start, slope, width):
    line = start + slope * np.arange(40)
    assert smoothed(line, width=width) == pytest.approx(line, abs=1e-8)


def test_smoothing_leaves_gaps_where_they_are_and_out_of_means():
    values = np.array([1.0, 2.0, math.nan, 4.0, 5.0])
    found = smoothed(values, width=3)
    assert np.isnan(found).tolist() == [False, False, True, False, False]
    assert found[[0, 1, 3, 4]].tolist() == [1.0, 1.5, 4.5, 5.0]

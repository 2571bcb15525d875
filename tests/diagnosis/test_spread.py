"""Means, variances and intervals from values that come one at a time."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mars.diagnosis.intervals import mean_interval, ratio_interval, student_quantile
from mars.diagnosis.spread import Spread, squared_norms

numbers = st.floats(-1e3, 1e3, allow_nan=False)
weighted = st.lists(
    st.tuples(st.integers(1, 9), st.lists(numbers, min_size=3, max_size=3)), min_size=2, max_size=12
)


def tensors(values: list[float]) -> list[torch.Tensor]:
    """Return three numbers as a matrix and a scalar."""
    made = torch.tensor(values, dtype=torch.float64)
    return [made[:2].reshape(1, 2), made[2]]


def spread_of(rows: list[tuple[int, list[float]]]) -> Spread:
    spread = Spread()
    for weight, values in rows:
        spread.add(tensors(values), weight=weight)
    return spread


@given(weighted)
def test_one_pass_equals_two(rows):
    spread = spread_of(rows)
    weights = torch.tensor([float(weight) for weight, _ in rows], dtype=torch.float64)
    values = torch.tensor([row for _, row in rows], dtype=torch.float64)
    mean = (weights[:, None] * values).sum(dim=0) / weights.sum()
    squares = (weights[:, None] * (values - mean).square()).sum(dim=0)
    assert spread.weight == weights.sum()
    assert torch.allclose(torch.cat([t.reshape(-1) for t in spread.mean]), mean, atol=1e-9)
    for places, columns in (([0], [0, 1]), ([1], [2]), ([0, 1], [0, 1, 2])):
        expected = float(squares[columns].sum())
        assert math.fsum(spread.contributions(places)) == pytest.approx(expected, abs=1e-6)
        assert spread.variance(places) == pytest.approx(expected / (len(rows) - 1), abs=1e-6)


@given(weighted)
def test_what_is_added_is_not_changed(rows):
    spread = Spread()
    for weight, values in rows:
        given_tensors = tensors(values)
        spread.add(given_tensors, weight=weight)
        assert all(
            torch.equal(left, right)
            for left, right in zip(given_tensors, tensors(values), strict=True)
        )


def test_the_weighted_variance_is_that_of_one_sample():
    # Means of w samples of variance 4 have the variance 4 / w, whatever the weights.
    generator = torch.Generator().manual_seed(0)
    spread = Spread()
    for count in range(400):
        weight = 1 + count % 7
        spread.add(
            [2 / weight**0.5 * torch.randn(50, generator=generator, dtype=torch.float64)],
            weight=weight,
        )
    # 399 contrasts of 50 coordinates: a standard error of 1 %, of which this is four.
    assert spread.variance([0]) / 50 == pytest.approx(4, rel=0.04)


def test_squared_norms_are_summed_in_double_precision():
    # In float32 the sum of 2^24 ones and a small one would lose the small one.
    assert squared_norms([torch.full((4,), 4096.0), torch.tensor([3.0, 4.0])]).tolist() == [
        4 * 4096.0**2,
        25.0,
    ]
    assert squared_norms([torch.ones(1)]).dtype == torch.float64


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 10, 15, 16, 63, 200])
def test_students_quantile_is_scipys(freedom):
    assert student_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-12)
    assert student_quantile(freedom, probability=0.6) == pytest.approx(
        stats.t.ppf(0.6, freedom), rel=1e-12
    )


@given(st.lists(st.floats(0.1, 10), min_size=3, max_size=20), st.floats(0.01, 100))
def test_a_ratio_to_itself_is_one_and_scales(values, factor):
    low, high = ratio_interval([factor * v for v in values], values)[1:]
    assert ratio_interval(values, values) == (1, 1, 1)
    assert low == pytest.approx(factor, rel=1e-9)
    assert high == pytest.approx(factor, rel=1e-9)


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=20))
def test_an_interval_contains_its_value_and_scales(values):
    value, low, high = mean_interval(values)
    assert value == pytest.approx(sum(values) / len(values))
    assert 0 <= low <= value * (1 + 1e-12)
    assert high >= value * (1 - 1e-12)
    assert mean_interval([3 * v for v in values])[1] == pytest.approx(3 * low, rel=1e-6, abs=1e-300)


def test_the_interval_is_that_of_the_jackknife():
    values = [1.0, 2.0, 4.0]
    logs = [math.log(3.0), math.log(2.5), math.log(1.5)]
    centre = sum(logs) / 3
    error = math.sqrt(2 / 3 * sum((each - centre) ** 2 for each in logs))
    width = stats.t.ppf(0.975, 2) * error
    value, low, high = mean_interval(values)
    assert low == pytest.approx(value * math.exp(-width))
    assert high == pytest.approx(value * math.exp(width))


@pytest.mark.parametrize("values", [[2.0], [0.0, 0.0], [0.0, 5.0]])
def test_too_little_to_go_by_has_no_interval(values):
    assert mean_interval(values) == (sum(values) / len(values), None, None)


def test_nothing_over_nothing_is_not_a_number():
    value, low, high = ratio_interval([0.0, 0.0], [0.0, 0.0])
    assert math.isnan(value)
    assert (low, high) == (None, None)


@pytest.mark.parametrize(
    ("draw", "variance", "least"),
    [
        (lambda g: torch.randn(12, 40, generator=g, dtype=torch.float64), 40.0, 0.92),
        # All the noise in one direction.
        (
            lambda g: (
                torch.randn(12, 1, generator=g, dtype=torch.float64)
                * torch.ones(40, dtype=torch.float64)
            ),
            40.0,
            0.9,
        ),
        # Tails like Student's with five degrees, common to all coordinates: the worst case.
        (
            lambda g: (
                torch.randn(12, 40, generator=g, dtype=torch.float64)
                / torch.randn(12, 5, generator=g, dtype=torch.float64)
                .square()
                .mean(dim=1, keepdim=True)
                .sqrt()
            ),
            40 * 5 / 3,
            0.79,
        ),
    ],
    ids=["normal", "one direction", "heavy tails"],
)
def test_intervals_contain_the_truth_about_as_often_as_they_say(draw, variance, least):
    generator = torch.Generator().manual_seed(0)
    inside = 0
    for _ in range(600):
        spread = Spread()
        for row in draw(generator):
            spread.add([row])
        _, low, high = mean_interval(spread.contributions([0]))
        inside += low < variance < high
    # The standard error of a share of 95 % of 600 is 0.9 %.
    assert least < inside / 600 < 0.98


def test_intervals_of_ratios_contain_the_truth_as_often_as_they_say():
    generator = torch.Generator().manual_seed(1)
    inside = 0
    for _ in range(600):
        below, above = Spread(), Spread()
        for _ in range(10):
            shared = torch.randn(2, 30, generator=generator, dtype=torch.float64)
            below.add([shared[0]])
            above.add([shared[0] + 0.5 * shared[1]])
        ratio = ratio_interval(above.contributions([0]), below.contributions([0]))
        inside += ratio.low < 1.25 < ratio.high
    assert 0.92 < inside / 600 < 0.98

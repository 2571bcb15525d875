"""On problems whose truth is known, the estimates are what theory says they are."""

import weakref

import pytest
import torch

from diagnosis.known import (
    COORDINATES,
    SIZE,
    additive,
    figures,
    line,
    make_correction,
    measure,
    multiplicative,
    plain_variance,
    silent,
)
from mars.config.errors import FailedError
from mars.diagnosis.estimators import Momenta

BETA1, GAMMA, STEPS = 0.95, 0.025, 40
GRADIENT_VARIANCE = COORDINATES / SIZE
AVERAGE = plain_variance(beta1=BETA1, steps=STEPS)
# m = (1 - gamma) u + gamma g, and Cov(u, g) = (1 - beta1) Var(g).
APPROX = (1 - GAMMA) ** 2 * AVERAGE + GAMMA**2 + 2 * GAMMA * (1 - GAMMA) * (1 - BETA1)


@pytest.fixture(scope="module")
def on_additive_noise():
    return measure(additive, line(steps=STEPS), streams=32)


def assert_within(value: float, low: float, high: float) -> None:
    """Assert that a true value lies in a 95 % interval made twice as wide (in logarithms)."""
    centre = (low * high) ** 0.5
    assert low**2 / centre < value < high**2 / centre


@pytest.mark.parametrize(
    ("estimator", "variance"),
    [("gradient", 1.0), ("ema", AVERAGE), ("approx", APPROX), ("exact", AVERAGE)],
)
def test_variances_on_additive_noise_are_those_of_theory(on_additive_noise, estimator, variance):
    found = figures(on_additive_noise)
    unit = found.squared_norm["all"]
    mine = found.kinds["all"][estimator]
    assert_within(
        variance * GRADIENT_VARIANCE / unit,
        low=mine.variance_low,
        high=mine.variance_high,
    )
    # The interval is worth something: 31 contrasts of 100 coordinates, so 2.5 %, twice each way.
    assert mine.variance_high / mine.variance_low < 1.15


def test_the_interval_of_the_variance_contains_its_estimate(on_additive_noise):
    for mine in figures(on_additive_noise).kinds["all"].values():
        assert mine.variance_low < mine.variance < mine.variance_high


def test_approx_raises_the_variance_of_independent_noise_by_seven_percent(on_additive_noise):
    mine = figures(on_additive_noise).kinds["all"]["approx"]
    assert pytest.approx(1.07, abs=0.003) == APPROX / AVERAGE
    assert_within(APPROX / AVERAGE, mine.ratio_low, mine.ratio_high)
    assert mine.ratio_low > 1


def test_exact_leaves_the_variance_of_additive_noise_as_it_is(on_additive_noise):
    mine = figures(on_additive_noise).kinds["all"]["exact"]
    # The noise cancels in every difference: equal to rounding, stream by stream.
    assert mine.ratio_to_ema == pytest.approx(1, abs=1e-9)
    assert mine.ratio_high - mine.ratio_low < 1e-9


def test_variances_on_multiplicative_noise_are_those_of_theory():
    slope = -0.04
    path = line(steps=STEPS, start=2.0, slope=slope)
    x = [2.0 + slope * t for t in range(STEPS + 1)]
    # The noise of step t is e x_t, and that of the difference in exact mode e (x_t - x_{t-1}).
    decay = [BETA1 ** (2 * (STEPS - t)) for t in range(1, STEPS + 1)]
    plain = sum(d * ((1 - BETA1) * x[t]) ** 2 for t, d in enumerate(decay, start=1))
    exact = sum(
        d * ((1 - BETA1) * x[t] + GAMMA * BETA1 * slope) ** 2 for t, d in enumerate(decay, start=1)
    )
    found = figures(measure(multiplicative, path, streams=24))
    ema, mine = found.kinds["all"]["ema"], found.kinds["all"]["exact"]
    unit = found.squared_norm["all"]
    assert_within(plain * GRADIENT_VARIANCE / unit, ema.variance_low, ema.variance_high)
    assert exact / plain < 0.97
    assert_within(exact / plain, mine.ratio_low, mine.ratio_high)
    assert mine.ratio_high < 1


def test_the_bias_is_the_lag_of_the_average_and_both_modes_shorten_it(on_additive_noise):
    found = figures(on_additive_noise)
    unit = found.squared_norm["all"]
    lag = 0.01 * BETA1 * (1 - BETA1**STEPS) / (1 - BETA1)
    for estimator, expected in (("ema", 1.0), ("approx", 1 - GAMMA), ("exact", 1 - GAMMA)):
        mine = found.kinds["all"][estimator]
        bias, noise = COORDINATES * (expected * lag) ** 2 / unit, mine.bias_noise
        # A sum of squares of 100 coordinates that have a mean and a variance: its standard error.
        tolerance = 4 * ((4 * bias * noise + 2 * noise**2) / COORDINATES) ** 0.5
        assert tolerance < bias / 2
        assert mine.bias == pytest.approx(bias, abs=tolerance)
        assert mine.error == pytest.approx(mine.bias + mine.variance)


def test_the_modes_shorten_the_lag_by_gamma_in_each_stream():
    # Without noise nothing is left to chance: the ratio of the lags is 1 - gamma to rounding.
    measured = measure(additive, line(steps=STEPS), samples=silent, streams=2)
    lags = {
        name: float((spread.mean[0] - measured.truth.mean[0])[0, 0])
        for name, spread in measured.streams.items()
    }
    assert lags["gradient"] == pytest.approx(0, abs=1e-12)
    assert lags["approx"] / lags["ema"] == pytest.approx(1 - GAMMA, rel=1e-9)
    assert lags["exact"] / lags["ema"] == pytest.approx(1 - GAMMA, rel=1e-9)
    assert lags["ema"] == pytest.approx(-0.01 * BETA1 * (1 - BETA1**STEPS) / (1 - BETA1))


def test_without_noise_there_is_no_variance_and_no_interval():
    found = figures(measure(additive, line(steps=3), samples=silent, streams=3))
    mine = found.kinds["all"]["ema"]
    assert (mine.variance, mine.variance_low, mine.variance_high) == (0, None, None)
    assert mine.ratio_to_ema != mine.ratio_to_ema  # not a number: nothing over nothing
    assert mine.bias_noise == 0


def test_the_bias_is_unbiased_where_there_is_none():
    # A still path: every estimator is unbiased, and the subtracted noise is right on average.
    path = line(steps=5, slope=0.0)
    found = [
        figures(measure(additive, path, streams=3, large=16, seed=seed)).kinds["all"]
        for seed in range(20)
    ]
    for estimator in ("gradient", "ema", "approx", "exact"):
        mean = sum(each[estimator].bias for each in found) / len(found)
        noise = sum(each[estimator].bias_noise for each in found) / len(found)
        # 20 sums of 100 squares: a standard error of 3.2 %, of which this is four.
        assert abs(mean) < 0.13 * noise


def test_unclipped_approx_is_the_weighted_mean_of_average_and_gradient():
    momenta = Momenta([torch.ones(3, dtype=torch.float64)], make_correction())
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        gradient = [torch.randn(3, generator=generator, dtype=torch.float64)]
        momenta.update(gradient, gradient)
    made = momenta.estimates()
    expected = (1 - GAMMA) * made["ema"][0] + GAMMA * made["gradient"][0]
    assert torch.allclose(made["approx"][0], expected, rtol=1e-12)
    # The same sample at the same point has no difference.
    assert torch.equal(made["exact"][0], made["ema"][0])


@pytest.mark.parametrize(("clip", "limit"), [("tensor", 1.0), ("global", 1.0)])
def test_a_constant_gradient_stays_what_the_clip_makes_of_it(clip, limit):
    start = [torch.tensor([3.0, 4.0]), torch.tensor([0.0, 12.0])]
    momenta = Momenta(start, make_correction(clip=clip, max_norm=limit))
    momenta.update(start, start)
    made = momenta.estimates()
    norms = [5.0, 12.0] if clip == "tensor" else [13.0, 13.0]
    for mode in ("approx", "exact"):
        for tensor, norm, clipped in zip(start, norms, made[f"{mode}_clipped"], strict=True):
            assert torch.allclose(clipped, tensor / norm, rtol=1e-6)
        assert torch.allclose(made[mode][1], start[1], rtol=1e-6)


def test_a_clip_that_nothing_reaches_changes_nothing():
    measured = measure(additive, line(steps=4), streams=3, clip="tensor", max_norm=1e6)
    for mode in ("approx", "exact"):
        for left, right in zip(
            measured.streams[mode].mean, measured.streams[f"{mode}_clipped"].mean, strict=True
        ):
            assert torch.equal(left, right)


def test_without_a_clip_there_are_no_clipped_estimators(on_additive_noise):
    assert list(on_additive_noise.streams) == ["gradient", "ema", "approx", "exact"]


def test_gamma_zero_is_the_average_in_both_modes():
    found = figures(measure(additive, line(steps=4), streams=4, gamma=0.0)).kinds["all"]
    assert found["approx"].variance == found["exact"].variance == found["ema"].variance
    assert found["approx"].bias == found["exact"].bias == found["ema"].bias


def test_the_figures_of_the_kinds_add_up_to_those_of_all(on_additive_noise):
    found = figures(on_additive_noise)
    assert list(found.kinds) == ["all", "matrix", "vector"]
    parts = ("matrix", "vector")
    assert sum(found.squared_norm[kind] for kind in parts) == pytest.approx(
        found.squared_norm["all"], rel=1e-12
    )
    for estimator in ("gradient", "ema", "approx", "exact"):
        for name in ("bias", "variance", "bias_noise"):
            total, *each = (
                getattr(found.kinds[kind][estimator], name) * found.squared_norm[kind]
                for kind in ("all", *parts)
            )
            assert sum(each) == pytest.approx(total, rel=1e-9)


def test_the_same_seed_gives_the_same_figures_and_another_one_others():
    path = line(steps=3)
    first, again, other = (
        figures(measure(additive, path, streams=3, seed=seed)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first.kinds["all"]["ema"].variance != other.kinds["all"]["ema"].variance


def test_what_the_start_leaves_in_an_average_is_known():
    correction = make_correction()
    found = figures(measure(additive, line(steps=7), streams=2))
    assert found.history == 7
    assert found.start_weight == pytest.approx(BETA1**7)
    for estimator in ("ema", "approx", "exact"):
        momenta = Momenta([torch.ones(1, dtype=torch.float64)], correction)
        nothing = [torch.zeros(1, dtype=torch.float64)]
        for _ in range(7):
            momenta.update(nothing, nothing)
        left = correction.start_weight(estimator, steps=7)
        assert momenta.estimates()[estimator][0].item() == pytest.approx(left, rel=1e-12)
    assert correction.start_weight("gradient", steps=7) == 0


def test_a_large_batch_is_the_mean_over_its_sequences_whatever_its_parts():
    def numbered(numbers):
        rows = torch.tensor(list(numbers), dtype=torch.float64)
        return (rows[:, None].expand(-1, COORDINATES),)

    # Parts of 4, 4 and 2 sequences; x is 2, and the noise of a sequence is its number.
    measured = measure(
        additive, line(steps=1, slope=0.0), samples=lambda _: numbered, streams=2, large=10
    )
    assert measured.truth.weight == 10
    assert measured.truth.mean[0][0].tolist() == pytest.approx([2 + 4.5] * (COORDINATES // 2))


def test_no_stream_is_kept_while_the_next_one_runs(monkeypatch):
    alive: weakref.WeakSet[Momenta] = weakref.WeakSet()
    most = []
    begin = Momenta.__init__

    def counted(self, *args):
        begin(self, *args)
        alive.add(self)
        most.append(len(alive))

    monkeypatch.setattr(Momenta, "__init__", counted)
    measure(additive, line(steps=2), streams=4, large=8)
    assert most == [1, 1, 1, 1]


def test_a_gradient_that_is_not_finite_fails_and_names_the_step():
    def broken(numbers):
        return (torch.full((len(numbers), COORDINATES), torch.nan, dtype=torch.float64),)

    with pytest.raises(FailedError, match="before step 3 are not finite"):
        measure(additive, line(steps=3), samples=lambda _: broken, streams=2)

"""How often arms that are the same thing are called different, and how often a difference is found.

The final loss of a run is a mean for its rate, an effect of its seed that all arms share, and noise
of its own. Each repetition goes through the whole analysis, the search for the best rate included.

What 20,000 repetitions of the same simulation gave, at three rates an arm, in the worst case of
rates that lie 0 to 4 standard deviations of the noise apart:

- Rates chosen on all seeds: 5.3 %. Both arms end lower than on fresh seeds, by 0.4 standard
  deviations where rates are equal and seeds are five, but by as much, so that the difference is not
  biased. With equal rates the test is conservative, 2 %, as the lowest of several means varies less
  than any one of them. An arm with three rates against one with a single rate is favoured by those
  0.4: 6 %.
- Rates chosen on one seed of five: 16 %, of ten: 32 %, without an allowance for the choice. One arm
  has better luck in its search than the other, and all its seeds then show it. With the allowance
  of `Choice.doubt`: 6.7 % and 7.2 %.
"""

import numpy as np
import pytest

from mars.report.analysis import analyze
from mars.report.statistics import paired_difference
from report.synthetic import make_results

REPETITIONS = 200
NOISE = 0.01
RATES = (0.001, 0.002, 0.004)
OPTIMIZERS = ("adamw", "mars-adamw", "mars-m", "muon")


def simulated(rng, *, arms=2, seeds=5, spacing=0.0, search=None, shift=0.0):
    """Return results whose arms are the same; the last one is ``shift`` noises lower."""
    by_seed = rng.normal(2.0, 0.03, seeds)
    finals = {}
    for number, label in enumerate(OPTIMIZERS[:arms]):
        moved = NOISE * shift * (number == arms - 1)
        finals[label] = {
            lr: dict(
                enumerate(
                    by_seed + spacing * NOISE * abs(i - 1) - moved + rng.normal(0, NOISE, seeds)
                )
            )
            for i, lr in enumerate(RATES)
        }
        if search is not None:  # as a comparison runs it: the best rate alone on the other seeds
            best = min(RATES, key=lambda lr: np.mean([finals[label][lr][s] for s in range(search)]))
            for lr in set(RATES) - {best}:
                finals[label][lr] = {seed: finals[label][lr][seed] for seed in range(search)}
    return make_results(finals, search_seeds=search)


def called_different(seed, **kind):
    """Return the part of repetitions in which any arm is called different."""
    rng = np.random.default_rng(seed)
    calls = [{arm.call for arm in analyze(simulated(rng, **kind)).arms} for _ in range(REPETITIONS)]
    assert all(each <= {"baseline", "lower", "higher", "undecided"} for each in calls)
    return np.mean([bool(each & {"lower", "higher"}) for each in calls])


@pytest.mark.parametrize("search", [None, 1])
@pytest.mark.parametrize("spacing", [0.0, 2.0])
def test_two_arms_that_are_the_same_are_called_different_in_about_one_case_in_twenty(
    search, spacing
):
    rate = called_different(11, search=search, spacing=spacing)
    assert 0.01 <= rate <= 0.08


def test_three_seeds_are_not_called_different_more_often():
    assert 0.01 <= called_different(2, seeds=3, search=1, spacing=2.0) <= 0.08


@pytest.mark.parametrize("search", [None, 1])
def test_a_family_of_four_arms_is_called_different_no_more_often_than_one(search):
    assert called_different(3, arms=4, search=search, spacing=2.0) <= 0.08


def test_without_the_allowance_a_search_on_one_seed_would_call_luck_a_difference():
    rng = np.random.default_rng(5)
    found = []
    for _ in range(REPETITIONS):
        ours, baseline = analyze(simulated(rng, search=1, spacing=2.0)).arms
        found.append(paired_difference(ours.losses, baseline.losses).p_value < 0.05)
    assert np.mean(found) > 0.1


@pytest.mark.parametrize(("search", "shift"), [(None, 5.0), (1, 12.0)])
def test_a_difference_of_several_standard_errors_is_found_nearly_always(search, shift):
    rng = np.random.default_rng(7)
    calls = [
        analyze(simulated(rng, arms=4, search=search, spacing=2.0, shift=shift)).arms[3].call
        for _ in range(REPETITIONS)
    ]
    assert calls.count("lower") >= 0.95 * REPETITIONS
    assert "higher" not in calls

"""The search for an arm's learning rate, as it is judged, and how far it can be trusted."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mars.report.results import Arm, AtRate
from mars.report.statistics import squared_shortfall

# A rate that was right by luck looks more certain than it is. With this factor a simulated null
# stays below 8 % at its worst, which is with rates two standard deviations apart.
_SAFETY = 1.5


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The rate that was chosen for an arm."""

    rate: AtRate
    seeds: int
    """Seeds it was chosen on."""
    gaps: tuple[float, ...]
    """How much higher the mean losses of the other rates were on these seeds."""

    def doubt(self, *, spread: float, seeds: int) -> float:
        """Return the mean squared loss that a better choice of rate might have saved.

        Where few seeds chose the rate and more are compared at it, the differences by seed are all
        at the same rates: they do not show that other rates might have been chosen. Two arms that
        are the same thing then differ beyond chance, as one had better luck in its search.
        ``spread`` is the variance of the difference of two runs of one seed, ``seeds`` the number
        that is compared. Chosen on all of these, a rate is in no more doubt than they show.
        """
        if self.seeds >= seeds:
            return 0.0
        variance = spread * (1 / self.seeds - 1 / seeds)
        return _SAFETY * math.fsum(squared_shortfall(gap, variance) for gap in self.gaps)


def choose(arm: Arm, search_seeds: Sequence[int]) -> Choice | None:
    """Return the rate with the lowest mean final loss over the search seeds.

    A rate that diverged on more of them loses to one that did on fewer; of equal ones the smaller
    rate is taken. Rates are judged on the seeds that all of them have finished. Where there is no
    such seed, as in a comparison under way, the rates that have finished the most are judged, on
    what they have. None where no run has finished with a loss.
    """
    finished = {rate.lr: final_losses(rate) for rate in arm.rates}
    own = {lr: losses.keys() & set(search_seeds) for lr, losses in finished.items()}
    own = {lr: seeds for lr, seeds in own.items() if seeds}
    if not own:
        return None
    common = set.intersection(*own.values())
    most = max(map(len, own.values()))
    judged = {lr: common or seeds for lr, seeds in own.items() if common or len(seeds) == most}
    scores = {lr: _score(finished[lr], seeds) for lr, seeds in judged.items()}
    best = min(scores, key=lambda lr: (*scores[lr], lr))
    if scores[best][0] == len(judged[best]):
        return None
    gaps = (
        mean - scores[best][1] for lr, (lost, mean) in scores.items() if lr != best and not lost
    )
    rate = next(rate for rate in arm.rates if rate.lr == best)
    return Choice(rate, len(judged[best]), tuple(gaps))


def final_losses(rate: AtRate) -> dict[int, float]:
    """Return the final loss of each finished seed: infinite where the run diverged."""
    return {trial.seed: trial.final_loss for trial in rate.trials if trial.is_complete}


def _score(losses: dict[int, float], seeds: Collection[int]) -> tuple[int, float]:
    """Return how many of some seeds diverged, and the mean loss of the others."""
    finite = [losses[seed] for seed in sorted(seeds) if math.isfinite(losses[seed])]
    return len(seeds) - len(finite), math.fsum(finite) / len(finite) if finite else math.inf

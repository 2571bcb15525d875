"""What the results say: the best rate of each arm, and each arm against the baseline.

An arm's best rate is found on the search seeds; its loss is the mean over all seeds at that rate;
its difference to the baseline is paired by seed. A claim takes three seeds in common and a p-value
that allows for the number of arms. A loss that is not finite enters no mean: an arm that diverged
on one seed at its best rate has no loss at all.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mars.report.caveats import caveats
from mars.report.choice import Choice, choose, final_losses
from mars.report.export import as_json
from mars.report.results import Arm, AtRate, Results
from mars.report.statistics import (
    CLAIM_LEVEL,
    CLAIM_SEEDS,
    Estimate,
    Paired,
    first_reached,
    holm,
    paired_difference,
    summarize,
    variance,
)
from mars.report.summary import ArmSummary, AtLr, Call
from mars.report.trials import Trial
from mars.report.verdict import cost, verdict

__all__ = ["Analysis", "ArmSummary", "AtLr", "Call", "analyze"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Analysis:
    """The answer: figures for every arm, and the sentences that they support."""

    results: Results
    arms: tuple[ArmSummary, ...]
    """In the order of ``results.arms``."""
    verdict: tuple[str, ...]
    """Plain sentences, the most important first."""
    cost: tuple[str, ...]
    """Plain sentences on time and memory, which no two runs of a comparison have quite alike."""
    caveats: tuple[str, ...]
    """What the data do not show."""

    # Any: JSON.
    def as_json(self) -> dict[str, Any]:
        """Return everything here as plain JSON values, without NaN, in a stable order."""
        return {
            **as_json(self.results, self.arms),
            "verdict": list(self.verdict),
            "cost": list(self.cost),
            "caveats": list(self.caveats),
        }


def analyze(results: Results) -> Analysis:
    """Return what the results say."""
    search = results.seeds[: results.search_seeds]
    best = {arm.label: choose(arm, search) for arm in results.arms}
    rival = best.get(results.baseline) if results.baseline is not None else None
    paired = {
        label: _paired(choice, rival) for label, choice in best.items() if label != results.baseline
    }
    adjusted = _adjusted(paired)
    arms = tuple(
        _summary(
            arm,
            best[arm.label],
            rival,
            paired=paired.get(arm.label),
            adjusted_p=adjusted.get(arm.label),
            is_baseline=arm.label == results.baseline,
        )
        for arm in results.arms
    )
    return Analysis(
        results=results,
        arms=arms,
        verdict=verdict(results, arms),
        cost=cost(arms),
        caveats=caveats(results, arms),
    )


def _paired(choice: Choice | None, rival: Choice | None) -> Paired | None:
    if choice is None or rival is None:
        return None
    ours, theirs = final_losses(choice.rate), final_losses(rival.rate)
    common = ours.keys() & theirs.keys()
    if not common or not all(map(math.isfinite, (*ours.values(), *theirs.values()))):
        return None
    spread = variance([ours[seed] - theirs[seed] for seed in sorted(common)])
    doubt = sum(each.doubt(spread=spread, seeds=len(common)) for each in (choice, rival))
    return paired_difference(ours, theirs, doubt=doubt)


def _adjusted(paired: Mapping[str, Paired | None]) -> dict[str, float]:
    """Return Holm's p-value of every arm that has the seeds for a claim."""
    family = {
        label: each.p_value
        for label, each in paired.items()
        if each is not None and each.p_value is not None and len(each.seeds) >= CLAIM_SEEDS
    }
    return dict(zip(family, holm(list(family.values())), strict=True))


def _summary(
    arm: Arm,
    choice: Choice | None,
    rival: Choice | None,
    *,
    paired: Paired | None,
    adjusted_p: float | None,
    is_baseline: bool,
) -> ArmSummary:
    best = choice.rate if choice else None
    trials = [trial for trial in best.trials if trial.is_complete] if best else []
    losses = final_losses(best) if best else {}
    diverged = sum(trial.is_diverged for trial in (trials if best else arm.trials))
    pairs = _pairs(trials, rival.rate) if paired and rival else []
    tokens, seconds, reached = _to_baseline(pairs)
    return ArmSummary(
        arm=arm,
        best_lr=best.lr if best else None,
        is_at_edge=best is not None and _is_at_edge(arm, best),
        loss=_mean(losses.values()),
        losses=losses,
        paired=paired,
        adjusted_p=adjusted_p,
        call=_call(paired, adjusted_p, losses, diverged=diverged, is_baseline=is_baseline),
        tokens_to_baseline=tokens,
        seconds_to_baseline=seconds,
        reached=reached,
        step_seconds=_mean([t.step_seconds for t in trials if t.step_seconds is not None]),
        optimizer_bytes=_largest(trial.optimizer_bytes for trial in trials),
        peak_memory_bytes=_largest(trial.peak_memory_bytes for trial in trials),
        diverged=diverged,
        sensitivity=tuple(_at_lr(rate) for rate in arm.rates),
    )


def _call(
    paired: Paired | None,
    adjusted_p: float | None,
    losses: Mapping[int, float],
    *,
    diverged: int,
    is_baseline: bool,
) -> Call:
    if is_baseline:
        return "baseline"
    if diverged:
        return "diverged"
    if not losses:
        return "unfinished"
    if paired is None:
        return "not compared"
    if adjusted_p is None:
        return "one seed" if len(paired.seeds) == 1 else "two seeds"
    if adjusted_p >= CLAIM_LEVEL:
        return "undecided"
    return "lower" if paired.difference.mean < 0 else "higher"


def _is_at_edge(arm: Arm, best: AtRate) -> bool:
    finished = [rate.lr for rate in arm.rates if final_losses(rate)]
    return len(finished) > 1 and best.lr in (finished[0], finished[-1])


def _at_lr(rate: AtRate) -> AtLr:
    losses = final_losses(rate)
    return AtLr(rate.lr, _mean(losses.values()), sum(map(math.isinf, losses.values())))


def _pairs(trials: list[Trial], rival: AtRate) -> list[tuple[Trial, Trial]]:
    """Return our runs with the baseline's of the same seeds, all finished."""
    theirs = {trial.seed: trial for trial in rival.trials if trial.is_complete}
    return [(trial, theirs[trial.seed]) for trial in trials if trial.seed in theirs]


def _to_baseline(
    pairs: list[tuple[Trial, Trial]],
) -> tuple[Estimate | None, Estimate | None, tuple[int, int] | None]:
    """Return tokens and seconds to the baseline's final loss, and how many seeds reached it."""
    if not pairs:
        return None, None, None
    tokens, seconds = [], []
    for ours, theirs in pairs:
        curve, other = ours.validation, theirs.validation
        count = first_reached(curve.counts, curve.losses, theirs.final_loss)
        clock = first_reached(curve.seconds, curve.losses, theirs.final_loss)
        if count is not None and clock is not None:
            tokens.append(count / other.counts[-1])
            seconds.append(clock / other.seconds[-1])
    reached = (len(tokens), len(pairs))
    if len(tokens) < len(pairs):
        return None, None, reached
    return _mean(tokens), _mean(seconds), reached


def _mean(values: Iterable[float]) -> Estimate | None:
    """Return an estimate, or None where there is no value or one that is not finite."""
    known = [float(value) for value in values]
    return summarize(known) if known and all(map(math.isfinite, known)) else None


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)

"""What the figures say, in sentences: only what they support, with its uncertainty."""

import math
from collections.abc import Iterator, Sequence

from mars.metrics.quantities import count_text
from mars.report.equality import inequalities
from mars.report.results import Results
from mars.report.statistics import CLAIM_LEVEL, Paired
from mars.report.summary import ArmSummary
from mars.report.wording import (
    count,
    decimals,
    interval,
    loss_with_interval,
    p_text,
    percent_with_interval,
    plain,
    signed,
)

# What is known for certain comes first, what is not known last.
_ORDER = ("lower", "higher", "undecided", "two seeds", "one seed", "diverged", "not compared")


def verdict(results: Results, arms: Sequence[ArmSummary]) -> tuple[str, ...]:
    """Return what came out, in plain sentences, the most important first."""
    baseline = next((arm for arm in arms if arm.call == "baseline"), None)
    others = sorted((arm for arm in arms if arm is not baseline), key=_importance)
    sentences = [*_unfinished(results), *_unequal(results)]
    if not any(arm.losses for arm in arms):
        return (*sentences, *_nothing(arms))
    if baseline is None or not others:
        return (*sentences, *(_described(arm) for arm in others or arms))
    if baseline.loss is None:
        rest = (_described(arm) for arm in others)
        return (*sentences, _unusable(baseline), *rest)
    family = sum(arm.adjusted_p is not None for arm in arms)
    sentences += [_compared(arm, baseline, family) for arm in others]
    sentences += [_tokens(arm, baseline) for arm in others if _is_ahead(arm)]
    return tuple(sentences)


def cost(arms: Sequence[ArmSummary]) -> tuple[str, ...]:
    """Return what each arm took against the baseline, in sentences: time, memory."""
    baseline = next((arm for arm in arms if arm.call == "baseline"), None)
    if baseline is None:
        return ()
    return tuple(
        sentence for arm in arms if arm is not baseline for sentence in _costs(arm, baseline)
    )


def _importance(arm: ArmSummary) -> tuple[int, float]:
    rank = _ORDER.index(arm.call) if arm.call in _ORDER else len(_ORDER)
    return rank, arm.paired.difference.mean if arm.paired else math.inf


def _unfinished(results: Results) -> list[str]:
    if not results.pending:
        return []
    finished, failed = sum(t.is_complete for t in results.trials), len(results.failures)
    verb = "is" if finished == 1 else "are"
    told = f"{finished} of {count(finished + results.pending, 'run')} {verb} finished"
    if failed >= results.pending:
        return [f"{told}; the others failed."]
    return [f"{told}: this is an intermediate result."]


def _unequal(results: Results) -> list[str]:
    if not inequalities(results):
        return []
    return [
        "Beware: the arms did not have the same data, model, budget or validation, so that what "
        "differs between them may not be the optimizer."
    ]


def _nothing(arms: Sequence[ArmSummary]) -> list[str]:
    if all(arm.diverged for arm in arms):
        return ["Every arm diverged: no run ended with a loss."]
    return [_described(arm) for arm in arms]


def _unusable(baseline: ArmSummary) -> str:
    """Return why nothing can be compared with the baseline."""
    return f"Nothing can be compared with the baseline: {_lossless(baseline)}."


def _lossless(arm: ArmSummary) -> str:
    """Return why an arm has no loss, as a clause."""
    runs = [trial for trial in arm.arm.trials if trial.is_complete]
    if not runs:
        return f"{arm.name} has no finished run"
    if arm.best_lr is None:
        what = "its only run" if len(runs) == 1 else f"{arm.diverged} of its {len(runs)} runs"
        return f"{arm.name} diverged in {what}, at every learning rate"
    finished = count(len(arm.losses), "seed")
    return f"{arm.name} diverged on {arm.diverged} of {finished} at its best rate, {arm.best_lr:g}"


def _described(arm: ArmSummary) -> str:
    """Return how an arm ended, by itself."""
    if arm.loss is None:
        return f"{_lossless(arm)}."
    loss = loss_with_interval(arm.loss)
    return f"{arm.name} ended at a validation loss of {loss} with learning rate {arm.best_lr:g}."


def _compared(arm: ArmSummary, baseline: ArmSummary, family: int) -> str:
    """Return how an arm ended against the baseline."""
    if arm.loss is None:
        return f"{_lossless(arm)}; its loss is not compared."
    if arm.paired is None:
        return f"{arm.name} and {baseline.name} have no finished seed in common: not compared."
    name, rival, paired = arm.name, baseline.name, arm.paired
    losses = _losses(arm, baseline, paired)
    difference = f"a difference of {signed(paired.difference.mean, decimals(paired.difference))}"
    if _is_identical(arm, baseline, paired):
        seeds = count(len(paired.seeds), "seed")
        return f"{name} ended at exactly the validation loss of {rival} on {seeds}."
    if arm.call == "one seed":
        return (
            f"One seed: {name} against {rival} ended at a validation loss of {losses}, "
            f"{difference}; one seed says nothing about chance."
        )
    margin = f"({_uncertainty(arm, paired, family)})"
    if arm.call == "two seeds":
        return (
            f"Two seeds: {name} against {rival} ended at a validation loss of {losses}, "
            f"{difference} {margin}; two seeds are too few for a claim."
        )
    if arm.call == "undecided":
        return (
            f"For {name} against {rival} the runs decide nothing: {losses}, {difference} {margin}."
        )
    return (
        f"{name} ended at a {arm.call} validation loss than {rival}: {losses}, "
        f"{difference} {margin}."
    )


def _losses(arm: ArmSummary, baseline: ArmSummary, paired: Paired) -> str:
    """Return the two losses whose difference is told: means over the seeds of both."""
    places = decimals(paired.difference)
    ours, theirs = (
        math.fsum(each.losses[seed] for seed in paired.seeds) / len(paired.seeds)
        for each in (arm, baseline)
    )
    return f"{plain(ours, places)} against {plain(theirs, places)}"


def _is_identical(arm: ArmSummary, baseline: ArmSummary, paired: Paired) -> bool:
    return all(arm.losses[seed] == baseline.losses[seed] for seed in paired.seeds)


def _uncertainty(arm: ArmSummary, paired: Paired, family: int) -> str:
    parts = [
        interval(paired.difference, places=decimals(paired.difference)),
        count(len(paired.seeds), "seed"),
    ]
    if arm.adjusted_p is not None and paired.p_value is not None:
        told = p_text(arm.adjusted_p)
        if family > 1:
            told += f" after allowing for {family} comparisons"
        if arm.call == "undecided" and paired.p_value < CLAIM_LEVEL:
            told = f"{p_text(paired.p_value)}, but {told}"
        parts.append(told)
    return ", ".join(parts)


def _is_ahead(arm: ArmSummary) -> bool:
    """Whether an arm is called better, or would be if it had the seeds."""
    is_lower = arm.paired is not None and arm.paired.difference.mean < 0
    return is_lower and arm.call in ("lower", "two seeds", "one seed")


def _tokens(arm: ArmSummary, baseline: ArmSummary) -> str:
    """Return how early an arm was where the baseline ended."""
    unit = arm.arm.trials[0].unit
    if arm.tokens_to_baseline is None:
        done, total = arm.reached or (0, 0)
        return f"{arm.name} reached the final loss of {baseline.name} in {done} of {total} seeds."
    part = percent_with_interval(arm.tokens_to_baseline, of=f"its {unit}")
    return f"{arm.name} reached the final loss of {baseline.name} after {part}."


def _costs(arm: ArmSummary, baseline: ArmSummary) -> Iterator[str]:
    if arm.step_seconds is not None and baseline.step_seconds is not None:
        ours, theirs = arm.step_seconds.mean, baseline.step_seconds.mean
        yield (
            f"A step of {arm.name} took {ours / theirs:.2f} times as long as one of "
            f"{baseline.name}: {1000 * ours:.3g} ms against {1000 * theirs:.3g} ms."
        )
    if arm.seconds_to_baseline is not None:
        part = percent_with_interval(arm.seconds_to_baseline, of="its seconds")
        yield f"{arm.name} reached the final loss of {baseline.name} after {part}."
    if arm.optimizer_bytes is not None and baseline.optimizer_bytes:
        times = arm.optimizer_bytes / baseline.optimizer_bytes
        held, holds = count_text(arm.optimizer_bytes), count_text(baseline.optimizer_bytes)
        yield (
            f"The optimizer state of {arm.name} is {times:.2f} times that of {baseline.name}: "
            f"{held}B against {holds}B."
        )

"""What the data do not show, as far as the data tell."""

from collections.abc import Iterator, Sequence

from mars.metrics.quantities import count_text
from mars.report.environment import differences, environment
from mars.report.equality import budget, inequalities
from mars.report.results import Results
from mars.report.statistics import CLAIM_SEEDS
from mars.report.summary import ArmSummary
from mars.report.wording import called, count, listed

# Facts of the environment that may change a result, or the time that it takes.
_DECISIVE = ("mars", "commit", "python", "torch", "device", "processor", "threads", "system")


def caveats(results: Results, arms: Sequence[ArmSummary]) -> tuple[str, ...]:
    """Return the limits of what was found, the gravest first."""
    return (
        *(f"The comparison is not equal: the arms had {each}." for each in inequalities(results)),
        *_missing(results),
        *_few_seeds(results, arms),
        *_edges(arms),
        *_search_sizes(results),
        *_mixture(results),
        *_beyond_the_optimizer(results),
        *_scale(results),
        *_search(results),
        *_pairs(results, arms),
        *_speed(arms),
    )


def _missing(results: Results) -> Iterator[str]:
    if results.failures:
        failed = count(len(results.failures), "run")
        yield f"{failed} failed and left no result: {'; '.join(results.failures)}."
    rest = results.pending - len(results.failures)
    if rest > 0:
        yield f"{count(rest, 'run')} of the plan {'is' if rest == 1 else 'are'} not finished."


def _few_seeds(results: Results, arms: Sequence[ArmSummary]) -> Iterator[str]:
    if results.baseline is None:
        few = [arm for arm in arms if arm.loss is not None and arm.loss.count < CLAIM_SEEDS]
    else:
        few = [arm for arm in arms if arm.call in ("one seed", "two seeds")]
    if few:
        names = listed([arm.name for arm in few])
        yield (
            f"Fewer than three seeds for {names}: differences between runs of one arm are not "
            "known well enough to tell an effect from chance."
        )


def _edges(arms: Sequence[ArmSummary]) -> Iterator[str]:
    for arm in arms:
        if arm.is_at_edge and arm.best_lr is not None:
            lowest = arm.best_lr == min(at.lr for at in arm.sensitivity if at.loss or at.diverged)
            side = "lowest" if lowest else "highest"
            yield (
                f"The best rate of {arm.name}, {arm.best_lr:g}, is the {side} that was tried: a "
                f"{'lower' if lowest else 'higher'} one may be better still."
            )


def _search_sizes(results: Results) -> Iterator[str]:
    arms_by_size: dict[int, list[str]] = {}
    for arm in results.arms:
        if arm.rates:
            arms_by_size.setdefault(len(arm.rates), []).append(called(arm.label))
    if len(arms_by_size) > 1:
        told = "; ".join(f"{size} for {listed(arms)}" for size, arms in arms_by_size.items())
        yield (
            f"The arms had different numbers of learning rates to choose from ({told}): the more "
            "an arm has, the lower its best loss is by chance alone."
        )
    elif set(arms_by_size) == {1}:
        yield "Each arm was tried at one learning rate: another one may suit it better."


def _mixture(results: Results) -> Iterator[str]:
    found = environment(results)
    mixed = [name for name in _DECISIVE if len(found.get(name, ())) > 1]
    if mixed:
        told = "; ".join(f"{name}: {', '.join(found[name])}" for name in mixed)
        yield f"The runs come from different environments ({told}): some of it may be due to that."


def _beyond_the_optimizer(results: Results) -> Iterator[str]:
    keys = [key for key in differences(results) if not key.startswith("optimizer.")]
    if keys:
        yield (
            f"The arms differ in more than the optimizer, namely in {listed(keys)}: what is said "
            "of an optimizer holds for it with these."
        )


def _scale(results: Results) -> Iterator[str]:
    trials = results.trials
    unit = trials[0].unit
    budgets = [budget(trial.config) for trial in trials]
    sizes = [trial.manifest.get("parameters") for trial in trials]
    known = [size for size in sizes if isinstance(size, int) and size > 0]
    model = f"Models of {_range(known)} parameters" if known else "Models of unknown size"
    ratio = ""
    if len({*known}) == len({*budgets}) == 1:
        model = f"One model of {_range(known)} parameters"
        share = budgets[0] / known[0]
        ratio = f", or {share:.0f} a parameter" if share >= 10 else f", or {share:.2g} a parameter"
    yield (
        f"{model}, trained on {_range(budgets)} {unit}{ratio}: larger models, longer runs and "
        "other data may order the arms differently."
    )


def _range(values: Sequence[int]) -> str:
    low, high = count_text(min(values)), count_text(max(values))
    return low if low == high else f"{low} to {high}"


def _search(results: Results) -> Iterator[str]:
    if not any(len(arm.rates) > 1 for arm in results.arms):
        return
    yield (
        f"Learning rates were searched on a grid{_factor(results)}; all else is as it was set, and "
        "an arm may gain from tuning that another has had."
    )
    searched, total = min(results.search_seeds, len(results.seeds)), len(results.seeds)
    seeds = "the same seeds" if searched == total else f"{searched} of the {total} seeds"
    yield (
        f"The best rates were chosen by the validation loss that is reported, on {seeds}: each "
        "loss is a little lower than it would be on fresh ones. The arms share this bias as far as "
        "they have equally many rates and equally noisy losses."
    )
    if searched < total:
        yield (
            f"On {count(searched, 'seed')} a rate may be chosen by luck. The intervals of the "
            "differences are wider for that, those of the losses are not; a search on all seeds "
            "would narrow them."
        )


def _factor(results: Results) -> str:
    """Return how far neighbours on the grids lie apart, where there are any."""
    steps = [
        high.lr / low.lr
        for arm in results.arms
        for low, high in zip(arm.rates, arm.rates[1:], strict=False)
        if low.lr > 0
    ]
    if not steps:
        return ""
    low, high = f"{min(steps):.3g}", f"{max(steps):.3g}"
    if low == high:
        return f" whose neighbours are a factor of {low} apart"
    return f" whose neighbours are factors of {low} to {high} apart"


def _pairs(results: Results, arms: Sequence[ArmSummary]) -> Iterator[str]:
    if results.baseline is not None and sum(arm.paired is not None for arm in arms) > 1:
        yield (
            f"Each arm was tested against {called(results.baseline)} only: the order of the others "
            "among themselves was not tested."
        )


def _speed(arms: Sequence[ArmSummary]) -> Iterator[str]:
    if any(arm.reached is not None for arm in arms):
        yield (
            "Under a decaying learning rate a run comes down to its last loss late: what an arm "
            "took to the baseline's final loss overstates what a shorter run of its own would take."
        )
    if any(arm.step_seconds is not None or arm.seconds_to_baseline is not None for arm in arms):
        yield (
            "Seconds were measured as the runs came, not one alone on its machine: runs side by "
            "side share cores, caches and memory bandwidth."
        )

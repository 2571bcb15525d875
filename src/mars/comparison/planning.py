"""From what a comparison asks to the plan of its runs; what cannot be run is refused here."""

import hashlib
import re
from collections.abc import Iterator

from mars.comparison.arms import Study, StudyArm, expanded
from mars.comparison.plan import Plan, PlannedArm, confirming_trials, search_trials
from mars.comparison.rates import rates_of
from mars.comparison.settings import listed
from mars.config.check import OPTIONS, check
from mars.config.errors import RefusedError
from mars.config.keys import Value, nearest
from mars.config.load import assign
from mars.config.toml import shown

# With a rate and a seed after it, a name must fit the 255 bytes of a file's.
_LONGEST_SLUG = 100


def make_plan(study: Study, *, command: str) -> Plan:
    """Return the plan of a study, every run of which has been checked."""
    study = expanded(study)
    _check_study(study)
    search_seeds = len(study.seeds) if study.search_seeds is None else study.search_seeds
    plan = Plan(
        name=study.name,
        description=study.description,
        command=command,
        baseline=_baseline(study),
        seeds=study.seeds,
        search_seeds=search_seeds,
        arms=tuple(_planned(study)),
    )
    _check_searches(plan)
    _check_trials(plan)
    return plan


def _check_study(study: Study) -> None:
    if not study.arms:
        raise RefusedError("there are no arms; name at least one optimizer")
    if not study.seeds or len(set(study.seeds)) < len(study.seeds) or min(study.seeds) < 0:
        raise RefusedError(f"seeds must be different and at least 0, got {shown(study.seeds)}")
    most = len(study.seeds)
    if study.search_seeds is not None and not 1 <= study.search_seeds <= most:
        said = f"search_seeds must lie between 1 and the number of seeds, {most}"
        raise RefusedError(f"{said}; got {study.search_seeds}")
    for arm in study.arms:
        _check_common(study, arm)


def _check_common(study: Study, arm: StudyArm) -> None:
    """Refuse a setting of every run that an arm's optimizer does not have."""
    for key, value in study.settings.items():
        section, _, option = key.rpartition(".")
        if section == "optimizer" and value is not None and option not in OPTIONS[arm.optimizer]:
            raise RefusedError(
                f"{key} = {shown(value)} is set for every run, and {arm.optimizer} has no such "
                f"option; set it for the others with --vary {option}=..., or in a study's arms"
            )


def _baseline(study: Study) -> str:
    labels = [str(arm.label) for arm in study.arms]
    if study.baseline is None:
        adamws = [str(arm.label) for arm in study.arms if arm.optimizer == "adamw"]
        return [*adamws, *labels][0]
    if study.baseline not in labels:
        close = nearest(study.baseline, labels)
        hint = f"did you mean {shown(close)}?" if close else f"there are {listed(labels)}"
        raise RefusedError(f"baseline {shown(study.baseline)} is no arm; {hint}")
    return study.baseline


def _planned(study: Study) -> Iterator[PlannedArm]:
    slugs: set[str] = set()
    for arm in study.arms:
        label = str(arm.label)
        slug = _slug(label, taken=slugs)
        slugs.add(slug)
        common: dict[str, Value] = {
            "name": slug,
            "description": study.description,
            "training.stop_diverged": True,
        }
        config = assign(study.base.member(arm.optimizer), study.settings)
        yield PlannedArm(
            label=label,
            slug=slug,
            optimizer=arm.optimizer,
            rates=rates_of(arm, study),
            settings=dict(arm.settings),
            config=assign(config, {**arm.settings, **common}),
        )


def _slug(label: str, *, taken: set[str]) -> str:
    """Return a label as a directory's name: lower case, with dashes, unlike those taken."""
    slug = re.sub(r"[^a-z0-9.]+", "-", label.lower())[:_LONGEST_SLUG].strip("-.") or "arm"
    while slug in taken:
        # Of the label alone: it does not depend on how many others are like it.
        slug = f"{slug}-{hashlib.sha256(label.encode()).hexdigest()[:12]}"
    return slug


def _check_searches(plan: Plan) -> None:
    """Refuse searches of unequal size: the larger one finds a lower loss by chance alone."""
    counts = {len(arm.rates) for arm in plan.arms}
    if len(counts) > 1:
        found = listed(f"{arm.label}: {len(arm.rates)}" for arm in plan.arms)
        raise RefusedError(
            f"the arms have unequal numbers of learning rates ({found}); give each as many"
        )


def _check_trials(plan: Plan) -> None:
    trials = list(search_trials(plan))
    for rates in zip(*(arm.rates for arm in plan.arms), strict=True):
        best = {arm.label: rate for arm, rate in zip(plan.arms, rates, strict=True)}
        trials += confirming_trials(plan, best)
    for trial in trials:
        try:
            check(trial.config)
        except RefusedError as error:
            raise RefusedError(f"arm {shown(trial.arm)}: {error}") from None

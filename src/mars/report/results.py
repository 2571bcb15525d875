"""Trials sorted into what is compared: arms, their learning rates, their seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mars.config.errors import RefusedError
from mars.config.keys import nearest
from mars.report.grouping import Group, add_loose, name_groups, unique
from mars.report.plan import Plan, is_comparison, read_plan
from mars.report.trials import Trial, is_run, read_trial


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AtRate:
    """The trials of an arm at one learning rate, sorted by seed; finished or not."""

    lr: float
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arm:
    """What is compared: an optimizer with its settings, tried at several rates and seeds."""

    label: str
    optimizer: str
    settings: Mapping[str, object]
    """By dotted key: what it sets beyond its optimizer's preset."""
    rates: tuple[AtRate, ...]
    """Sorted by rate; only those at which a run was started, so none for an arm still to come."""

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials, rate by rate, seed by seed."""
        return tuple(trial for rate in self.rates for trial in rate.trials)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Results:
    """Everything that was compared."""

    title: str
    description: str
    command: str | None
    arms: tuple[Arm, ...]
    baseline: str | None
    """Label of the arm that the others are compared with; None where there is one arm alone."""
    seeds: tuple[int, ...]
    search_seeds: int
    """How many of the seeds, from the first, chose the learning rates."""
    failures: tuple[str, ...] = ()
    """What became of runs that failed, a line each."""
    pending: int = 0
    """Planned runs that are not complete."""

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials, arm by arm, rate by rate, seed by seed."""
        return tuple(trial for arm in self.arms for trial in arm.trials)


def collect(
    paths: Sequence[Path], *, baseline: str | None = None, title: str | None = None
) -> Results:
    """Return the results of run directories and comparisons, each run counted once.

    Runs outside a comparison form an arm with those of equal config, whatever their rate and seed.
    ``baseline`` is the label of an arm; by default it is the comparison's, or adamw, or the first.
    """
    plans, loose = _sorted_out(paths)
    groups: list[Group] = []
    for plan in plans:
        _add_plan(groups, plan)
    seen = {trial.path.resolve() for group in groups for trial in group.trials}
    loose = [path for path in loose if path.resolve() not in seen]
    add_loose(groups, map(read_trial, loose))
    name_groups(groups)
    arms = tuple(_arm(group) for group in groups)
    _check_trials(arms)
    is_one = len(plans) == 1 and not loose
    seeds, search_seeds = (plans[0].seeds, plans[0].search_seeds) if is_one else _seeds(arms)
    read = [trial for group in groups for trial in (*group.trials, *group.repeats)]
    complete = {trial.path.resolve() for trial in read if trial.is_complete}
    asked = {*loose, *(trial.path for plan in plans for trial in plan.trials)}
    return Results(
        title=title or _title(plans, arms),
        description=plans[0].description if plans else "",
        command=plans[0].command if is_one else None,
        arms=arms,
        baseline=_baseline(baseline, plans, arms),
        seeds=seeds,
        search_seeds=search_seeds,
        failures=tuple(line for plan in plans for line in _failures(plan, complete)),
        pending=len({path.resolve() for path in asked} - complete)
        + sum(plan.still_unknown for plan in plans),
    )


def _sorted_out(paths: Sequence[Path]) -> tuple[list[Plan], list[Path]]:
    """Return the plans of the comparisons and the runs among some folders, each once."""
    folders = list({path.resolve(): path for path in paths}.values())
    if not folders:
        raise RefusedError("no runs were given; name run directories or comparisons")
    for folder in folders:
        if not is_comparison(folder) and not is_run(folder):
            raise RefusedError(
                f"{folder} is neither a run nor a comparison: it has no run.toml and no "
                "comparison.json; name the directories that mars train or mars compare made"
            )
    plans = [read_plan(folder) for folder in folders if is_comparison(folder)]
    return plans, [folder for folder in folders if not is_comparison(folder)]


def _add_plan(groups: list[Group], plan: Plan) -> None:
    """Add the arms of a comparison; one that an earlier comparison has too goes on there."""
    earlier = list(groups)
    for arm in plan.arms:
        paths = [trial.path for trial in plan.trials if trial.arm == arm.label]
        trials = [read_trial(path) for path in paths if is_run(path)]
        same = [group for group in earlier if trials and group.fits(trials[0].config)]
        if same:
            group = same[0]
        else:
            taken = [group.label for group in groups if group.label is not None]
            label = unique(arm.label, taken)
            group = Group(arm.optimizer, label=label, settings=arm.settings)
            groups.append(group)
        for trial in trials:
            group.add(trial)


def _arm(group: Group) -> Arm:
    rates = sorted({trial.lr for trial in group.trials})
    by_seed = sorted(group.trials, key=lambda trial: trial.seed)
    return Arm(
        label=group.label or group.optimizer,
        optimizer=group.optimizer,
        settings=group.settings,
        rates=tuple(
            AtRate(lr=lr, trials=tuple(trial for trial in by_seed if trial.lr == lr))
            for lr in rates
        ),
    )


def _check_trials(arms: Sequence[Arm]) -> None:
    trials = [trial for arm in arms for trial in arm.trials]
    if not trials:
        raise RefusedError("no run of the comparison has started yet; look again later")
    by_unit = {trial.unit: trial for trial in trials if len(trial.validation.steps)}
    if len(by_unit) > 1:
        counted = " and ".join(f"{trial.path} counts {unit}" for unit, trial in by_unit.items())
        raise RefusedError(f"{counted}: runs of different units cannot be compared; leave one out")


def _seeds(arms: Sequence[Arm]) -> tuple[tuple[int, ...], int]:
    """Return the seeds, those that every rate of every arm has first, and how many those are."""
    by_rate = [{trial.seed for trial in rate.trials} for arm in arms for rate in arm.rates]
    common = set.intersection(*by_rate)
    every = set.union(*by_rate)
    return (*sorted(common), *sorted(every - common)), len(common) or len(every)


def _baseline(asked: str | None, plans: Sequence[Plan], arms: Sequence[Arm]) -> str | None:
    labels = [arm.label for arm in arms]
    if asked is not None and asked not in labels:
        close = nearest(asked, labels)
        hint = f"did you mean {close}?" if close else f"there are {', '.join(labels)}"
        raise RefusedError(f"--baseline {asked} is none of the arms; {hint}")
    if len(arms) < 2:
        return None
    planned = [plan.baseline for plan in plans if plan.baseline in labels]
    adamw = [arm.label for arm in arms if arm.optimizer == "adamw"]
    return next(label for label in (asked, *planned, *adamw, *labels) if label is not None)


def _title(plans: Sequence[Plan], arms: Sequence[Arm]) -> str:
    if plans:
        return plans[0].name
    if len(arms) == 1:
        return arms[0].trials[0].config.name
    return f"Comparison of {', '.join(arm.label for arm in arms)}"


def _failures(plan: Plan, complete: set[Path]) -> list[str]:
    """Return a line a run that failed and has not been completed since."""
    return [
        f"{path.relative_to(plan.folder)}: {reason}"
        for path, reason in plan.failures.items()
        if path.resolve() not in complete
    ]

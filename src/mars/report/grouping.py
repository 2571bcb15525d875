"""Which runs belong to one arm, and what an arm is called."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from mars.config.errors import RefusedError
from mars.config.keys import KEYS, Value
from mars.config.schema import Run
from mars.report.trials import Trial
from mars.report.wording import value_text

# What does not change what a run computes, and what the trials of an arm differ in.
_FREE = ("name", "description", "data.path", "data.workers", "training.stop_diverged")
_FREE_SECTIONS = ("checkpoint.", "metrics.")
_WITHIN_ARMS = ("seed", "optimizer.lr")

# A label with more settings than these says less than the run's own name.
_LABEL_SETTINGS = 3

COMPARED = tuple(key for key in KEYS if key not in _FREE and not key.startswith(_FREE_SECTIONS))
"""The keys that decide what a run computes."""

_IDENTITY = tuple(key for key in COMPARED if key not in _WITHIN_ARMS)
_identity = attrgetter(*_IDENTITY)


@dataclass(slots=True, eq=False)
class Group:
    """An arm in the making. Without a label, the settings that tell it apart make one."""

    optimizer: str
    label: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    repeats: list[Trial] = field(default_factory=list)
    """Runs that are here already: comparisons may share some."""

    def fits(self, config: Run) -> bool:
        """Whether a run is one of this arm, at whatever rate and seed."""
        return any(_identity(trial.config) == _identity(config) for trial in self.trials)

    def add(self, trial: Trial) -> None:
        """Add a run, once; refuse a second one of the same rate and seed that ended otherwise."""
        same = [own for own in self.trials if (own.lr, own.seed) == (trial.lr, trial.seed)]
        if not same:
            self.trials.append(trial)
        elif same[0].final_loss == trial.final_loss:  # not so where one is unfinished: NaN
            self.repeats.append(trial)
        else:
            raise RefusedError(
                f"{same[0].path} and {trial.path} are the same run, {self.optimizer} at rate "
                f"{trial.lr:g} and seed {trial.seed}, and ended differently; leave one out"
            )


def add_loose(groups: list[Group], trials: Iterable[Trial]) -> None:
    """Add runs to the groups they fit; those that fit none make groups of their own."""
    for trial in trials:
        group = next((group for group in groups if group.fits(trial.config)), None)
        if group is None:
            group = Group(trial.config.optimizer.name)
            groups.append(group)
        group.add(trial)


def name_groups(groups: list[Group]) -> None:
    """Give each group without a label one of its own, and the settings that it stands for."""
    taken = {group.label for group in groups if group.label is not None}
    for group in groups:
        if group.label is None:
            group.settings = _distinct(group, groups)
            group.label = unique(_label(group), taken)
            taken.add(group.label)


def unique(label: str, taken: Iterable[str]) -> str:
    """Return a label that is not taken: itself, or with a number."""
    taken, made, number = set(taken), label, 1
    while made in taken:
        number += 1
        made = f"{label} ({number})"
    return made


def _distinct(group: Group, groups: list[Group]) -> dict[str, Value]:
    """Return the settings in which the groups of this one's optimizer differ, as it has them."""
    configs = [g.trials[0].config for g in groups if g.optimizer == group.optimizer and g.trials]
    own = group.trials[0].config
    getters = {key: attrgetter(key) for key in _IDENTITY}
    return {
        key: get(own) for key, get in getters.items() if len({get(each) for each in configs}) > 1
    }


def _label(group: Group) -> str:
    known = {key: value for key, value in group.settings.items() if value is not None}
    if len(known) > _LABEL_SETTINGS:
        return group.trials[0].config.name
    settings = (f"{KEYS[key].last_part} {value_text(value)}" for key, value in known.items())
    return ", ".join([group.optimizer, *settings])

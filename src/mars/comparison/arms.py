"""What a comparison asks, before its runs are worked out: arms on a common base.

A `Study` is read from a file by `mars.comparison.study`, or made of a command line by
`mars.comparison.request`. An arm that varies keys stands for several, which `expanded` writes out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

from mars.comparison.base import Base
from mars.comparison.settings import in_words
from mars.config.errors import RefusedError
from mars.config.keys import KEYS, Value
from mars.config.schema import OptimizerName
from mars.config.toml import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyArm:
    """An optimizer with its settings, or one for each combination of varied values.

    Without ``rates`` it has those around its base's own; without a ``label`` it is called after
    optimizer and settings.
    """

    optimizer: OptimizerName
    label: str | None = None
    rates: tuple[float, ...] | None = None
    settings: Mapping[str, Value] = field(default_factory=dict)
    varied: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Arms on a common base, the settings of every run, and how hard each arm is tried.

    ``search_seeds`` of None searches on all seeds; ``baseline`` of None is AdamW's arm if there
    is one, else the first.
    """

    name: str
    base: Base
    description: str = ""
    baseline: str | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    search_seeds: int | None = None
    rate_count: int = 3
    rate_factor: float = 2.0
    settings: Mapping[str, Value] = field(default_factory=dict)
    arms: tuple[StudyArm, ...] = ()


def expanded(study: Study) -> Study:
    """Return the study with one labelled arm for each combination of varied values."""
    for arm in study.arms:
        _check_label(arm.label)
    arms = tuple(each for arm in study.arms for each in _expanded(arm))
    labels = [arm.label for arm in arms]
    for arm in arms:
        if labels.count(arm.label) > 1:
            raise RefusedError(
                f"two arms are called {shown(arm.label)}; give one of them another label"
            )
    return replace(study, arms=arms)


def _check_label(label: str | None) -> None:
    if label is not None and (not label or label != label.strip() or not label.isprintable()):
        reason = "cannot be an arm's label; use words, without space around them"
        raise RefusedError(f"{shown(label)} {reason}")


def _expanded(arm: StudyArm) -> Iterator[StudyArm]:
    for values in product(*arm.varied.values()):
        varied = dict(zip(arm.varied, values, strict=True))
        settings = {**arm.settings, **varied}
        if arm.label is None:
            label = ", ".join([arm.optimizer, *_described(settings)])
        else:  # it already stands for the settings that all combinations share
            label = ", ".join([arm.label, *_described(varied)])
        yield replace(arm, label=label, settings=settings, varied={})


def _described(settings: Mapping[str, Value]) -> Iterator[str]:
    for key, value in settings.items():
        yield f"{KEYS[key].last_part} {in_words(value)}"

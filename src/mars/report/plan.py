"""comparison.json: what a comparison set out to run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mars.config.errors import RefusedError

NAME = "comparison.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedArm:
    """An arm by its label."""

    label: str
    optimizer: str
    settings: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTrial:
    """A run of an arm, and where its directory is or will be."""

    arm: str
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The arms and runs of a comparison."""

    folder: Path
    name: str
    description: str
    command: str | None
    baseline: str | None
    seeds: tuple[int, ...]
    search_seeds: int
    arms: tuple[PlannedArm, ...]
    trials: tuple[PlannedTrial, ...]
    still_unknown: int
    """Runs to come that depend on what the search finds."""
    failures: Mapping[Path, str]
    """Why a run failed, by its directory."""


def is_comparison(folder: Path) -> bool:
    """Whether a folder holds a comparison."""
    return (folder / NAME).is_file()


def read_plan(folder: Path) -> Plan:
    """Return the plan of a comparison, or refuse one that is damaged."""
    file = folder / NAME
    try:
        found = json.loads(file.read_bytes())
    except OSError as error:
        raise RefusedError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise RefusedError(f"{file} is no comparison of format {_FORMAT}; update mars, or redo it")
    try:
        return _plan(found, folder)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RefusedError(f"{file} is damaged: {type(error).__name__} {error}") from error


# Any: parsed JSON; a part of the wrong kind raises one of the errors that `read_plan` names.
def _plan(found: dict[str, Any], folder: Path) -> Plan:
    seeds = tuple(int(seed) for seed in found["seeds"])
    arms = tuple(
        PlannedArm(
            label=str(arm["label"]),
            optimizer=str(arm["optimizer"]),
            settings=dict(arm.get("settings") or {}),
        )
        for arm in found["arms"]
    )
    trials = tuple(
        PlannedTrial(arm=str(trial["arm"]), path=folder / str(trial["path"]))
        for trial in found["trials"]
    )
    labels = [arm.label for arm in arms]
    if len(set(labels)) < len(labels):
        raise ValueError(f"two arms have one label: {', '.join(labels)}")
    if strays := {trial.arm for trial in trials} - set(labels):
        raise ValueError(f"no arm is called {', '.join(sorted(strays))}")
    return Plan(
        folder=folder,
        name=str(found["name"]),
        description=str(found.get("description") or ""),
        command=found.get("command"),
        baseline=found.get("baseline"),
        seeds=seeds,
        search_seeds=int(found.get("search_seeds") or len(seeds)),
        arms=arms,
        trials=trials,
        still_unknown=int(found.get("still_unknown") or 0),
        failures={
            folder / str(failure["path"]): str(failure["reason"])
            for failure in found.get("failures") or ()
        },
    )

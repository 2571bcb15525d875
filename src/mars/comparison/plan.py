"""What a comparison runs: its arms, and a trial for each arm, learning rate and seed.

It has two phases. The search tries every rate of every arm on the first seeds; then the best rate
of each arm alone runs on the remaining seeds. All runs of one seed share initial weights and data
order, and every arm has a search of the same size.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mars.config.keys import Value
from mars.config.load import assign
from mars.config.schema import Run

FORMAT = 1
"""The version of what `write_plan` writes."""

FILE = "comparison.json"
"""Its name in the directory of a comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedArm:
    """What is compared: an optimizer with its settings, tried at several learning rates.

    ``settings`` are the keys that this arm sets beyond its optimizer's preset; ``config`` is the
    run of all its trials, but for each one's learning rate, seed and name.
    """

    label: str
    slug: str
    optimizer: str
    rates: tuple[float, ...]
    settings: Mapping[str, Value]
    config: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole comparison; the first ``search_seeds`` seeds are those of the search."""

    name: str
    description: str
    command: str
    baseline: str
    seeds: tuple[int, ...]
    search_seeds: int
    arms: tuple[PlannedArm, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTrial:
    """One run of a comparison; its path is relative to the comparison's directory."""

    arm: str
    lr: float
    seed: int
    path: str
    config: Run


class Failure(NamedTuple):
    """A trial that could not be run, by its path, and why in one line."""

    path: str
    reason: str


def search_trials(plan: Plan) -> tuple[PlannedTrial, ...]:
    """Return the trials of the search, in an order that takes all arms forward together."""
    # The arms have equally many rates, so this visits each (arm, rate) once a seed.
    return tuple(
        _trial(arm, lr=lr, seed=seed)
        for seed in plan.seeds[: plan.search_seeds]
        for rates in zip(*(arm.rates for arm in plan.arms), strict=True)
        for arm, lr in zip(plan.arms, rates, strict=True)
    )


def confirming_trials(plan: Plan, best: Mapping[str, float]) -> tuple[PlannedTrial, ...]:
    """Return the trials of each arm's best rate, by label, on the seeds the search left out.

    An arm without a best rate gets none.
    """
    for label, lr in best.items():
        if not any(arm.label == label and lr in arm.rates for arm in plan.arms):
            raise ValueError(f"{label!r} at {lr} is no part of the plan; give a planned rate")
    return tuple(
        _trial(arm, lr=best[arm.label], seed=seed)
        for seed in plan.seeds[plan.search_seeds :]
        for arm in plan.arms
        if arm.label in best
    )


def as_json(
    plan: Plan,
    trials: Sequence[PlannedTrial],
    *,
    still_unknown: int = 0,
    failures: Iterable[Failure] = (),
) -> dict[str, object]:
    """Return what `write_plan` writes."""
    return {
        "format": FORMAT,
        "name": plan.name,
        "description": plan.description,
        "command": plan.command,
        "baseline": plan.baseline,
        "seeds": list(plan.seeds),
        "search_seeds": plan.search_seeds,
        "arms": [
            {
                "label": arm.label,
                "optimizer": arm.optimizer,
                "rates": list(arm.rates),
                "settings": dict(arm.settings),
            }
            for arm in plan.arms
        ],
        "trials": [
            {"arm": trial.arm, "lr": trial.lr, "seed": trial.seed, "path": trial.path}
            for trial in trials
        ],
        # Whoever reads this before the search is over can tell that it is no whole comparison.
        "still_unknown": still_unknown,
        "failures": [{"path": path, "reason": reason} for path, reason in failures],
    }


def write_plan(
    plan: Plan,
    trials: Sequence[PlannedTrial],
    folder: Path,
    *,
    still_unknown: int = 0,
    failures: Iterable[Failure] = (),
) -> None:
    """Write the plan with the trials it has at present, in place of what was there.

    ``still_unknown`` is how many more will follow, once the search has told their rates.
    Whoever reads at any instant, even after a crash, finds the old plan or the new one.
    """
    made = as_json(plan, trials, still_unknown=still_unknown, failures=failures)
    text = json.dumps(made, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{FILE}.{os.getpid()}.writing"
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(folder / FILE)
    finally:
        unfinished.unlink(missing_ok=True)


def _trial(arm: PlannedArm, *, lr: float, seed: int) -> PlannedTrial:
    rate = f"lr-{lr:g}"
    name = f"{arm.slug}-{rate}-seed-{seed}"
    values: dict[str, Value] = {"name": name, "seed": seed, "optimizer.lr": lr}
    return PlannedTrial(
        arm=arm.label,
        lr=lr,
        seed=seed,
        path=f"runs/{arm.slug}/{rate}/seed-{seed}",
        config=assign(arm.config, values),
    )

"""A run directory as the report sees it: its config, its curves, and how it ended."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mars.config.errors import RefusedError
from mars.config.load import load_file
from mars.config.schema import Run
from mars.metrics.record import Unit
from mars.report.measured import Columns, Floats, read_measured

__all__ = ["Curve", "Floats", "Trial", "is_run", "read_trial"]


# eq=False: arrays have no equality of their own that a dataclass could use.
@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Losses along a run, in arrays of equal length; a loss that was not finite is NaN."""

    steps: Floats
    counts: Floats
    """Tokens or samples trained on so far."""
    seconds: Floats
    losses: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """One run: what it was asked to do and what it measured."""

    path: Path
    config: Run
    # Any: what a manifest or a diagnosis holds is shown, and looked up where it is needed.
    manifest: Mapping[str, Any]
    unit: Unit
    train: Curve
    validation: Curve
    measures: Mapping[str, tuple[Floats, Floats]]
    """Steps and values of whatever else was measured in training: ``grad_norm``, ``clip_rate``,
    ``correction_ratio``, ``gradient_cosine``, ``tokens_per_second`` ..."""
    is_complete: bool
    """Whether it ended: at its last step, or because it diverged."""
    is_diverged: bool
    """Whether it was stopped for diverging, or ended with a loss that is not a number."""
    optimizer_bytes: float | None = None
    peak_memory_bytes: float | None = None
    diagnosis: Mapping[str, Any] | None = None

    @property
    def lr(self) -> float:
        """The learning rate it was tried at."""
        return self.config.optimizer.lr

    @property
    def seed(self) -> int:
        """The seed of its weights and data order."""
        return self.config.seed

    @property
    def final_loss(self) -> float:
        """The last validation loss: infinite for a diverged run, NaN for an unfinished one."""
        if not self.is_complete:
            return math.nan
        return math.inf if self.is_diverged else float(self.validation.losses[-1])

    @property
    def step_seconds(self) -> float | None:
        """The median time of a training step, or None where it was not measured."""
        _, per_second = self.measures.get(f"{self.unit}_per_second", (None, np.empty(0)))
        measured = per_second[per_second > 0]
        if not len(measured) or self.train.steps[-1] <= 0:
            return None
        per_step = self.train.counts[-1] / self.train.steps[-1]
        return float(per_step / np.median(measured))


def is_run(path: Path) -> bool:
    """Whether a run has been started at a path."""
    return (path / "run.toml").is_file()


def read_trial(path: Path) -> Trial:
    """Return the run of a directory, or refuse what is damaged by file and line."""
    try:
        config = load_file(path / "run.toml")
    except RefusedError as refusal:
        where = str(path / "run.toml")
        told = str(refusal)
        raise RefusedError(told if where in told else f"{where}: {told}") from refusal
    measured = read_measured(path / "metrics.jsonl")
    train, validation = measured.splits["train"], measured.splits["val"]
    is_stopped = measured.last.get("diverged") == 1.0
    is_at_end = measured.last.get("split") == "val" and (
        measured.last.get("step") == config.training.steps
    )
    is_lost = is_at_end and bool(np.isnan(validation.losses[-1]))
    return Trial(
        path=path,
        config=config,
        manifest=_object(path / "manifest.json"),
        unit=measured.unit,
        train=_curve(train),
        validation=_curve(validation),
        measures={name: found for name, found in train.extra.items() if len(found[0])},
        is_complete=is_at_end or is_stopped,
        is_diverged=is_stopped or is_lost,
        optimizer_bytes=_largest(validation, "optimizer_bytes"),
        peak_memory_bytes=_largest(validation, "peak_memory_bytes"),
        diagnosis=_object(path / "diagnosis.json") if (path / "diagnosis.json").exists() else None,
    )


def _curve(columns: Columns) -> Curve:
    return Curve(columns.steps, columns.counts, columns.seconds, columns.losses)


def _largest(columns: Columns, name: str) -> float | None:
    _, values = columns.extra.get(name, (None, np.empty(0)))
    known = values[np.isfinite(values)]
    return float(known.max()) if len(known) else None


def _object(path: Path) -> dict[str, Any]:
    """Return the JSON object that a file holds."""
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise RefusedError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise RefusedError(f"{path} must hold a JSON object")
    return found

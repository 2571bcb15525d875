"""``evaluation.json``: what was measured of a model, written whole or not at all."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mars.checkpoint.folder import fsync
from mars.config.errors import RefusedError
from mars.evaluation.validation import ValidationResult

NAME = "evaluation.json"
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What was measured on a task or a group of tasks, as fractions, with standard errors."""

    metrics: dict[str, float]
    errors: dict[str, float]
    primary: str | None
    """The metric that stands for the task: that of published results."""
    examples: int
    available: int
    num_fewshot: int
    version: str
    data: dict[str, Any] | None = None
    """Where the examples come from; a group has none of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The results of one command, and what is common to them."""

    model: Mapping[str, Any]
    """Source, kind and parameters: what a file is about."""
    common: Mapping[str, Any]
    """Step, date, versions, precision, seed ...: stands in every entry."""
    tasks: Mapping[str, TaskResult] = field(default_factory=dict)
    validation: ValidationResult | None = None


def read(path: Path) -> dict[str, Any] | None:
    """Return the contents of a file, None if there is none; refuse what is no such file."""
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text())
        is_ours = content["schema"] == SCHEMA and isinstance(content["tasks"], dict)
        is_ours = is_ours and isinstance(content["validation"], dict)
    except (OSError, ValueError, KeyError, TypeError):
        is_ours = False
    if not is_ours:
        raise RefusedError(f"{path} is no evaluation of this version; move it or choose --out")
    return dict(content)


def check_place(path: Path, model: Mapping[str, Any]) -> None:
    """Refuse a file that cannot be written, or that is about another model."""
    if not path.parent.is_dir():
        raise RefusedError(f"--out {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise RefusedError(f"--out {path} is a folder; name a file in it")
    before = read(path)
    if before is not None and _identity(before["model"]) != _identity(model):
        raise RefusedError(
            f"{path} is about {before['model'].get('source')}, not {model['source']}; choose --out"
        )


def write(path: Path, measured: Measured) -> None:
    """Add the results to a file, in place of earlier ones of the same tasks and corpora."""
    before = read(path) or {"tasks": {}, "validation": {}}
    tasks = {name: {**asdict(each), **measured.common} for name, each in measured.tasks.items()}
    validation = {}
    if measured.validation is not None:
        entry = measured.validation
        key = f"{entry.digest[:12]}-{entry.tokens}x{entry.context_length}"
        validation[key] = {**asdict(entry), **measured.common}
    content = {
        "schema": SCHEMA,
        "model": dict(measured.model),
        "tasks": before["tasks"] | tasks,
        "validation": before["validation"] | validation,
    }
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(json.dumps(_standard(content), indent=1, allow_nan=False) + "\n")
        fsync(partial)
        partial.replace(path)
        fsync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def _standard(value: Any) -> Any:
    """Return a value as standard JSON has it, where NaN and infinities are null."""
    if isinstance(value, dict):
        return {key: _standard(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_standard(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _identity(model: Mapping[str, Any]) -> tuple[object, ...]:
    # A run that was moved is the same run.
    own = ("kind", "parameters")
    return tuple(model.get(key) for key in own) + (
        () if model.get("kind") == "run" else (model.get("source"),)
    )

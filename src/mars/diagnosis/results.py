"""``diagnosis.json``: what was measured of a run, for the report and for anyone's program."""

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mars.checkpoint.folder import fsync
from mars.diagnosis.estimators import Correction
from mars.diagnosis.figures import StepFigures
from mars.diagnosis.plan import Plan

NAME = "diagnosis.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything that was measured of a run, and how."""

    plan: Plan
    correction: Correction
    is_own_correction: bool
    """Whether the correction is the run's own and not MARS's defaults."""
    parameters: dict[str, int]
    """How many there are of each kind."""
    steps: tuple[StepFigures, ...]

    def as_json(self) -> dict[str, Any]:  # values of many types under string keys
        """Return what the file holds; what is not finite is None."""
        correction, plan = self.correction, self.plan
        made: dict[str, Any] = _finite(
            {
                "format": _FORMAT,
                "beta1": correction.beta1,
                "gamma": correction.gamma,
                "clip": correction.clip,
                "max_norm": correction.max_norm,
                "correction": "run" if self.is_own_correction else "defaults",
                "streams": plan.streams,
                "history": plan.history,
                "micro_batch_size": plan.micro_batch_size,
                "large_batch": plan.large_batch,
                "parameters": self.parameters,
                "steps": [asdict(step) for step in self.steps],
            }
        )
        return made


def write(diagnosis: Diagnosis, folder: Path) -> Path:
    """Write the file into a run directory, replacing one that is there, whole or not at all."""
    path = folder / NAME
    text = json.dumps(diagnosis.as_json(), indent=1, allow_nan=False) + "\n"
    written = folder / f".{NAME}.{os.getpid()}.writing"
    try:
        written.write_text(text, encoding="utf-8")
        fsync(written)
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)  # nothing is there once it has its name
    return path


def _finite(value: Any) -> Any:
    """Return a nested value with None for numbers that JSON has not."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

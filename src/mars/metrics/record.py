"""The one record of a run: a flat JSON object a line, the same for every sink.

NaN and infinities have no place in JSON. They are written as ``null``, and ``null`` is read as NaN:
a loss that is not a number stays visible as such, which of the three it was does not.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, get_args

from mars.config.errors import RefusedError

Split = Literal["train", "val"]
Unit = Literal["tokens", "samples"]

_SPLITS: tuple[Split, ...] = get_args(Split)
_UNITS: tuple[Unit, ...] = get_args(Unit)
_OWN_KEYS = {"step", *_UNITS, "seconds", "split", "loss", "lr"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What was measured at one step: plain numbers, never tensors."""

    step: int
    split: Split
    loss: float
    lr: float
    seconds: float
    """Time the run has taken so far."""
    count: int
    """Tokens or samples trained on so far."""
    unit: Unit = "tokens"
    extra: Mapping[str, float] = field(default_factory=dict)
    """Whatever else was measured: ``grad_norm``, ``clip_rate``, ``accuracy`` ..."""

    def __post_init__(self) -> None:
        _check_choice("split", self.split, _SPLITS)
        _check_choice("unit", self.unit, _UNITS)
        for name, number in (("step", self.step), (self.unit, self.count)):
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise RefusedError(f"{name} must be a whole number from 0, got {number!r}")
        for name in self.extra:
            if not isinstance(name, str) or name in _OWN_KEYS:
                raise RefusedError(f"an extra measure cannot be called {name!r}; rename it")
        for name, value in (*self.measures().items(), ("seconds", self.seconds)):
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise RefusedError(f"{name} must be a plain number, got {value!r}; pass float(...)")

    def measures(self) -> dict[str, float]:
        """Return what was measured, without the position in the run."""
        return {"loss": self.loss, "lr": self.lr, **self.extra}

    def as_json(self) -> str:
        """Return the record as one line of standard JSON, without its end."""
        fields = {
            "step": self.step,
            self.unit: self.count,
            "seconds": self.seconds,
            "split": self.split,
            **self.measures(),
        }
        return json.dumps({name: _finite(value) for name, value in fields.items()}, allow_nan=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> "Record":
        """Return the record a line holds, or raise `RefusedError` for what is none."""
        fields = _numbers(line)
        units = [unit for unit in _UNITS if unit in fields]
        if missing := _OWN_KEYS - set(_UNITS) - fields.keys():
            raise RefusedError(f"a record needs {', '.join(sorted(missing))}")
        if len(units) != 1:
            raise RefusedError(f"a record counts either tokens or samples, got {units}")
        own = {name: fields.pop(name) for name in _OWN_KEYS & fields.keys()}
        return cls(unit=units[0], count=own.pop(units[0]), extra=fields, **own)


def _numbers(line: str | bytes) -> dict[str, Any]:
    """Return the object a line holds; the fields are checked where they become a record."""
    try:
        fields = json.loads(line, parse_constant=_refuse_constant)
    except ValueError as error:
        raise RefusedError(f"a record is one JSON object: {error}") from error
    if not isinstance(fields, dict):
        raise RefusedError(f"a record is one JSON object, got {fields!r}")
    return {name: math.nan if value is None else value for name, value in fields.items()}


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not standard JSON; null stands for it")


def _finite(value: float | str) -> float | str | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise RefusedError(f"{name} must be one of {', '.join(choices)}, got {value!r}")

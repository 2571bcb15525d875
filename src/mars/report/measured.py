"""metrics.jsonl as columns: a million records in seconds.

`mars.metrics.jsonl.read_records` checks one field after another. Here a file is parsed as one JSON
array and its columns are checked as a whole; whatever is not in order goes through `read_records`
after all, which names the line.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn, get_args

import numpy as np
from numpy.typing import NDArray

from mars.config.errors import RefusedError
from mars.metrics.jsonl import read_records
from mars.metrics.record import Record, Split, Unit

Floats = NDArray[np.float64]

_OWN = ("step", "seconds", "split", "loss", "lr")
_UNITS: tuple[Unit, ...] = get_args(Unit)
_SPLITS: tuple[Split, ...] = get_args(Split)
_WHOLE: set[type] = {int}
_NUMBERS: set[type] = {int, float, NoneType}

# Any: the fields of a parsed line are checked column by column.
_Row = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The records of one split, in the order of the file; what is not a finite number is NaN."""

    steps: Floats
    counts: Floats
    seconds: Floats
    losses: Floats
    extra: Mapping[str, tuple[Floats, Floats]]
    """Steps and values of every other measure of the file; empty where this split lacks it."""


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """A whole metrics.jsonl."""

    unit: Unit
    splits: Mapping[Split, Columns]
    last: Mapping[str, float | str | None]
    """The last record as it was written; empty where there is none."""


class _DamagedError(Exception):
    """The records are not in order; which of them is for `read_records` to find out."""


def read_measured(path: Path) -> Measured:
    """Return what a metrics.jsonl holds, or refuse it by file and line.

    A file that is not there yet holds nothing. A last line that a killed process left unfinished
    is left out.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    except OSError as error:
        raise RefusedError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return _measured(_parsed(content), path)
    except _DamagedError:
        rows = [json.loads(record.as_json()) for record in read_records(path)]
    try:
        return _measured(rows, path)
    except _DamagedError as error:
        raise RefusedError(f"{path} cannot be read: {error}") from error


def _parsed(content: bytes) -> list[_Row]:
    whole, end, last = content.rpartition(b"\n")
    # Where two lines meet there are the braces of both, so that no line can lean on its neighbour
    # to be JSON; one that ends or begins otherwise keeps its newline.
    array = b"[%b]" % whole.replace(b"}\n{", b"},{")
    if b"\n" in array:
        raise _DamagedError("a record is one JSON object")
    try:
        rows: list[_Row] = json.loads(array, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _DamagedError(str(error)) from error
    if end and len(rows) != 1 + whole.count(b"\n"):
        raise _DamagedError("a line holds one record")
    with suppress(RefusedError):  # whole but for its newline, it counts
        rows.append(json.loads(Record.from_json(last).as_json()))
    return rows


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not standard JSON")


def _measured(rows: list[_Row], path: Path) -> Measured:
    by_split: dict[str, list[_Row]] = {split: [] for split in _SPLITS}
    try:
        for row in rows:
            by_split[row["split"]].append(row)
        steps = _column("step", rows, _WHOLE)
        names = set[str]().union(*rows)
        units = [unit for unit in _UNITS if unit in names]
        if len(units) > 1:
            raise _DamagedError("some records count tokens and some samples")
        unit = units[0] if units else "tokens"
        extra = sorted(names - {*_OWN, unit})
        splits = {split: _columns(by_split[split], unit, extra) for split in _SPLITS}
    except (KeyError, TypeError) as error:
        raise _DamagedError(f"a record has no {error}") from error
    _check_order(steps, path)
    return Measured(unit, splits, rows[-1] if rows else {})


def _check_order(steps: Floats, path: Path) -> None:
    backwards = np.flatnonzero(np.diff(steps) < 0)
    if len(backwards):
        at = int(backwards[0])
        raise RefusedError(
            f"{path}, line {at + 2}: step {steps[at + 1]:.0f} comes after step {steps[at]:.0f}; "
            "the file was put together from several runs"
        )


def _columns(rows: list[_Row], unit: Unit, extra: list[str]) -> Columns:
    steps, counts = (_column(name, rows, _WHOLE) for name in ("step", unit))
    seconds, losses, _ = (_column(name, rows, _NUMBERS) for name in ("seconds", "loss", "lr"))
    if min(steps.min(initial=0), counts.min(initial=0)) < 0:
        raise _DamagedError("a record counts from below 0")
    return Columns(
        steps, counts, seconds, losses, {name: _measure(name, rows, steps) for name in extra}
    )


def _measure(name: str, rows: list[_Row], steps: Floats) -> tuple[Floats, Floats]:
    """Return steps and values of a measure; most are in every record and share its steps."""
    try:
        return steps, _column(name, rows, _NUMBERS)
    except KeyError:
        having = [row for row in rows if name in row]
        return _column("step", having, _WHOLE), _column(name, having, _NUMBERS)


def _column(name: str, rows: list[_Row], kinds: set[type]) -> Floats:
    """Return a column as an array; NumPy itself would take strings and flags for numbers."""
    values = list(map(itemgetter(name), rows))
    if not set(map(type, values)) <= kinds:
        raise _DamagedError("a value is of the wrong type")
    try:
        column = np.array(values, dtype=np.float64)
    except OverflowError as error:
        raise _DamagedError("a value is too large") from error
    column[~np.isfinite(column)] = np.nan
    return column

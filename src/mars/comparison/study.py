"""Studies as TOML files, read as strictly as any config: those shipped, and anyone's own.

description     a sentence or two for people
base            a preset, with or without its optimizer; or a TOML file beside the study: a run,
                or a study whose own lines come before this one's
baseline        label of the arm that the others are compared with
seeds           array of integers
search_seeds    how many of them the learning rates are searched on
rates           count and factor: of the arms that have no rates of their own
set             keys of every run
arms            optimizer; label, rates, set; vary: keys with an array of values each, an arm
                for every combination
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from mars.comparison.arms import Study, StudyArm
from mars.comparison.base import Base
from mars.comparison.settings import check_settable, check_varied
from mars.config import presets
from mars.config.errors import RefusedError
from mars.config.keys import KEYS, Key, Value, nearest
from mars.config.load import load_file, read
from mars.config.schema import OptimizerName
from mars.config.toml import one_line, parse, read_text, shown

_FOLDER = Path(__file__).with_name("studies")
_SHIPPED = (
    *("quickstart-comparison", "gamma-study", "clip-study", "optimize-1d-study"),
    *("exact-study", "preconditioner-study", "betas-study"),
)
_KEYS = ("base", "description", "baseline", "seeds", "search_seeds", "rates", "set", "arms")
_ARM_KEYS = ("optimizer", "label", "rates", "set", "vary")
_RATES_KEYS = ("count", "factor")
_TYPES = {
    **dict.fromkeys(("base", "description", "baseline", "label"), str),
    **dict.fromkeys(("search_seeds", "rates.count"), int),
    "rates.factor": float,
}


def names() -> list[str]:
    """Return the names of the studies that are shipped."""
    return list(_SHIPPED)


def study(name: str) -> Study:
    """Return a study that is shipped."""
    if name in _SHIPPED:
        return load_study(_FOLDER / f"{name}.toml")
    close = nearest(name, _SHIPPED)
    hint = f"did you mean {close}? " if close else ""
    raise RefusedError(f"unknown study {shown(name)}; {hint}mars compare --list shows all")


def describe(name: str) -> str:
    """Return what a study that is shipped asks, in a sentence or two."""
    return study(name).description


def load_study(path: Path) -> Study:
    """Return the study that a TOML file describes."""
    made = _load(path, above=())
    if not made.arms:
        raise RefusedError(f"{_source(path)} has no arms; write one under [[arms]] for each")
    return made


def is_study(path: Path) -> bool:
    """Whether a TOML file has a key that only studies have."""
    tables = parse(read_text(path), source=_source(path))
    return any(key in _KEYS and key not in KEYS for key in tables)


def _source(path: Path) -> str:
    return one_line(str(path))


@contextmanager
def _refusals_of(what: str) -> Iterator[None]:
    """Say in every refusal what it is about."""
    try:
        yield
    except RefusedError as error:
        raise RefusedError(f"{what}: {error}") from None


def _load(path: Path, *, above: tuple[Path, ...]) -> Study:
    """Return a study that may have no arms; ``above`` are the files whose base this one is."""
    tables = parse(read_text(path), source=_source(path))
    with _refusals_of(_source(path)):
        _refuse_unknown(tables, _KEYS)
        base = _text(tables, "base")
        if base is None:
            raise RefusedError('base is missing; name a preset, such as base = "quickstart"')
        start = _start(base, path, above=above)
        return replace(
            start,
            name=path.stem,
            settings={**start.settings, **_settings(tables)},
            arms=(*start.arms, *_arms(tables)),
            **_given(tables),
        )


def _start(base: str, path: Path, *, above: tuple[Path, ...]) -> Study:
    """Return the study that a base amounts to by itself."""
    if not base.endswith(".toml"):
        return Study(name=base, base=Base(name=presets.stem(base)))
    beside = path.parent / base
    if beside.resolve() in (*above, path.resolve()):
        raise RefusedError(f"base = {shown(base)} leads back to itself; name a preset or a run")
    if is_study(beside):
        return _load(beside, above=(*above, path.resolve()))
    return Study(name=base, base=Base(name=beside.stem, run=load_file(beside)))


# Any: the fields of a study differ in type; each value is of its field's.
def _given(tables: Mapping[str, object]) -> dict[str, Any]:
    """Return the fields of a study that a file gives in a single value."""
    given: dict[str, Any] = {
        key: _value(tables, key) for key in ("description", "baseline", "search_seeds")
    }
    if "seeds" in tables:
        given["seeds"] = tuple(KEYS["seed"].read(each) for each in _array(tables, "seeds"))
    rates = _table(tables, "rates")
    _refuse_unknown(rates, _RATES_KEYS, section="rates.")
    given["rate_count"] = _value(rates, "count", section="rates.")
    given["rate_factor"] = _value(rates, "factor", section="rates.")
    return {field: value for field, value in given.items() if value is not None}


def _arms(tables: Mapping[str, object]) -> Iterator[StudyArm]:
    for place, table in enumerate(_array(tables, "arms") if "arms" in tables else [], start=1):
        with _refusals_of(f"arm {place}"):
            if not isinstance(table, dict):
                raise RefusedError(f"an arm is a table, got {shown(table)}; write it as [[arms]]")
            yield _arm(table)


def _arm(table: Mapping[str, object]) -> StudyArm:
    _refuse_unknown(table, _ARM_KEYS)
    if "optimizer" not in table:
        raise RefusedError('optimizer is missing; name one, such as optimizer = "adamw"')
    name = KEYS["optimizer.name"].read(table["optimizer"])
    settings, varied = _settings(table), _varied(table)
    for key in settings:
        if key in varied:
            raise RefusedError(f"{key} is both set and varied; leave one out")
    return StudyArm(
        optimizer=cast(OptimizerName, name),  # one of its key's choices
        label=_text(table, "label"),
        rates=_rates(table),
        settings=settings,
        varied=varied,
    )


def _rates(table: Mapping[str, object]) -> tuple[float, ...] | None:
    if "rates" not in table:
        return None
    read_rates = (KEYS["optimizer.lr"].read(each) for each in _array(table, "rates"))
    return tuple(rate for rate in read_rates if isinstance(rate, float))


def _settings(table: Mapping[str, object]) -> dict[str, Value]:
    settings = read(_table(table, "set"))
    for key in settings:
        check_settable(key)
    return settings


def _varied(table: Mapping[str, object]) -> dict[str, tuple[Value, ...]]:
    varied: dict[str, tuple[Value, ...]] = {}
    for name, values in _dotted(_table(table, "vary")):
        if name in varied:
            raise RefusedError(f"vary has {name} twice; write all its values in one array")
        if not isinstance(values, list):
            raise RefusedError(f"vary {shown(name)} takes an array of values, got {shown(values)}")
        section, _, last_part = name.rpartition(".")
        keys = ({last_part: value} for value in values)
        made = [read({section: key} if section else key)[name] for key in keys]
        check_varied(name, made)
        varied[name] = tuple(made)
    return varied


def _dotted(table: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the entries of a table, of its tables under names such as ``optimizer.gamma``."""
    for name, value in table.items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        yield from ((f"{name}.{last}" if last else name, each) for last, each in inner)


def _refuse_unknown(
    table: Mapping[str, object], known: tuple[str, ...], *, section: str = ""
) -> None:
    for key, value in table.items():
        if key not in known:
            close = nearest(key, known)
            hint = f"did you mean {section}{close}?" if close else f"there are {', '.join(known)}"
            raise RefusedError(f"unknown key {shown(section + key)} = {shown(value)}; {hint}")


def _value(table: Mapping[str, object], key: str, *, section: str = "") -> Value:
    """Return the value of a key, or None where there is none; refuse one of another type."""
    if key not in table:
        return None
    name = section + key
    kind = _TYPES[name]
    known = Key(name=name, kind=kind, choices=(), length=None, optional=True, default=None, doc="")
    return known.read(table[key])


def _text(table: Mapping[str, object], key: str) -> str | None:
    value = _value(table, key)
    return None if value is None else str(value)


def _table(table: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise RefusedError(f"{key} is a table, got {shown(value)}; write its keys under it")
    return value


def _array(table: Mapping[str, object], key: str) -> list[object]:
    value = table[key]
    if not isinstance(value, list):
        raise RefusedError(f"{key} must be an array, got {shown(value)}; write it in brackets")
    return value

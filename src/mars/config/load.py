"""From TOML and ``--set`` to a `Run`, and back.

Reading is strict: an unknown section or key, or a value of the wrong type, is refused. Whether
the values make sense together is for `mars.config.check`. TOML has no null, so an optional key
is None by its absence; ``--set key=`` and ``--set key=none`` make it so again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from mars.config.errors import RefusedError
from mars.config.keys import KEYS, SECTIONS, Key, Value, nearest, nearest_key
from mars.config.schema import Run
from mars.config.toml import as_toml, one_line, parse, parse_value, read_text, shown

# Sections and keys that do not change what a run computes; how processes share it does so in the
# last digits alone.
_FREE = (
    *("checkpoint.", "metrics.", "description", "name", "data.path", "data.workers"),
    *("training.parallel", "training.replicas", "training.timeout_seconds"),
)


class Difference(NamedTuple):
    """A key whose value is not the same in two runs."""

    key: str
    first: Value
    second: Value


class Entry(NamedTuple):
    """What there is to know about a key; the default as TOML, empty where there is none."""

    key: str
    takes: str
    default: str
    doc: str


def load_file(path: Path) -> Run:
    """Return the run that a TOML file describes; what it leaves out has its default."""
    return loads(read_text(path), source=one_line(str(path)))


def loads(text: str, *, source: str = "the config") -> Run:
    """Return the run that a TOML text describes; ``source`` names it in syntax errors."""
    return assign(Run(), read(parse(text, source=source)))


def read(tables: Mapping[str, object]) -> dict[str, Value]:
    """Return the values of parsed TOML by dotted key; refuse unknown keys and wrong types."""
    return {name: _known(name, value).read(value) for name, value in _flat(tables)}


def assign(run: Run, values: Mapping[str, Value]) -> Run:
    """Return a run with some values, by dotted key, in place of its own."""
    parts: dict[str, dict[str, Value]] = {}
    for name, value in values.items():
        section, _, last_part = name.rpartition(".")
        parts.setdefault(section, {})[last_part] = value
    own: dict[str, object] = {**parts.pop("", {})}
    sections = {name: replace(getattr(run, name), **part) for name, part in parts.items()}
    return replace(run, **own, **sections)  # type: ignore[arg-type]  # `Key.read` checked them


def override(run: Run, settings: Sequence[str]) -> Run:
    """Return a run with settings such as ``optimizer.lr=3e-3`` in place of its own values.

    A key may leave out its section where one key alone ends so: ``gamma=0.05``. Values are TOML;
    strings need no quotes and arrays no brackets.
    """
    return assign(run, dict(_setting(setting) for setting in settings))


def dumps(run: Run) -> str:
    """Return TOML that loads as an equal run; what is None is left out."""
    lines = [f"# {Run.__doc__}"]
    section = ""
    for key in KEYS.values():
        if (prefix := key.name.rpartition(".")[0]) != section:
            section = prefix
            lines += ["", f"# {SECTIONS[section]}", f"[{section}]"]
        value = attrgetter(key.name)(run)
        if value is not None:
            lines.append(f"{key.last_part} = {as_toml(value)}")
    return "\n".join(lines) + "\n"


def differences(first: Run, second: Run) -> list[Difference]:
    """Return the keys whose values differ between two runs, in the order of the schema."""
    pairs = ((name, attrgetter(name)(first), attrgetter(name)(second)) for name in KEYS)
    return [Difference(*pair) for pair in pairs if pair[1] != pair[2]]


def computed_differences(first: Run, second: Run) -> list[Difference]:
    """Return those differences between two runs that change what a run computes."""
    return [each for each in differences(first, second) if not each.key.startswith(_FREE)]


def documentation() -> list[Entry]:
    """Return every key with its type in words, its default and what it is for."""
    return [
        Entry(key.name, key.takes, "" if key.default is None else as_toml(key.default), key.doc)
        for key in KEYS.values()
    ]


def _flat(tables: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in tables.items():
        if "." in name:
            raise RefusedError(f"unknown key {shown(name)} = {shown(value)}; leave out the quotes")
        if name in SECTIONS:
            if not isinstance(value, dict):
                raise RefusedError(
                    f"{name} is a section, got {shown(value)}; write its keys under [{name}]"
                )
            yield from ((f"{name}.{key}", each) for key, each in value.items())
        elif isinstance(value, dict) and name not in KEYS:
            close = nearest(name, SECTIONS)
            hint = f"did you mean [{close}]?" if close else f"there are {', '.join(SECTIONS)}"
            raise RefusedError(f"unknown section {shown(name)} = {shown(value)}; {hint}")
        else:
            yield name, value


def _known(name: str, value: object) -> Key:
    """Return the key of a full name; ``value`` is for the message that there is none."""
    if name in KEYS:
        return KEYS[name]
    if name in SECTIONS:
        first = next(key for key in KEYS if key.startswith(f"{name}."))
        hint = f"it is a section, with keys such as {first}"
    elif name.rpartition(".")[2] == "is_approx":  # what the constructor calls it
        hint = "write optimizer.exact = true for is_approx = false"
    else:
        close = nearest_key(name)
        hint = f"did you mean {close}?" if close else "mars train --help lists the keys"
    raise RefusedError(f"unknown key {shown(name)} = {shown(value)}; {hint}")


def _setting(setting: str) -> tuple[str, Value]:
    """Return key and value of ``key=value``."""
    name, equals, text = (part.strip() for part in setting.partition("="))
    if not name or not equals:
        raise RefusedError(f"{shown(setting)} sets nothing; write it as optimizer.lr=0.003")
    if any("\ud800" <= character <= "\udfff" for character in setting):
        raise RefusedError(f"{shown(setting)} is not valid Unicode; write it in UTF-8")
    key = _found(name, text)
    return key.name, _value(key, text)


def _found(name: str, text: str) -> Key:
    """Return the key of a full name, or of a last part that one key alone has."""
    matches = [key for key in KEYS.values() if key.last_part == name]
    if name in KEYS or not matches:
        return _known(name, parse_value(text))
    if len(matches) > 1:
        candidates = ", ".join(key.name for key in matches)
        raise RefusedError(f"{name} = {shown(text)} could be any of {candidates}; write one")
    return matches[0]


def _value(key: Key, text: str) -> Value:
    if key.optional and text in ("", "none") and text not in key.choices:
        return None
    value = parse_value(text)
    if key.kind is tuple and isinstance(bare := parse_value(f"[{text}]"), list):
        # `0.9,0.95`; an array in its own brackets stays one.
        value = value if isinstance(value, list) else bare
    if key.kind is str and not isinstance(value, str):
        value = text  # a name such as 2026 needs no quotes either
    return key.read(value)

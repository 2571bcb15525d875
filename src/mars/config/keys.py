"""Every key of a run by its dotted name: type, default, documentation, and how a value is read.

All of it comes from the annotations and metadata of `mars.config.schema`; nothing is listed twice.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from mars.config.errors import RefusedError
from mars.config.schema import Run
from mars.config.toml import as_toml, shown

Value = str | bool | int | float | tuple[float, ...] | None

_WORDS = {str: "a string", bool: "true or false", int: "an integer", float: "a number"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key: its name as in ``optimizer.lr``, and what it takes.

    A key of kind ``tuple`` holds numbers, ``length`` of them unless that is None. A key with
    ``choices`` holds one of these strings. None is the default of every optional key.
    """

    name: str
    kind: type
    choices: tuple[str, ...]
    length: int | None
    optional: bool
    default: Value
    doc: str

    @property
    def last_part(self) -> str:
        """The name without its section."""
        return self.name.rpartition(".")[2]

    @property
    def takes(self) -> str:
        """The key's type in words."""
        if self.choices:
            listed = ", ".join(as_toml(choice) for choice in self.choices)
            return listed if len(self.choices) == 1 else f"one of {listed}"
        if self.kind is tuple:
            return f"an array of {'' if self.length is None else f'{self.length} '}numbers"
        return _WORDS[self.kind]

    def read(self, value: object) -> Value:
        """Return a TOML value as this key's type; refuse any other."""
        made: Value = None
        if self.kind is tuple:
            made = _numbers(value, length=self.length)
        elif self.kind is float:
            made = _number(value)
        # Not isinstance: a bool is no integer here.
        elif type(value) is self.kind and (not self.choices or value in self.choices):
            assert isinstance(value, str | bool | int)
            made = value
        if made is None or (type(made) is int and not -(2**63) <= made < 2**63):
            got = f"got {shown(value)}{self._way_out(value)}"
            raise RefusedError(f"{self.name} must be {self.takes}, {got}")
        return made

    def _way_out(self, value: object) -> str:
        """Return what to write instead of a refused value, as far as it can be guessed."""
        if self.choices:
            close = nearest(value, self.choices) if isinstance(value, str) else None
            return f"; did you mean {as_toml(close)}?" if close else ""
        if self.kind is tuple:
            example = self.default or (0.9, 0.95)
            return f"; write them as {as_toml(example)}"
        if self.kind is int and type(value) is int:
            return "; integers have 64 bits"
        meant = _meant(self.kind, value)
        return "" if meant is None else f"; write {as_toml(meant)}"


def _meant(kind: type, value: object) -> Value:
    """Return the flag or number that a value of another type is meant to be, if that is clear."""
    if not isinstance(value, str | float):
        return None
    text = str(value).casefold()
    if kind is bool:
        return {"true": True, "false": False}.get(text)
    try:
        number = float(text)
    except ValueError:
        return None
    if kind is int:
        return int(number) if number.is_integer() else None
    return number if kind is float else None


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _numbers(value: object, *, length: int | None) -> tuple[float, ...] | None:
    if not isinstance(value, list) or length not in (None, len(value)):
        return None
    numbers = tuple(number for each in value if (number := _number(each)) is not None)
    return numbers if len(numbers) == len(value) else None


def _keys(part: type, prefix: str = "") -> Iterator[Key]:
    hints = get_type_hints(part)
    for entry in fields(part):
        if is_dataclass(hints[entry.name]):
            yield from _keys(hints[entry.name], f"{entry.name}.")
        else:
            yield _key(prefix + entry.name, hints[entry.name], entry)


# Any: annotations are of no common type, and a field's is that of its default.
def _key(name: str, annotation: Any, entry: Field[Any]) -> Key:
    optional = NoneType in get_args(annotation)
    if optional:
        (annotation,) = (kind for kind in get_args(annotation) if kind is not NoneType)
    default: Any = entry.default
    origin, arguments = get_origin(annotation), get_args(annotation)
    return Key(
        name=name,
        kind=str if origin is Literal else origin or annotation,
        choices=arguments if origin is Literal else (),
        length=len(arguments) if origin is tuple and ... not in arguments else None,
        optional=optional,
        default=default,
        doc=entry.metadata["doc"],
    )


KEYS: Mapping[str, Key] = {key.name: key for key in _keys(Run)}

SECTIONS: Mapping[str, str] = {
    name: str(part.__doc__) for name, part in get_type_hints(Run).items() if is_dataclass(part)
}
"""The sections of a run, and what each is about."""


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice that a misspelt name is closest to, if any is close."""
    folded = {choice.casefold(): choice for choice in choices}
    close = get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else None


def nearest_key(name: str) -> str | None:
    """Return the key that a wrong name is closest to: one of its own section before any other."""
    section, _, last_part = name.rpartition(".")
    for keys in ([key for key in KEYS if key.rpartition(".")[0] == section], KEYS):
        by_last_part = {KEYS[key].last_part: key for key in keys}
        close = nearest(last_part, by_last_part)
        if close:
            return by_last_part[close]
    return None

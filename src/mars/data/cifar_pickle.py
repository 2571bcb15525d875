"""Reading the pickles that CIFAR is published in, without running them.

A pickle is a program; a file that claims to be one of CIFAR's may ask for anything. Its opcodes are
walked as data and understood as far as those files need: dicts, lists, tuples, text, bytes,
integers, and arrays of bytes. Nothing is imported and nothing is called. All else is refused.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pickletools import genops
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mars.config.errors import RefusedError

_RECONSTRUCT = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}
_ALLOWED = _RECONSTRUCT | {("numpy", "ndarray"), ("numpy", "dtype")}
_DAMAGED = "it is damaged, or something else under that name; download it anew"


class _ForbiddenError(Exception):
    """A pickle asks for what the data of an image file never needs."""


@dataclass(frozen=True, slots=True)
class _Name:
    """What a pickle names; it is never looked up."""

    module: str
    name: str


class _Bytes:
    """The dtype uint8."""


@dataclass(slots=True)
class _Array:
    """An array of bytes, which a pickle makes before it says what is in it."""

    content: NDArray[np.uint8] | None = None


def read_plain(content: bytes, *, source: str) -> dict[str, Any]:
    """Return the dict that a pickle describes: keys as text, values plain or arrays of uint8.

    Text of Python 2 is read as Latin-1, so nothing of it is lost. ``source`` names the file in
    refusals.
    """
    try:
        # The bytes of a damaged file may look like text with odd escapes.
        with warnings.catch_warnings(action="ignore"):
            found = _Machine().run(content)
    except _ForbiddenError as error:
        raise RefusedError(
            f"{source} is a pickle that asks for {error}, which no image data needs; nothing of it "
            f"was run; {_DAMAGED}"
        ) from None
    # What a walk over arbitrary bytes can come upon; a stack that is too short is an IndexError.
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        reason = " ".join(str(error).split())[:80]
        raise RefusedError(f"{source} is no pickle of images ({reason}); {_DAMAGED}") from None
    if not isinstance(found, dict):
        raise RefusedError(f"{source} holds no dict; {_DAMAGED}")
    return {_text(key): _finished(value) for key, value in found.items()}


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _finished(value: object) -> object:
    return value.content if isinstance(value, _Array) else value


# Any: the values of a pickle are of every plain type.
class _Machine:
    """The stack and memo of a pickle, holding plain values only."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self, content: bytes) -> object:
        """Return the value that is on the stack when the pickle stops."""
        for opcode, argument, _ in genops(content):
            name = opcode.name
            if name in _LITERALS:
                self._stack.append(argument)
            elif name in _CONSTANTS:
                self._stack.append(_CONSTANTS[name]())
            elif name in _HANDLERS:
                _HANDLERS[name](self, argument)
            else:
                raise _ForbiddenError(f"the opcode {name}")
        return self._stack.pop()

    def mark(self, _: object) -> None:
        """Remember where the stack ends."""
        self._marks.append(len(self._stack))

    def put(self, number: int) -> None:
        """Keep the last value under a number."""
        self._memo[number] = self._stack[-1]

    def memoize(self, _: object) -> None:
        """Keep the last value under the next number."""
        self._memo[len(self._memo)] = self._stack[-1]

    def get(self, number: int) -> None:
        """Push what is kept under a number."""
        self._stack.append(self._memo[number])

    def tuple_of(self, length: int | None) -> None:
        """Make a tuple of the last values, or of those since the mark."""
        self._stack.append(tuple(self._popped() if length is None else self._last(length)))

    def append(self, _: object) -> None:
        """Add the last value to the list before it."""
        (value,) = self._last(1)
        self._extended([value])

    def appends(self, _: object) -> None:
        """Add the values since the mark to the list before it."""
        self._extended(self._popped())

    def set_item(self, _: object) -> None:
        """Set the last pair in the dict before it."""
        self._updated(self._last(2))

    def set_items(self, _: object) -> None:
        """Set the pairs since the mark in the dict before it."""
        self._updated(self._popped())

    def name(self, argument: str | None) -> None:
        """Push a name, if arrays of bytes need it."""
        module, name = self._last(2) if argument is None else argument.split(" ", 1)
        if (module, name) not in _ALLOWED:
            raise _ForbiddenError(f"{module}.{name}")
        self._stack.append(_Name(module, name))

    def reduce(self, _: object) -> None:
        """Note that an array or a dtype begins here; nothing is called."""
        callee, arguments = self._last(2)
        if isinstance(callee, _Name) and (callee.module, callee.name) in _RECONSTRUCT:
            self._stack.append(_Array())
        elif callee == _Name("numpy", "dtype") and _text(arguments[0]) == "u1":
            self._stack.append(_Bytes())
        else:
            raise _ForbiddenError("a call of something else than an array of bytes")

    def build(self, _: object) -> None:
        """Give an array its shape and content; a dtype of bytes has nothing to be given."""
        (state,) = self._last(1)
        target = self._stack[-1]
        if isinstance(target, _Array):
            _version, shape, dtype, is_fortran, data = state
            if not isinstance(dtype, _Bytes) or is_fortran is not False:
                raise _ForbiddenError("an array of something else than bytes in rows")
            raw = data.encode("latin-1") if isinstance(data, str) else bytes(data)
            if prod(shape) != len(raw):
                raise ValueError(f"{len(raw)} bytes for an array of {shape}")
            target.content = np.frombuffer(raw, np.uint8).reshape(shape)
        elif not isinstance(target, _Bytes):
            raise _ForbiddenError("a state of something else than an array of bytes")

    def _last(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise IndexError("its stack is too short")
        taken = self._stack[-count:]
        del self._stack[-count:]
        return taken

    def _popped(self) -> list[Any]:
        start = self._marks.pop()
        taken = self._stack[start:]
        del self._stack[start:]
        return taken

    def _extended(self, values: list[Any]) -> None:
        if not isinstance(self._stack[-1], list):
            raise TypeError("it appends to no list")
        self._stack[-1].extend(values)

    def _updated(self, pairs: list[Any]) -> None:
        if not isinstance(self._stack[-1], dict):
            raise TypeError("it sets items of no dict")
        self._stack[-1].update(zip(pairs[::2], pairs[1::2], strict=True))


_LITERALS = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
    *("BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
_CONSTANTS: dict[str, Callable[[], object]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}
_HANDLERS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine.mark,
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Machine.put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.get),
    "MEMOIZE": _Machine.memoize,
    "TUPLE": lambda machine, _: machine.tuple_of(None),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    **dict.fromkeys(("GLOBAL", "STACK_GLOBAL"), _Machine.name),
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda *_: None),
}

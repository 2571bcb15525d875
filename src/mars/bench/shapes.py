"""What is stepped: the parameter shapes of GPT-2, and equal matrices of any number of elements."""

import math
import re
from dataclasses import dataclass
from typing import Literal

from mars.config.errors import RefusedError

Role = Literal["matrix", "embedding", "vector"]

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_SYNTHETIC = re.compile(r"(\d+)([KMG]?)(?:x(\d+))?")
_DEFAULT_TENSORS = 10

# Vocabulary and context of every GPT-2; layers and width of the two sizes up to 355M.
_VOCABULARY, _CONTEXT = 50257, 1024
_GPT2 = {"small": (12, 768), "medium": (24, 1024)}


@dataclass(frozen=True, slots=True)
class Shape:
    """One parameter: its shape, and its role as in `mars.param_groups`."""

    shape: tuple[int, ...]
    role: Role

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Size:
    """A named list of shapes."""

    name: str
    shapes: tuple[Shape, ...]

    @property
    def elements(self) -> int:
        """The number of parameters, counted as models are: every element of every tensor."""
        return sum(shape.elements for shape in self.shapes)

    @property
    def largest_bytes(self) -> int:
        """The bytes of the largest tensor in float32."""
        return 4 * max(shape.elements for shape in self.shapes)


def size_of(name: str) -> Size:
    """Return the shapes a size's name stands for; raise `RefusedError` if it stands for none."""
    if name in _GPT2:
        layers, width = _GPT2[name]
        return Size(name, tuple(_gpt2(layers=layers, width=width)))
    match = _SYNTHETIC.fullmatch(name)
    if match is None:
        raise RefusedError(
            f"--sizes: unknown size {name!r}; choose {', '.join(_GPT2)}, or elements such as 1M, "
            "or elements in so many tensors such as 10Mx100"
        )
    elements = int(match[1]) * _UNITS[match[2]]
    tensors = int(match[3] or _DEFAULT_TENSORS)
    if elements == 0 or tensors == 0 or elements % tensors:
        raise RefusedError(
            f"--sizes: {name} is not possible, {elements:,} elements do not make {tensors:,} equal "
            "tensors"
        )
    return Size(name, (Shape(_near_square(elements // tensors), "matrix"),) * tensors)


def _near_square(elements: int) -> tuple[int, int]:
    rows = next(r for r in range(math.isqrt(elements), 0, -1) if elements % r == 0)
    return rows, elements // rows


def _gpt2(*, layers: int, width: int) -> list[Shape]:
    """Return the parameters of GPT-2, the head tied to the token embedding."""
    shapes = [Shape((_VOCABULARY, width), "embedding"), Shape((_CONTEXT, width), "embedding")]
    for _ in range(layers):
        shapes += _norm(width)
        shapes += _linear(width, 3 * width)  # queries, keys and values
        shapes += _linear(width, width)
        shapes += _norm(width)
        shapes += _linear(width, 4 * width)
        shapes += _linear(4 * width, width)
    return [*shapes, *_norm(width)]


def _linear(inputs: int, outputs: int) -> list[Shape]:
    return [Shape((outputs, inputs), "matrix"), Shape((outputs,), "vector")]


def _norm(width: int) -> list[Shape]:
    return [Shape((width,), "vector"), Shape((width,), "vector")]

"""What `mars bench` can be asked, and what it refuses. Importing this does not import torch."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar, get_args

import tyro

from mars.config.errors import RefusedError

# Spelt out here because mars.optim.options, where it is defined, imports torch.
MarsType = Literal["mars-adamw", "mars-lion", "mars-shampoo", "mars-m"]
Engine = Literal["eager", "fused", "lean-eager", "lean-fused"]

T = TypeVar("T")

MAIN_SIZE = "small"
DEFAULT_SIZES = (MAIN_SIZE,)
QUICK_SIZES = ("1M",)
DEFAULT_STEPS, QUICK_STEPS = 10, 3
DEFAULT_ROUNDS, QUICK_ROUNDS = 3, 1


def _whole_number(words: list[str]) -> int:
    try:
        return int(words[0])
    except ValueError:
        raise ValueError(f"a whole number is needed, got {words[0]!r}") from None


# An int that may be left out, without the complaints about None that tyro has for int | None.
_WHOLE_NUMBER = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="N",
    instance_from_str=_whole_number,
    is_instance=lambda value: value is None or isinstance(value, int),
    str_from_instance=lambda value: [str(value)],
)


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Step time and memory, against torch and other ports of MARS."""

    sizes: Annotated[
        tuple[str, ...] | None,
        tyro.conf.arg(
            metavar="SIZE ...",
            help_behavior_hint=f"(default: {MAIN_SIZE}; quick: {QUICK_SIZES[0]})",
        ),
    ] = None
    """GPT-2 (small, medium), or elements in 10 equal matrices (10M), or in so many (10Mx1000)."""

    types: Annotated[
        tuple[MarsType, ...],
        tyro.conf.arg(metavar="TYPE ...", help_behavior_hint="(default: all four)"),
    ] = get_args(MarsType)
    """Types of MARS: mars-adamw, mars-lion, mars-shampoo, mars-m."""

    engines: Annotated[
        tuple[Engine, ...],
        tyro.conf.arg(metavar="ENGINE ...", help_behavior_hint="(default: all four)"),
    ] = get_args(Engine)
    """Engines of MARS: eager, fused, lean-eager, lean-fused."""

    steps: Annotated[
        int | None,
        _WHOLE_NUMBER,
        tyro.conf.arg(help_behavior_hint=f"(default: {DEFAULT_STEPS}; quick: {QUICK_STEPS})"),
    ] = None
    """Timed steps a round; where matrices are orthogonalised, at most three, in one round."""

    rounds: Annotated[
        int | None,
        _WHOLE_NUMBER,
        tyro.conf.arg(help_behavior_hint=f"(default: {DEFAULT_ROUNDS}; quick: {QUICK_ROUNDS})"),
    ] = None
    """How often all state is built anew and timed again."""

    threads: Annotated[
        int | None, _WHOLE_NUMBER, tyro.conf.arg(help_behavior_hint="(default: torch's choice)")
    ] = None
    """Threads of torch."""

    json: Annotated[
        Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="(default: none)")
    ] = None
    """Write every figure, the machine and the versions to this file too."""

    ports: bool = True
    """Time other ports of MARS too, those that are installed."""

    quick: tyro.conf.FlagCreatePairsOff[bool] = False
    """One million parameters and few steps: shows that it works, not how fast it is."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Options with every default filled in, checked."""

    sizes: tuple[str, ...]
    types: tuple[MarsType, ...]
    engines: tuple[Engine, ...]
    steps: int
    rounds: int
    threads: int | None
    json: Path | None
    ports: bool
    quick: bool


def resolve(options: BenchOptions) -> Plan:
    """Fill in the defaults; raise `RefusedError` for what cannot be honoured."""
    quick = options.quick
    sizes = options.sizes
    plan = Plan(
        sizes=(QUICK_SIZES if quick else DEFAULT_SIZES) if sizes is None else _unique(sizes),
        types=_unique(options.types),
        engines=_unique(options.engines),
        steps=_or(options.steps, QUICK_STEPS if quick else DEFAULT_STEPS),
        rounds=_or(options.rounds, QUICK_ROUNDS if quick else DEFAULT_ROUNDS),
        threads=options.threads,
        json=options.json,
        ports=options.ports,
        quick=quick,
    )
    for name in ("sizes", "types", "engines"):
        if not getattr(plan, name):
            raise RefusedError(f"--{name} needs at least one value; leave it out for the default")
    for name in ("steps", "rounds", "threads"):
        value = getattr(plan, name)
        if value is not None and value < 1:
            raise RefusedError(f"--{name} must be at least 1, got {value}")
    if plan.json is not None:
        _check_writable(plan.json)
    return plan


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _unique(values: Sequence[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))


def _check_writable(path: Path) -> None:
    """Refuse a path that could not be written once the measurements are done."""
    if path.is_dir():
        raise RefusedError(f"--json {path} is a directory; name a file in it")
    if not path.parent.is_dir():
        raise RefusedError(f"--json {path}: there is no directory {path.parent}; create it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise RefusedError(f"--json {path} cannot be written; choose another path")

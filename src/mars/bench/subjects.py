"""What is timed: every optimizer by name, how to build it, and what its rule has to move."""

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mars import MARS
from mars.bench.options import Engine, MarsType, Plan
from mars.bench.shapes import Role, Size
from mars.bench.traffic import ADAMW, BUFFERED, LEAN, MUON, UNCLIPPED, Traffic

BASELINE = "torch AdamW fused"
MUON_NAME = "torch Muon + AdamW"
MATRIX_TYPES = ("mars-shampoo", "mars-m")

# The same for all: a step without decay would spare some engines a pass and others nothing.
# Each constructor has its own idea of what else it takes: hence Any.
_COMMON: dict[str, Any] = {"lr": 1e-4, "weight_decay": 0.1}

# Parameters with their roles, as a size lists them.
Owned = Sequence[tuple[Tensor, Role]]
Build = Callable[[Owned], list[Optimizer]]


@dataclass(frozen=True, slots=True)
class Subject:
    """One optimizer to be timed.

    ``traffic`` is that of its rule for each role, ``scratch_copies`` an upper estimate of what a
    step holds beside the state, in copies of all parameters. Nearly all share one set of
    gradients; one that would write to them or drop them takes ``own_gradients``. The first step of
    one that ``compiles`` says nothing about the others, and one that compiles all tensors into one
    function takes ``most_tensors``: with more it would not end.
    """

    name: str
    build: Build
    traffic: dict[Role, Traffic]
    orthogonalizes: bool = False
    scratch_copies: float = 0.0
    own_gradients: bool = False
    compiles: bool = False
    most_tensors: int | None = None
    extra_state: int = 0

    def takes(self, size: Size) -> bool:
        """Return whether it can be measured on a size in any reasonable time."""
        return self.most_tensors is None or len(size.shapes) <= self.most_tensors

    def moved_bytes(self, size: Size) -> int:
        """Return the bytes one step has to move."""
        return sum(self.traffic[shape.role].moved * shape.elements for shape in size.shapes)

    def state_bytes(self, size: Size) -> int:
        """Return an upper estimate of the bytes it keeps from step to step."""
        kept = sum(self.traffic[shape.role].state * shape.elements for shape in size.shapes)
        return kept + (self.extra_state + 4 * self.own_gradients) * size.elements


def subjects(plan: Plan) -> tuple[list[Subject], list[str]]:
    """Return what a plan asks to time, the baseline first, and a note for each port left out."""
    found = [_torch_adamw("fused"), _torch_adamw("foreach")]
    found += [_mars(mars_type, engine) for mars_type in plan.types for engine in plan.engines]
    if any(mars_type in MATRIX_TYPES for mars_type in plan.types):
        found.append(_torch_muon())
    notes = []
    for package, types in _PORTS.items() if plan.ports else ():
        wanted = [mars_type for mars_type in plan.types if mars_type in types]
        absence = _absence(package) if wanted else None
        if absence:
            notes.append(f"{package} is left out: {absence}")
        elif wanted:
            found += [types[mars_type](mars_type) for mars_type in wanted]
    return found, notes


def _absence(package: str) -> str | None:
    """Return why a package cannot be used, or None if it can."""
    if importlib.util.find_spec(package) is None:
        return "not installed"
    try:
        importlib.import_module(package)
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        # A package built for another torch may fail with any of these.
        return f"it does not import here ({type(error).__name__})"
    return None


def _traffic(matrix: Traffic, *, embedding: Traffic | None = None) -> dict[Role, Traffic]:
    return {"matrix": matrix, "embedding": embedding or matrix, "vector": ADAMW}


def _tensors(owned: Owned) -> list[Tensor]:
    return [tensor for tensor, _ in owned]


def _torch_adamw(form: str) -> Subject:
    options = {**_COMMON, form: True}

    def build(owned: Owned) -> list[Optimizer]:
        return [torch.optim.AdamW(_tensors(owned), **options)]

    copies = 2.0 if form == "foreach" else 0.0
    return Subject(f"torch AdamW {form}", build, _traffic(ADAMW), scratch_copies=copies)


def _torch_muon() -> Subject:
    """Return Muon on hidden matrices and AdamW, fused, on the rest."""

    def build(owned: Owned) -> list[Optimizer]:
        matrices = [tensor for tensor, role in owned if role == "matrix"]
        rest = [tensor for tensor, role in owned if role != "matrix"]
        made: list[Optimizer] = []
        if matrices:
            made.append(torch.optim.Muon(matrices, adjust_lr_fn="match_rms_adamw", **_COMMON))
        if rest:
            made.append(torch.optim.AdamW(rest, fused=True, **_COMMON))
        return made

    traffic = _traffic(MUON, embedding=ADAMW)
    return Subject(MUON_NAME, build, traffic, orthogonalizes=True, scratch_copies=1.0)


def _mars(mars_type: MarsType, engine: Engine) -> Subject:
    lean = engine.startswith("lean")
    options: dict[str, Any] = {
        **_COMMON,
        "mars_type": mars_type,
        "lr_1d": _COMMON["lr"],
        "fused": engine.endswith("fused") or None,
    }
    if lean:
        options |= {"lean": True, "clip": None, "second_moment": "gradient"}

    def build(owned: Owned) -> list[Optimizer]:
        roles = dict.fromkeys(role for _, role in owned)
        groups = [
            {"params": [t for t, own in owned if own == role], "role": role} for role in roles
        ]
        return [MARS(groups, **options)]

    rule = (LEAN if lean else BUFFERED)[mars_type]
    traffic = _traffic(rule, embedding=ADAMW if mars_type in MATRIX_TYPES else None)
    return Subject(
        f"{mars_type} {engine}",
        build,
        traffic,
        orthogonalizes=mars_type in MATRIX_TYPES,
        scratch_copies=1.0,
        compiles=engine.endswith("fused"),
    )


def _pytorch_optimizer(mars_type: str) -> Subject:
    """Return pytorch_optimizer's port. It orthogonalises embeddings too: it knows no roles."""
    name = mars_type.removeprefix("mars-")

    def build(owned: Owned) -> list[Optimizer]:
        port = importlib.import_module("pytorch_optimizer").MARS
        return [port(_tensors(owned), mars_type=name, lr_1d=_COMMON["lr"], **_COMMON)]

    return Subject(
        f"pytorch_optimizer {name}",
        build,
        _traffic(BUFFERED[mars_type]),
        orthogonalizes=mars_type in MATRIX_TYPES,
        scratch_copies=4.0,
        # It keeps a second moment whether the rule has one or not.
        extra_state=12 - BUFFERED[mars_type].state,
    )


def _heavyball(_: str) -> Subject:
    """Return HeavyBall's AdamW with its correction on, of vectors too and without a clip.

    It writes the correction into the gradient and drops the gradient after the step.
    """

    def build(owned: Owned) -> list[Optimizer]:
        port = importlib.import_module("heavyball").AdamW
        return [port(_tensors(owned), mars=True, **_COMMON)]

    roles: tuple[Role, ...] = ("matrix", "embedding", "vector")
    return Subject(
        "heavyball AdamW mars",
        build,
        dict.fromkeys(roles, UNCLIPPED),
        scratch_copies=4.0,
        own_gradients=True,
        compiles=True,
        most_tensors=300,
    )


# Other ports by package, and which types of each are timed.
_PORTS: dict[str, dict[str, Callable[[str], Subject]]] = {
    "pytorch_optimizer": dict.fromkeys(
        ("mars-adamw", "mars-lion", "mars-shampoo"), _pytorch_optimizer
    ),
    "heavyball": {"mars-adamw": _heavyball},
}

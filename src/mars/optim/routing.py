"""Which rule moves a parameter, and with which numbers.

A `Route` depends on the parameter's shape and role and on its group's type, and shapes its state:
it stays the same once there is state. A `Recipe` is a route with the numbers of one step filled in:
everything the arithmetic needs, and nothing it has to look up.
"""

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from mars.optim.options import Clip, Group, Role, SecondMoment, check_gamma
from mars.optim.sharding import is_divided, local

Rule = Literal["adamw", "lion", "shampoo", "muon"]
# Where g_prev comes from: kept from the last step, evaluated for this one, or folded into the
# momentum by the lean identity.
Previous = Literal["stored", "evaluated", "folded"]
Engine = Literal["eager", "compiled", "triton"]

_RULE_OF_TYPE: dict[str, Rule] = {
    "mars-adamw": "adamw",
    "mars-lion": "lion",
    "mars-shampoo": "shampoo",
    "mars-m": "muon",
}
# Below this many elements a compiled kernel's call costs more than its work, and the eager engine
# takes several tensors at a time. The kernels' own limit is 16,452 (see `engines.compiled`).
SMALLEST_COMPILED = 2**15
MATRIX_RULES: tuple[Rule, ...] = ("shampoo", "muon")


@dataclass(frozen=True, slots=True)
class Route:
    """How a parameter is moved: its role, its rule, and whether its gradient is corrected."""

    role: Role
    rule: Rule
    reduced: bool

    @property
    def label(self) -> str:
        """The rule's public name; a rule without variance reduction loses its ``mars-``."""
        if not self.reduced:
            return self.rule
        return next(name for name, rule in _RULE_OF_TYPE.items() if rule == self.rule)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One step's numbers for tensors that share a route, in the symbols of docs/algorithm.md.

    Plain AdamW is the lean form at gamma = 0, so it needs no path of its own. ``step`` is a
    tensor when its value is known to the device only.
    """

    rule: Rule
    previous: Previous
    lr: float | Tensor
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    gamma: float
    next_gamma: float
    clip: Clip | None
    max_norm: float
    second_moment: SecondMoment
    amsgrad: bool
    maximize: bool
    orthogonalize_dtype: torch.dtype | None
    step: float | Tensor

    @property
    def correction_weight(self) -> float:
        """k = gamma * beta1 / (1 - beta1), the weight of the gradient difference."""
        return self.gamma * self.beta1 / (1 - self.beta1)


def route(param: Tensor, group: Group) -> Route:
    """Return how ``group`` moves ``param``.

    The matrix rules take hidden matrices only. Everything a group's type does not take, it moves
    by AdamW: plain with the ``_1d`` options, or variance-reduced when ``optimize_1d`` is true.
    """
    role: Role = group["role"] or ("matrix" if param.ndim >= 2 else "vector")
    rule = _RULE_OF_TYPE[group["mars_type"]]
    if role == "matrix" or (role != "vector" and rule not in MATRIX_RULES):
        return Route(role, rule, reduced=True)
    if group["optimize_1d"]:
        return Route(role, "lion" if rule == "lion" else "adamw", reduced=True)
    return Route(role, "adamw", reduced=False)


def previous_of(way: Route, group: Group) -> Previous:
    """Return where a route's previous gradient comes from; plain AdamW is lean with gamma = 0."""
    if group["lean"] or not way.reduced:
        return "folded"
    return "stored" if group["is_approx"] else "evaluated"


def engine_of(param: Tensor, group: Group, way: Route) -> Engine:
    """Return the engine that moves a parameter.

    The default is the eager engine: it needs no compiler and no warm-up. It also does what is
    local of matrices that several ranks hold, where the products and the network take the time, and
    tensors too small for a kernel of their own.
    """
    if not group["fused"]:
        return "eager"
    if way.rule in MATRIX_RULES and is_divided(param, group["process_group"]):
        return "eager"
    # torch calls ROCm devices "cuda" too.
    if param.device.type == "cuda" and _has_triton():
        return "triton"
    return "compiled" if local(param).numel() >= SMALLEST_COMPILED else "eager"


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def learning_rate(way: Route, group: Group) -> float | Tensor:
    """Return the learning rate of a route: lr, or lr_1d following the group's schedule."""
    lr: float | Tensor = group["lr"]
    if way.reduced:
        return lr
    base_lr = group["base_lr"]
    if isinstance(base_lr, Tensor):
        # A zero base has no ratio to keep: those parameters then share the group's lr.
        return lr * torch.where(base_lr == 0, 1.0, group["lr_1d"] / base_lr)
    return lr * (group["lr_1d"] / base_lr if base_lr else 1.0)


def weight_decay(way: Route, group: Group) -> float:
    """Return the decoupled weight decay of a route."""
    decay: float = group["weight_decay" if way.reduced else "weight_decay_1d"]
    return decay


def gamma_at(group: Group, step: int) -> float:
    """Return the group's gamma for the given step, the first step being 1."""
    gamma = group["gamma"]
    return check_gamma(gamma(step) if callable(gamma) else gamma)


def recipe(
    way: Route, group: Group, *, lr: float | Tensor, step: float | Tensor, count: int
) -> Recipe:
    """Fill a route with the numbers of one step.

    ``step`` enters the bias corrections and may live on the device; ``count`` is the same number
    on the host, for a gamma schedule.
    """
    beta1, beta2 = group["betas" if way.reduced else "betas_1d"]
    previous = previous_of(way, group)
    gamma = gamma_at(group, count) if way.reduced else 0.0
    return Recipe(
        rule=way.rule,
        previous=previous,
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        eps=group["eps"],
        weight_decay=weight_decay(way, group),
        gamma=gamma,
        # Only the lean form looks ahead, and only a schedule has a different value there.
        next_gamma=gamma_at(group, count + 1) if previous == "folded" and way.reduced else gamma,
        clip=group["clip"] if way.reduced else None,
        max_norm=group["max_norm"],
        second_moment=group["second_moment"] if way.reduced else "gradient",
        amsgrad=group["amsgrad"],
        maximize=group["maximize"],
        orthogonalize_dtype=group["orthogonalize_dtype"],
        step=step,
    )

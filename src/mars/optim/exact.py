"""Exact mode: the gradient of this step's sample at the previous point.

Parameters exchange values with the points kept in ``last_param``, in place, so that whoever holds
a parameter (DDP, a compiled graph, a view) sees the visit. Random numbers and buffers are put back,
so that both evaluations see the same dropout and statistics advance once.
"""

import random
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mars.optim.nonfinite import heal_
from mars.optim.options import Group
from mars.optim.routing import previous_of, route
from mars.optim.sharding import is_so_everywhere, local, placed_gradient
from mars.optim.state import State

States = MutableMapping[Tensor, State]


class PreviousEvaluation:
    """Stands for the optimizer at the previous point, where ``GradScaler.unscale_`` wants one.

    A scaler unscales an optimizer's gradients once between two updates; the two evaluations of an
    exact step need two names for the same parameters.
    """

    def __init__(self, param_groups: list[Group]) -> None:
        self.param_groups = param_groups


class ExactMode:
    """What exact mode holds between the evaluations of a step, and nothing a checkpoint needs."""

    def __init__(self) -> None:
        self.modules: tuple[nn.Module, ...] = ()
        self.evaluation: PreviousEvaluation | None = None
        self._evaluated: dict[Tensor, Tensor] | None = None
        self._strays = StrayGradients()
        # A GradScaler knows optimizers by id until its next update: the last one must stay alive.
        self._last_evaluation: PreviousEvaluation | None = None

    @contextmanager
    def previous_point(self, groups: list[Group], states: States) -> Iterator[PreviousEvaluation]:
        """Visit the previous point and keep copies of the gradients that the block leaves."""
        self._evaluated = None
        points = _points(states)
        with visit(_params(groups), points, self._surroundings(groups)):
            self.evaluation = self._last_evaluation = PreviousEvaluation(groups)
            try:
                yield self.evaluation
                self._evaluated = gradient_copies(groups) if points else {}
            finally:
                self.evaluation = None

    def evaluate(self, closure: Callable[[], float], groups: list[Group], states: States) -> float:
        """Evaluate the closure at the previous point, if there is one, and at the present one."""
        params = _params(groups)
        self._strays.check(params)
        for param in params:  # what is left is stale, and would be a third gradient in memory
            if param.grad is not None and not param.grad._is_view():
                param.grad = None
        before = self._surroundings(groups)
        try:
            self._evaluated = {}
            if _points(states):
                with self.previous_point(groups, states):
                    closure()
            return closure()
        except BaseException:
            self._evaluated = None
            before.restore()
            raise

    def previous_gradients(self, states: States) -> dict[Tensor, Tensor]:
        """Return this step's gradients at the previous point; none of a parameter means zero."""
        if self._evaluated is not None:
            heal_(self._evaluated)
            return self._evaluated
        handed_over = {p: s["last_grad"] for p, s in states.items() if "last_grad" in s}
        if not handed_over and any("step" in state for state in states.values()):
            raise RuntimeError(
                "exact mode has no gradient at the previous point for this step; give step() a "
                "closure, or evaluate inside previous_point(), or call update_previous_grad() "
                "before and update_last_grad() after each step"
            )
        return handed_over

    def finish(self, groups: list[Group], states: States) -> None:
        """Let go of what the step has used up."""
        self._evaluated = None
        self._strays.leave(_params(groups))
        for state in states.values():
            state.pop("last_grad", None)

    def _surroundings(self, groups: list[Group]) -> "Surroundings":
        buffers = [buffer for module in self.modules for buffer in module.buffers()]
        return Surroundings({t.device for t in (*_params(groups), *buffers)}, buffers)


def gradient_copies(groups: list[Group]) -> dict[Tensor, Tensor]:
    """Return copies of the gradients that a correction will subtract, signed for descent."""
    copies = {}
    for group in groups:
        for param in group["params"]:
            wanted = previous_of(route(param, group), group) == "evaluated"
            if wanted and param.grad is not None:
                dtype = group["last_grad_dtype"] or param.grad.dtype
                copy = placed_gradient(param).detach().to(dtype, copy=True)
                copies[param] = copy.neg_() if group["maximize"] else copy
    return copies


def keep_points_(params: list[Tensor], states: States, *, keep: bool | Tensor) -> None:
    """Make the present point the previous one, for parameters without a gradient too."""
    for param in params:
        point = states[param].get("last_param") if param in states else None
        if isinstance(keep, Tensor) and point is not None:
            here, there = local(param), local(point)
            there.copy_(torch.where(keep.to(there.device), here, there))
        elif point is not None:
            local(point).copy_(local(param))


def looks_ahead(states: States) -> bool:
    """Whether the authors' protocol is in use, which needs no previous point."""
    return any("previous_grad" in state or "last_grad" in state for state in states.values())


def _points(states: States) -> dict[Tensor, Tensor]:
    return {p: s["last_param"] for p, s in states.items() if "last_param" in s}


def _params(groups: list[Group]) -> list[Tensor]:
    return [param for group in groups for param in group["params"]]


class Surroundings:
    """What an evaluation changes beside gradients: random states and the model's buffers."""

    def __init__(self, devices: Iterable[torch.device], buffers: Iterable[Tensor]) -> None:
        self._python = random.getstate()
        self._host = torch.get_rng_state()
        self._devices = {
            device: torch.get_device_module(device).get_rng_state(device)
            for device in devices
            if device.type not in ("cpu", "meta")
        }
        self._buffers = [(buffer, buffer.clone()) for buffer in buffers]

    @torch.no_grad()
    def restore(self) -> None:
        """Put random states and buffers back to what they were."""
        random.setstate(self._python)
        torch.set_rng_state(self._host)
        for device, state in self._devices.items():
            torch.get_device_module(device).set_rng_state(state, device)
        for buffer, value in self._buffers:
            buffer.copy_(value)


@contextmanager
def visit(
    params: list[Tensor], points: Mapping[Tensor, Tensor], surroundings: Surroundings
) -> Iterator[None]:
    """Let parameters be at their previous points, with no gradients yet, inside the block.

    On the way out parameters, points, surroundings and ``p.grad`` are what they were before.
    """
    outside = [param.grad for param in params]
    # A gradient that is a view may be a bucket that the visit's backward pass writes to.
    values = [grad.clone() if grad is not None and grad._is_view() else None for grad in outside]
    for param in params:
        param.grad = None
    _exchange_(points)
    try:
        yield
    finally:
        _exchange_(points)
        for param, grad, value in zip(params, outside, values, strict=True):
            param.grad = grad if grad is None or value is None else grad.copy_(value)
        surroundings.restore()


@torch.no_grad()
def _exchange_(points: Mapping[Tensor, Tensor]) -> None:
    """Exchange the values of parameters and points, one tensor of extra memory at a time."""
    for param, point in points.items():
        # Local memory alone, which is what a sharded model gathers its parameters from.
        here, there = local(param), local(point)
        kept = here.detach().clone()
        here.copy_(there)
        there.copy_(kept)
    # Autocast keeps casts of parameters until its outermost block ends.
    torch.clear_autocast_cache()


class StrayGradients:
    """Notices gradients computed outside the closure, which two evaluations would not see alike."""

    def __init__(self) -> None:
        self._left: dict[Tensor, tuple[weakref.ref[Tensor], int]] = {}

    def leave(self, params: Iterable[Tensor]) -> None:
        """Remember the gradients a step leaves behind: a closure may find and clear those."""
        self._left = {
            p: (weakref.ref(p.grad), p.grad._version) for p in params if p.grad is not None
        }

    def check(self, params: Iterable[Tensor]) -> None:
        """Raise if a gradient has been computed since the last step, and not cleared."""
        fresh = [p for p in params if p.grad is not None and not self._is_left(p, p.grad)]
        is_clear = not any(bool(local(p.grad).any()) for p in fresh if p.grad is not None)
        if not is_so_everywhere(fresh, is_clear):
            raise RuntimeError(
                "exact mode evaluates the closure at two points, but there are gradients from "
                "outside the closure; accumulate inside it, or clear them with zero_grad() first"
            )

    def _is_left(self, param: Tensor, grad: Tensor) -> bool:
        left, version = self._left.get(param, (None, -1))
        return left is not None and left() is grad and grad._version == version

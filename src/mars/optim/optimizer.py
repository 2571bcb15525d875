"""class MARS: arguments, groups, state and dispatch; the arithmetic is the engine's."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, overload

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT, StateDict, _use_grad_for_differentiable

from mars.optim import engines
from mars.optim.agreement import agree, check_alike
from mars.optim.buckets import Bucket, gather
from mars.optim.checks import (
    check_loaded,
    check_parameter,
    check_shared,
    check_step,
    has_matrices,
    warn_if_undivided,
)
from mars.optim.description import Description, describe
from mars.optim.exact import (
    ExactMode,
    PreviousEvaluation,
    gradient_copies,
    keep_points_,
    looks_ahead,
)
from mars.optim.nonfinite import all_finite, raise_nonfinite
from mars.optim.options import (
    EXTRA_DEFAULTS,
    SCHEDULED_GAMMA,
    Clip,
    Gamma,
    Group,
    MarsType,
    Nonfinite,
    SecondMoment,
    check_group,
    check_unknown_keys,
)
from mars.optim.sharding import everywhere, layout_of, local_gradients
from mars.optim.state import create_state, restore_state_, step_device


class MARS(Optimizer):
    r"""Variance-reduced AdamW, Lion, Shampoo or Muon, in place of ``torch.optim.AdamW``.

    With g the gradient, g_prev that of the previous step and k = gamma * beta1 / (1 - beta1)::

        c  = g + k * (g - g_prev)                   corrected gradient
        c~ = c / max(1, |c| / max_norm)             clip
        m  = beta1 * m + (1 - beta1) * c~           exp_avg
        x  = x - lr * (direction(m) + weight_decay * x)

        mars-adamw      m^ / (sqrt(v^) + eps),  v = beta2 * v + (1 - beta2) * c~^2
        mars-lion       sign(m)
        mars-shampoo    NewtonSchulz(m) * sqrt(max(1, rows / cols))
        mars-m          NewtonSchulz(m) * 0.2 * sqrt(max(rows, cols))

    Every argument but ``params`` is an entry of each parameter group: it can be set per group,
    changed during training unless it decides what state there is, and is saved in the
    ``state_dict``.

    Args:
        params: parameters, named parameters or parameter groups; `mars.param_groups` makes groups
            by role, which the matrix rules (mars-shampoo, mars-m) are best used with.
        lr: learning rate, a number or a one-element tensor.
        betas: decay rates of the first and second moment.
        eps: added to the denominator of AdamW directions.
        weight_decay: decoupled decay, multiplied by the learning rate.
        amsgrad: divide by the largest second moment so far (AdamW directions).
        gamma: strength of the correction in [0, 1], or a callable from the step (the first is 1)
            to it. A callable is not saved: give it again before ``load_state_dict``.
        is_approx: g_prev is the gradient of the previous step. False is exact mode: g_prev is the
            gradient of this step's sample at the previous point, see `step` and `previous_point`.
        mars_type: the direction rule of matrices.
        optimize_1d: correct vectors too, with ``lr``, ``betas`` and ``weight_decay``. Otherwise
            vectors take plain AdamW steps with the three ``_1d`` options.
        lr_1d: learning rate of those AdamW steps. It follows the group's schedule: it is scaled
            by the current ``lr`` over the ``lr`` the group was made with; if that was 0, there is
            no ratio to keep and vectors take the group's ``lr``.
        betas_1d: decay rates of those AdamW steps.
        weight_decay_1d: decay of those AdamW steps.
        clip: limit the norm of c of each tensor ("tensor"), of all together ("global"), or not.
        max_norm: that limit.
        second_moment: build v from c~ ("corrected") or from g ("gradient").
        lean: store no previous gradient, by the identity of docs/algorithm.md; needs ``clip=None``
            and ``second_moment="gradient"``. A callable gamma is then called one step ahead; a
            number assigned to a group's gamma takes some steps to have its full effect.
        last_grad_dtype: dtype of the stored previous gradient; None is that of the moments.
        nonfinite: a NaN or infinite gradient takes its course ("propagate"), has the whole step
            left out and counted in ``skipped_steps`` ("skip"), or raises ("raise").
        maximize: ascend instead of descend.
        foreach: False works on one tensor at a time.
        fused: True runs compiled kernels, see docs/engines.md.
        capturable: keep step counts on the device, for CUDA graphs.
        differentiable: let autograd differentiate through the step.

    A group may also hold ``role`` ("matrix", "embedding", "head" or "vector", see
    `mars.param_groups`), ``orthogonalize_dtype``, the dtype of Newton-Schulz products (None:
    bfloat16 where the hardware is fast at it, else float32), and ``process_group``, the ranks that
    hold equal copies of its parameters, as under DDP: they divide the matrices among themselves.
    DTensors (FSDP2, HSDP, tensor parallelism) need no such entry, see docs/distributed.md.

    Deviations:
        From the paper: the first step has g_prev = 0, so c_1 = (1 + k) g_1, as in the authors'
        code. From the authors' code: tensors with more than two dimensions are matrices too,
        flattened to (rows, everything else), instead of falling back to AdamW; the previous
        gradient is a copy. ``docs/algorithm.md`` has the full table.

    Example:
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = MARS(model.parameters(), lr=3e-3)
        >>> model(torch.ones(1, 4)).sum().backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 3e-3,
        betas: tuple[float, float] = (0.95, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        gamma: Gamma = 0.025,
        is_approx: bool = True,
        mars_type: MarsType = "mars-adamw",
        optimize_1d: bool = False,
        lr_1d: float | Tensor = 3e-3,
        betas_1d: tuple[float, float] = (0.9, 0.95),
        weight_decay_1d: float = 0.1,
        *,
        clip: Clip | None = "tensor",
        max_norm: float = 1.0,
        second_moment: SecondMoment = "corrected",
        lean: bool = False,
        last_grad_dtype: torch.dtype | None = None,
        nonfinite: Nonfinite = "propagate",
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        defaults = {
            name: value
            for name, value in locals().items()
            if name not in ("self", "params", "__class__")
        }
        super().__init__(params, {**defaults, **EXTRA_DEFAULTS})
        self._exact = ExactMode()

    def add_param_group(self, param_group: Group) -> None:
        """Add a group, its missing options taken from the constructor; refuse an illegal one."""
        if not isinstance(param_group, dict):
            raise TypeError(f"a parameter group must be a dict, got {type(param_group).__name__}")
        group = dict(param_group)
        if not isinstance(group["params"], Tensor | set):  # the base class sees to those two
            group["params"] = list(group["params"])
        check_unknown_keys(group, known=(*self.defaults, "params", "param_names", "base_lr"))
        lr = group.get("lr", self.defaults["lr"])
        group.setdefault("base_lr", _detached(lr))
        options = {**self.defaults, **group}
        check_group(options)
        check_shared([*self.param_groups, options])
        if options["differentiable"] != self.defaults["differentiable"]:
            raise ValueError("differentiable is set for all groups, in the constructor")
        given = [group["params"]] if isinstance(group["params"], Tensor) else group["params"]
        for item, name in zip(given, group.get("param_names", [None] * len(given)), strict=False):
            own_name, param = item if isinstance(item, tuple) else (name, item)
            check_parameter(param, options, name=own_name)
        group.setdefault("skipped_steps", torch.zeros((), dtype=torch.int64))
        super().add_param_group(group)
        self._had_matrices = [has_matrices(each) for each in self.param_groups]
        self._is_compared = False

    @overload
    def step(self, closure: None = None, *, bs: object = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float], *, bs: object = None) -> float: ...

    @_use_grad_for_differentiable
    def step(
        self,
        closure: Callable[[], float] | None = None,
        *,
        bs: object = None,  # noqa: ARG002  # part of the authors' call
    ) -> float | None:
        """Take one step and return the closure's loss at the present point, if one was given.

        A closure clears gradients, computes the loss, calls ``backward`` and returns the loss. In
        exact mode it is evaluated at the previous point and at the present one, with the same
        random numbers; if it raises, parameters, state and random state are as before the call.

        ``bs`` is accepted for the authors' published loop and has no effect.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = self._evaluate(closure)
        check_step(self.param_groups, had_matrices=self._had_matrices)
        self._check_capture()
        evaluated = {} if self._is_approx else self._exact.previous_gradients(self.state)
        if not self._is_compared:
            self._compare_ranks()
        gradients = local_gradients(p for group in self.param_groups for p in group["params"])
        finite = all_finite(self.param_groups, gradients, evaluated)
        if finite.get("raise") is False and not everywhere(list(map(layout_of, gradients))):
            raise_nonfinite(self.param_groups, gradients, evaluated)
        self._prepare_state()
        plan = [
            (group, gather(group, self.state, gradients=gradients, evaluated=evaluated))
            for group in self.param_groups
        ]
        every = [bucket for _, buckets in plan for bucket in buckets]
        shared, finite = agree(every, engines.shared_norms(every), finite)
        if finite.get("raise") is False:
            raise_nonfinite(self.param_groups, gradients, evaluated)
        norms = iter(shared)
        ready: list[tuple[Bucket, Tensor | None]] = []
        for group, buckets in plan:
            keep = finite["skip"] if group["nonfinite"] == "skip" else True
            self._count(group, keep)
            own = [(replace(bucket, keep=keep), next(norms)) for bucket in buckets]
            if keep is not False:
                keep_points_(group["params"], self.state, keep=keep)
                ready += own
        engines.run_([bucket for bucket, _ in ready], [norm for _, norm in ready])
        if not self._is_approx:
            self._exact.finish(self.param_groups, self.state)
        return loss

    def _check_capture(self) -> None:
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        if capturing and not all(group["capturable"] for group in self.param_groups):
            raise RuntimeError("a step in a CUDA graph needs capturable=True in every group")

    def _compare_ranks(self) -> None:
        """Find out, before the first step, whether other ranks are about to take the same one."""
        if dist.is_available() and dist.is_initialized():
            check_alike(self.param_groups)
            warn_if_undivided(self.param_groups)
        self._is_compared = True

    def _evaluate(self, closure: Callable[[], float]) -> float:
        if self._is_approx:
            return closure()
        return self._exact.evaluate(closure, self.param_groups, self.state)

    def _prepare_state(self) -> None:
        """Create the state of parameters that have their first gradient.

        Among several processes, that of all trainable parameters, so that whoever loads the
        checkpoint finds the keys that a fresh optimizer has.
        """
        keep_point = not looks_ahead(self.state)
        is_alone = not (dist.is_available() and dist.is_initialized())
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None and (is_alone or not param.requires_grad):
                    continue
                state = self.state[param]
                if "step" not in state:
                    state.update(create_state(param, group, keep_point=keep_point))
                    continue
                # A no-op, unless an option that decides where counts live was changed.
                state["step"] = state["step"].to(step_device(param, group))
                if group["differentiable"]:
                    # The graph of an earlier step must keep the values it was recorded with.
                    state.update({key: value.clone() for key, value in state.items()})

    def _count(self, group: Group, keep: bool | Tensor) -> None:
        """Advance the group's step counts, or its count of skipped steps, as ``keep`` says."""
        if group["nonfinite"] == "skip":
            skipped = ~keep if isinstance(keep, Tensor) else torch.tensor(not keep)
            # In place, so that a captured graph counts too.
            group["skipped_steps"] = group["skipped_steps"].to(skipped.device).add_(skipped)
        steps = [self.state[p]["step"] for p in group["params"] if p.grad is not None]
        if isinstance(keep, Tensor):
            for step in steps:
                step += keep.to(step.device)
        elif keep and steps:
            torch._foreach_add_(steps, 1)

    @property
    def skipped_steps(self) -> int:
        """How many steps ``nonfinite="skip"`` has left out; reading it waits for the device."""
        return max(int(group["skipped_steps"]) for group in self.param_groups)

    def describe(self) -> Description:
        """Return the routing table: each tensor's role, rule, learning rate, decay, state bytes."""
        return describe(self.param_groups)

    def track_buffers(self, *modules: nn.Module) -> None:
        """Let buffers such as BatchNorm statistics advance once an exact step, not twice.

        What is handed over is not part of the ``state_dict``: do it again after a restart.
        """
        self._exact.modules = modules

    @contextmanager
    def previous_point(self) -> Iterator[PreviousEvaluation]:
        """Put the parameters at x_{t-1}; the gradients left by the block become g_prev.

        For hand-written loops in exact mode. Evaluate this step's sample inside the block, then
        outside it, then call `step`. Random states, tracked buffers and ``p.grad`` come back as
        they were, so both evaluations see the same dropout. At the first step there is no previous
        point: the block runs where the model is, and its gradients are dropped.

        Yields what to give ``GradScaler.unscale_`` inside the block in place of the optimizer.
        """
        if self._is_approx:
            raise RuntimeError(
                "previous_point() belongs to exact mode; construct with is_approx=False"
            )
        with self._exact.previous_point(self.param_groups, self.state) as evaluation:
            yield evaluation

    @property
    def unscale_target(self) -> "PreviousEvaluation | MARS":
        """What a closure of exact mode gives to ``GradScaler.unscale_``, in either evaluation."""
        return self._exact.evaluation or self

    def update_previous_grad(self) -> None:
        """Keep the gradient of the next sample at this point: the authors' look-ahead protocol.

        Call it before `step`, and `update_last_grad` after it. In approx mode it does nothing.
        """
        if not self._is_approx:
            for param, grad in gradient_copies(self.param_groups).items():
                self.state[param]["previous_grad"] = grad

    def update_last_grad(self) -> None:
        """Make what `update_previous_grad` kept the next step's g_prev; nothing in approx mode."""
        for state in self.state.values():
            if "previous_grad" in state:
                state["last_grad"] = state.pop("previous_grad")

    @property
    def _is_approx(self) -> bool:
        approx: bool = self.param_groups[0]["is_approx"]
        return approx

    def state_dict(self) -> StateDict:
        """Return the state and options, without a callable gamma and without process groups."""
        packed = super().state_dict()
        for group in packed["param_groups"]:
            if callable(group["gamma"]):
                group["gamma"] = SCHEDULED_GAMMA
            group["process_group"] = None  # a matter of this process
        return packed

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load state and options; the state keeps its dtype and shares no memory with its source.

        A state_dict that does not fit is refused before anything changes. If it was saved with a
        callable gamma, the groups' present callables stay.
        """
        loaded: StateDict = {}
        kept = ("gamma", "base_lr", "process_group")
        present = [{name: group[name] for name in kept} for group in self.param_groups]

        # Other pre-hooks may rewrite the state_dict, so ours runs last; other post-hooks should
        # see the finished state, so ours runs first.
        def check(_: Optimizer, given: StateDict) -> None:
            check_loaded(given, self.param_groups, self.defaults)
            loaded.update(given)

        def restore(_: Optimizer) -> None:
            saved_groups = loaded["param_groups"]
            for group, saved, own in zip(self.param_groups, saved_groups, present, strict=True):
                if group["gamma"] == SCHEDULED_GAMMA:
                    group["gamma"] = own["gamma"]
                if "base_lr" not in saved:
                    group["base_lr"] = own["base_lr"]
                group["process_group"] = own["process_group"]
            restore_state_(self.state, loaded, self.param_groups)

        hooks = (
            self.register_load_state_dict_pre_hook(check),
            self.register_load_state_dict_post_hook(restore, prepend=True),
        )
        try:
            super().load_state_dict(state_dict)
        finally:
            for hook in hooks:
                hook.remove()

    def __getstate__(self) -> dict[str, Any]:
        # Process groups cannot be copied; a copy computes the same, undivided.
        groups = [{**group, "process_group": None} for group in self.param_groups]
        return {**super().__getstate__(), "param_groups": groups}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_exact" not in self.__dict__:  # made by a copy, not by the constructor
            self._exact = ExactMode()
            self._had_matrices = [has_matrices(group) for group in self.param_groups]
            self._is_compared = False
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
            group.setdefault("base_lr", _detached(group.get("initial_lr", group["lr"])))
            group.setdefault("skipped_steps", torch.zeros((), dtype=torch.int64))


def _detached(lr: float | Tensor) -> float | Tensor:
    return lr.detach().clone() if isinstance(lr, Tensor) else lr

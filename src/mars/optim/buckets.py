"""Tensors that share a recipe, gathered for one step.

A bucket holds parallel lists, as torch.optim's functional core does. Complex tensors enter as
real views, except under the matrix rules, which orthogonalise complex matrices as such.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mars.optim.options import Group
from mars.optim.routing import (
    MATRIX_RULES,
    Engine,
    Recipe,
    engine_of,
    learning_rate,
    recipe,
    route,
)
from mars.optim.sharding import Holding, Layout, holding_of, layout_of, local
from mars.optim.state import State, check_state_fits


@dataclass(slots=True)
class Tensors:
    """Parallel lists of tensors; a list the recipe has no use for stays empty."""

    params: list[Tensor] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)
    exp_avgs: list[Tensor] = field(default_factory=list)
    exp_avg_sqs: list[Tensor] = field(default_factory=list)
    max_exp_avg_sqs: list[Tensor] = field(default_factory=list)
    last_grads: list[Tensor] = field(default_factory=list)
    directions: list[Tensor] = field(default_factory=list)

    def lists(self) -> tuple[list[Tensor], ...]:
        """Return the lists in the order of the fields."""
        return (
            *(self.params, self.grads, self.exp_avgs, self.exp_avg_sqs),
            *(self.max_exp_avg_sqs, self.last_grads, self.directions),
        )

    @classmethod
    def of(cls, rows: Iterable["Tensors"]) -> "Tensors":
        """Return the tensors of several records as one."""
        together = cls()
        for row in rows:
            together.extend(row)
        return together

    def rows(self) -> Iterator["Tensors"]:
        """Yield each parameter's tensors as lists of one."""
        lists = self.lists()
        for i in range(len(self.params)):
            yield Tensors(*[tensors[i : i + 1] for tensors in lists])

    def take(self, indices: Sequence[int]) -> "Tensors":
        """Return the tensors of some parameters."""
        return Tensors(*[[each[i] for i in indices] if each else [] for each in self.lists()])

    def extend(self, other: "Tensors") -> None:
        """Append the tensors of another record, list by list."""
        for own, others in zip(self.lists(), other.lists(), strict=True):
            own.extend(others)

    def flat(self) -> "Tensors | None":
        """Return one parameter's tensors as flat views, if they share one dense layout."""
        lists = self.lists()
        if not all(t.is_contiguous() for tensors in lists for t in tensors):
            param = self.params[0]
            order = sorted(range(param.ndim), key=param.stride, reverse=True)
            lists = tuple([t.permute(order) for t in tensors] for tensors in lists)
            if not all(t.is_contiguous() for tensors in lists for t in tensors):
                return None
        return Tensors(*[[t.view(-1) for t in tensors] for tensors in lists])

    def as_real(self) -> "Tensors":
        """Return the record with complex tensors as real views."""
        return Tensors(*[[_real(t) for t in tensors] for tensors in self.lists()])

    def written(self) -> list[Tensor]:
        """Return every tensor a step may write: the parameter and its state."""
        return [
            *(*self.params, *self.exp_avgs, *self.exp_avg_sqs),
            *(*self.max_exp_avg_sqs, *self.last_grads),
        ]


def _real(tensor: Tensor) -> Tensor:
    # Only a gradient can be a lazy conjugate; it is never written, so a copy will do.
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


@dataclass(slots=True)
class Bucket:
    """Tensors of one device and dtype that take the same recipe.

    The engine may work on several tensors at a time if ``batched``, and on slices of a large one
    if ``sliceable``. Where ``keep``, on the device, turns out false, nothing may change. The
    tensors are what this rank holds of tensors with a ``layout``; matrices with a ``holding`` are
    orthogonalised by one of several ranks.
    """

    recipe: Recipe
    engine: Engine
    batched: bool
    sliceable: bool
    layout: Layout | None = None
    holding: Holding | None = None
    keep: bool | Tensor = True
    tensors: Tensors = field(default_factory=Tensors)

    @property
    def keep_flag(self) -> Tensor | None:
        """The flag that decides on the device whether the step counts, if there is one."""
        return self.keep if isinstance(self.keep, Tensor) else None

    def without_empty(self, norms: Tensor | None) -> "tuple[Bucket, Tensor | None]":
        """Return the bucket without tensors that have no entries here, and the norms of the rest.

        A rank may hold nothing of a small tensor, but takes part in what all ranks decide of it.
        """
        full = [i for i, param in enumerate(self.tensors.params) if param.numel()]
        if len(full) == len(self.tensors.params):
            return self, norms
        kept = replace(self, tensors=self.tensors.take(full))
        return kept, norms if norms is None else norms[full]


def gather(
    group: Group,
    state: Mapping[Tensor, State],
    *,
    gradients: Mapping[Tensor, Tensor],
    evaluated: Mapping[Tensor, Tensor],
) -> list[Bucket]:
    """Return the buckets of a group's parameters that have a gradient and any elements.

    ``gradients`` has what is here of them. ``evaluated`` has exact mode's gradients at the previous
    point; none there is a zero. Nothing is changed; the recipes are those of the step that is about
    to be counted.
    """
    params = [p for p in group["params"] if p.grad is not None]
    counts = _next_counts(group, [state[p]["step"] for p in params])
    buckets: dict[tuple[object, ...], Bucket] = {}
    fitting: set[tuple[object, ...]] = set()
    for param, count in zip(params, counts, strict=True):
        way = route(param, group)
        if (kind := (way, *state[param])) not in fitting:
            check_state_fits(state[param], param, group, name=f"a parameter of shape {param.shape}")
            fitting.add(kind)
        if param.numel() == 0:
            continue
        matrix = way.rule in MATRIX_RULES
        step = state[param]["step"]
        layout = layout_of(param)
        engine = engine_of(param, group, way)
        key: tuple[object, ...] = (way.rule, way.reduced, engine, count, layout)
        key += (param.device, param.dtype)
        if matrix:
            key += (param.shape,)  # equal shapes are orthogonalised as one batch
        elif _host_reads(step, group):
            step = float(count)
        else:
            key += (id(param),)  # a count only the device knows cannot be shared
        if key not in buckets:
            lr = _usable_lr(learning_rate(way, group), group)
            numbers = recipe(way, group, lr=lr, step=step, count=count)
            buckets[key] = Bucket(
                numbers,
                engine=engine,
                batched=group["foreach"] is not False,
                sliceable=not group["differentiable"],
                layout=layout,
                holding=holding_of(param, group["process_group"]) if matrix else None,
            )
        row = _row(param, gradients[param], state[param])
        if buckets[key].recipe.previous == "evaluated":
            missing = torch.zeros_like(row.exp_avgs[0]) if param not in evaluated else None
            row.last_grads = [local(evaluated[param]) if missing is None else missing]
        complex_vectors = param.is_complex() and not matrix
        buckets[key].tensors.extend(row.as_real() if complex_vectors else row)
    return list(buckets.values())


def _row(param: Tensor, gradient: Tensor, state: State) -> Tensors:
    """Return what is here of one parameter's tensors."""
    keys = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "last_grad")
    kept = ([local(state[key])] if key in state else [] for key in keys)
    return Tensors([local(param)], [gradient], *kept)


def _host_reads(step: Tensor, group: Group) -> bool:
    return step.device.type == "cpu" and not group["capturable"]


def _next_counts(group: Group, steps: list[Tensor]) -> list[int]:
    """Return the number each parameter's coming step will have, reading each device at most once.

    Counts that live on a device are read only for a gamma schedule; otherwise nothing on the host
    depends on them and 1 stands for all.
    """
    counts = [1] * len(steps)
    for device in {step.device for step in steps}:
        own = [i for i, step in enumerate(steps) if step.device == device]
        if callable(group["gamma"]) or _host_reads(steps[own[0]], group):
            values = torch.stack([steps[i] for i in own]).tolist()
            for i, value in zip(own, values, strict=True):
                counts[i] = int(value) + 1
    return counts


def _usable_lr(lr: float | Tensor, group: Group) -> float | Tensor:
    """Return a tensor learning rate as a number where that costs no synchronisation."""
    if not isinstance(lr, Tensor):
        return float(lr)
    if lr.device.type != "cpu" or group["capturable"] or group["differentiable"]:
        return lr.reshape(())
    return float(lr)

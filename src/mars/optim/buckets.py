"""Tensors that share a recipe, gathered for one step.

A bucket holds parallel lists, as torch.optim's functional core does. Complex tensors enter as
real views, except under the matrix rules, which orthogonalise complex matrices as such.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from mars.optim.options import Group
from mars.optim.routing import MATRIX_RULES, Recipe, learning_rate, recipe, route
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

    def rows(self) -> Iterator["Tensors"]:
        """Yield each parameter's tensors as lists of one."""
        for i in range(len(self.params)):
            yield Tensors(*(getattr(self, f.name)[i : i + 1] for f in fields(self)))

    def extend(self, other: "Tensors") -> None:
        """Append the tensors of another record, list by list."""
        for f in fields(self):
            getattr(self, f.name).extend(getattr(other, f.name))

    def as_real(self) -> "Tensors":
        """Return the record with complex tensors as real views."""
        return Tensors(*([_real(t) for t in getattr(self, f.name)] for f in fields(self)))

    def written(self) -> list[Tensor]:
        """Return every tensor a step may write: the parameter and its state."""
        read_only = ("grads", "directions")
        return [t for f in fields(self) if f.name not in read_only for t in getattr(self, f.name)]


def _real(tensor: Tensor) -> Tensor:
    # Only a gradient can be a lazy conjugate; it is never written, so a copy will do.
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


@dataclass(slots=True)
class Bucket:
    """Tensors of one device and dtype that take the same recipe.

    The engine may work on several tensors at a time if ``batched``, and on slices of a large one
    if ``sliceable``. Where ``keep``, on the device, turns out false, nothing may change.
    """

    recipe: Recipe
    batched: bool
    sliceable: bool
    keep: bool | Tensor = True
    tensors: Tensors = field(default_factory=Tensors)


def gather(
    group: Group, state: Mapping[Tensor, State], *, evaluated: Mapping[Tensor, Tensor]
) -> list[Bucket]:
    """Return the buckets of a group's parameters that have a gradient and any elements.

    ``evaluated`` has exact mode's gradients at the previous point; none there is a zero. Nothing is
    changed; the recipes are those of the step that is about to be counted.
    """
    params = [p for p in group["params"] if p.grad is not None]
    counts = _next_counts(group, [state[p]["step"] for p in params])
    buckets: dict[tuple[object, ...], Bucket] = {}
    for param, count in zip(params, counts, strict=True):
        check_state_fits(state[param], param, group, name=f"a parameter of shape {param.shape}")
        if param.numel() == 0:
            continue
        way = route(param, group)
        matrix = way.rule in MATRIX_RULES
        step = state[param]["step"]
        key: tuple[object, ...] = (way.rule, way.reduced, param.device, param.dtype, count)
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
                batched=group["foreach"] is not False,
                sliceable=not group["differentiable"],
            )
        row = _row(param, state[param])
        if buckets[key].recipe.previous == "evaluated":
            missing = torch.zeros_like(row.exp_avgs[0]) if param not in evaluated else None
            row.last_grads = [evaluated[param] if missing is None else missing]
        buckets[key].tensors.extend(row if matrix else row.as_real())
    return list(buckets.values())


def _row(param: Tensor, state: State) -> Tensors:
    """Return one parameter's tensors."""
    assert param.grad is not None
    keys = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "last_grad")
    return Tensors([param], [param.grad], *([state[k]] if k in state else [] for k in keys))


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

"""What a NaN or an infinity in a gradient does to a step.

"propagate" looks at nothing. "raise" names the parameter. "skip" leaves the whole step out; the
decision is a flag on the device, so that nothing waits for it.
"""

from collections.abc import Mapping, Sequence
from typing import NoReturn

import torch
from torch import Tensor

from mars.optim.options import Group, Nonfinite
from mars.optim.sharding import local, local_gradient

_LOOKING = ("raise", "skip")


Finite = dict[Nonfinite, bool | Tensor]
"""By policy, whether all gradients that it watches are finite."""

Gradients = Mapping[Tensor, Tensor]
"""What is here of gradients, by parameter."""


def all_finite(groups: list[Group], *points: Gradients) -> Finite:
    """Return, by policy, whether every gradient here of the groups that have it is finite.

    ``points`` has the gradients at the present point, and exact mode's at the previous one. For
    "skip" the answer is a flag on the device unless the host has it at no cost; "raise" waits.
    """
    found: Finite = {}
    capturable = any(group["capturable"] for group in groups)
    for policy in {group["nonfinite"]: None for group in groups if group["nonfinite"] in _LOOKING}:
        flags = _finite_by_device(_gradients(groups, points, policy=policy))
        flag = torch.stack([f.to(flags[0].device) for f in flags]).all() if flags else True
        is_free = isinstance(flag, bool) or (flag.device.type == "cpu" and not capturable)
        found[policy] = bool(flag) if is_free or policy == "raise" else flag
    return found


def raise_nonfinite(groups: list[Group], *points: Gradients) -> NoReturn:
    """Raise for the first non-finite gradient of the groups that ask for it, naming it."""
    for index, group in enumerate(groups):
        if group["nonfinite"] != "raise":
            continue
        for position, param in enumerate(group["params"]):
            grads = _gradients([{**group, "params": [param]}], points, policy="raise")
            if not all(grad.isfinite().all() for grad in grads):
                raise RuntimeError(
                    f"non-finite gradient in {parameter_name(groups, index, position)}; nothing "
                    "was changed (nonfinite='skip' would leave such a step out)"
                )
    raise RuntimeError("non-finite gradient on another rank, which names it; nothing was changed")


def parameter_name(groups: list[Group], index: int, position: int) -> str:
    """Return what to call a parameter in a message: its name if the optimizer was told it."""
    group = groups[index]
    names = group.get("param_names")
    which = f"{position} of group {index}" if names is None else repr(names[position])
    return f"parameter {which} of shape {tuple(group['params'][position].shape)}"


@torch.no_grad()
def heal_(evaluated: Mapping[Tensor, Tensor]) -> None:
    """Replace non-finite entries of gradients at the previous point by present ones: no correction.

    Under a GradScaler either evaluation may overflow. The scaler sees to the present gradient.
    """
    for param, evaluation in evaluated.items():
        previous = local(evaluation)
        if param.grad is not None and previous.numel() > 0:
            finite = torch.linalg.vector_norm(previous, float("inf")).isfinite()
            if finite.device.type != "cpu" or not finite:
                # Entry by entry, so that it does not matter which rank holds which.
                present = local_gradient(param).to(previous.dtype)
                previous.copy_(torch.where(previous.isfinite(), previous, present))


def _gradients(
    groups: list[Group], points: Sequence[Gradients], *, policy: Nonfinite
) -> list[Tensor]:
    """Return the gradients, at all points, of the groups with a policy."""
    params = [p for group in groups if group["nonfinite"] == policy for p in group["params"]]
    every = [local(own[p]) for own in points for p in params if p.grad is not None and p in own]
    return [grad for grad in every if grad.numel() > 0]


def _finite_by_device(every: list[Tensor]) -> list[Tensor]:
    """Return a flag per device: the largest magnitudes, hence all entries, are finite."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for grad in every:
        by_device.setdefault(grad.device, []).append(grad)
    return [
        torch.stack([peak.isfinite() for peak in torch._foreach_norm(grads, float("inf"))]).all()
        for grads in by_device.values()
    ]

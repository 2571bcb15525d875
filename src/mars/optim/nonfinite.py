"""What a NaN or an infinity in a gradient does to a step.

"propagate" looks at nothing. "raise" names the parameter. "skip" leaves the whole step out; the
decision is a flag on the device, so that nothing waits for it.
"""

import torch
from torch import Tensor

from mars.optim.options import Group, Nonfinite


def raise_if_nonfinite(groups: list[Group]) -> None:
    """Raise for the first non-finite gradient of the groups that ask for it, naming it."""
    params = _graded(groups, policy="raise")
    if not params or all(bool(flag) for flag in _finite_by_device(params)):
        return
    for index, group in enumerate(groups):
        if group["nonfinite"] != "raise":
            continue
        for position, param in enumerate(group["params"]):
            if param.grad is not None and not param.grad.isfinite().all():
                raise RuntimeError(
                    f"non-finite gradient in {parameter_name(groups, index, position)}; nothing "
                    "was changed (nonfinite='skip' would leave such a step out)"
                )


def all_finite(groups: list[Group]) -> bool | Tensor:
    """Return whether every gradient of the groups that skip is finite.

    The answer is a flag on the device unless the host has it at no cost.
    """
    params = _graded(groups, policy="skip")
    if not params:
        return True
    flags = _finite_by_device(params)
    flag = torch.stack([flag.to(flags[0].device) for flag in flags]).all()
    capturable = any(group["capturable"] for group in groups)
    return bool(flag) if flag.device.type == "cpu" and not capturable else flag


def parameter_name(groups: list[Group], index: int, position: int) -> str:
    """Return what to call a parameter in a message: its name if the optimizer was told it."""
    group = groups[index]
    names = group.get("param_names")
    which = f"{position} of group {index}" if names is None else repr(names[position])
    return f"parameter {which} of shape {tuple(group['params'][position].shape)}"


def _graded(groups: list[Group], *, policy: Nonfinite) -> list[Tensor]:
    return [
        param
        for group in groups
        if group["nonfinite"] == policy
        for param in group["params"]
        if param.grad is not None and param.numel() > 0
    ]


def _finite_by_device(params: list[Tensor]) -> list[Tensor]:
    """Return a flag per device: the largest magnitudes, hence all entries, are finite."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for param in params:
        if param.grad is not None:
            by_device.setdefault(param.device, []).append(param.grad)
    return [
        torch.stack([peak.isfinite() for peak in torch._foreach_norm(grads, float("inf"))]).all()
        for grads in by_device.values()
    ]

"""What the optimizer remembers of a parameter: which tensors, of which dtype, how many bytes.

Keys follow torch.optim (``step``, ``exp_avg``, ``exp_avg_sq``, ``max_exp_avg_sq``); ``last_grad``
is the previous gradient of the buffered form, ``last_param`` the previous point of exact mode.
"""

from collections.abc import Mapping, MutableMapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from mars.optim.options import Group
from mars.optim.routing import previous_of, route
from mars.optim.sharding import local, local_part

State = dict[str, Any]

_WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
}


def state_dtype(param: Tensor) -> torch.dtype:
    """Return the dtype of a parameter's moments: never narrower than float32."""
    return _WIDER.get(param.dtype, param.dtype)


def state_dtypes(param: Tensor, group: Group) -> dict[str, torch.dtype]:
    """Return the tensors a parameter's state holds beside ``step``, by key."""
    way = route(param, group)
    wide = state_dtype(param)
    dtypes = {"exp_avg": wide}
    if way.rule == "adamw":
        dtypes["exp_avg_sq"] = wide
        if group["amsgrad"]:
            dtypes["max_exp_avg_sq"] = wide
    if previous_of(way, group) == "stored":
        dtypes["last_grad"] = group["last_grad_dtype"] or wide
    if not group["is_approx"]:
        dtypes["last_param"] = param.dtype  # whatever the rule, the whole previous point is needed
    return dtypes


def check_state_fits(state: Mapping[str, Any], param: Tensor, group: Group, *, name: str) -> None:
    """Refuse a state that was not made with the options the group has now."""
    # Exact mode's extras come and go: the point, or the gradients of the authors' protocol.
    passing = {"last_param"} if group["is_approx"] else {"last_param", "last_grad", "previous_grad"}
    needed = ("step", *(key for key in state_dtypes(param, group) if key not in passing))
    known = {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "last_grad"} - passing
    missing = [key for key in needed if key not in state]
    surplus = [key for key in state if key in known and key not in needed]
    if missing or surplus:
        raise ValueError(
            f"the state of {name} has {', '.join(state)}, but the options of its group ask for "
            f"{', '.join(needed)}; mars_type, role, optimize_1d, lean, amsgrad and is_approx "
            "cannot change once there is state (mars.from_adamw converts AdamW's)"
        )


def step_device(param: Tensor, group: Group) -> torch.device:
    """Return where the step count lives: on the host unless only the device can advance it."""
    decided_on_device = group["nonfinite"] == "skip" and param.device.type != "cpu"
    return param.device if group["capturable"] or decided_on_device else torch.device("cpu")


def create_state(param: Tensor, group: Group, *, keep_point: bool) -> State:
    """Return a parameter's state at step 0, in the parameter's memory format.

    ``keep_point`` says whether exact mode will visit the previous point. Until a step has counted
    that is the present one.
    """
    zeros = {
        key: torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)
        for key, dtype in state_dtypes(param, group).items()
        if keep_point or key != "last_param"
    }
    if "last_param" in zeros:
        local(zeros["last_param"]).copy_(local(param.detach()))
    step = torch.zeros((), dtype=torch.float32, device=step_device(param, group))
    return {"step": step, **zeros}


def visit_bytes(param: Tensor, group: Group) -> int:
    """Return the bytes an exact step holds of a parameter's gradient at the previous point."""
    if previous_of(route(param, group), group) != "evaluated":
        return 0
    return (group["last_grad_dtype"] or param.dtype).itemsize * local(param).numel()


def state_bytes(param: Tensor, group: Group) -> int:
    """Return the bytes of what a rank keeps of a parameter's state, the step count left out."""
    each = sum(dtype.itemsize for dtype in state_dtypes(param, group).values())
    return each * local(param).numel()


def restore_state_(
    state: MutableMapping[Tensor, State], loaded: Mapping[str, Any], groups: list[Group]
) -> None:
    """Replace what ``Optimizer.load_state_dict`` stored by copies that keep their dtype.

    The base class casts state to the parameter's dtype and shares tensors with its source.
    """
    ids = chain.from_iterable(group["params"] for group in loaded["param_groups"])
    for group in groups:
        for param in group["params"]:
            saved = loaded["state"].get(next(ids), {})
            for key, value in saved.items():
                state[param][key] = _restored(key, value, param, group)


def _restored(key: str, value: Any, param: Tensor, group: Group) -> Any:
    """Return a copy of a loaded value: of its own dtype, in the parameter's memory format."""
    if key == "step":
        return torch.as_tensor(value, dtype=torch.float32).to(step_device(param, group), copy=True)
    if not isinstance(value, Tensor) or value.shape != param.shape:
        return value
    dtype = state_dtypes(param, group).get(key, value.dtype)
    restored = torch.empty_like(param, dtype=dtype, requires_grad=False)
    local(restored).copy_(local_part(value, like=param))
    return restored

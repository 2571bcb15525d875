"""The options of a parameter group: their types, their legal values, their legal combinations.

Every option is an entry of its group and is read from there at each step. This module refuses a
bad group before the optimizer has changed anything; it computes nothing.
"""

import math
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from numbers import Real
from typing import Any, Literal, get_args

import torch
from torch import Tensor

MarsType = Literal["mars-adamw", "mars-lion", "mars-shampoo", "mars-m"]
Clip = Literal["tensor", "global"]
SecondMoment = Literal["corrected", "gradient"]
Nonfinite = Literal["propagate", "skip", "raise"]
Role = Literal["matrix", "embedding", "head", "vector"]
Gamma = float | Callable[[int], float]

# A parameter group as torch.optim keeps it: option values of many types under string keys.
Group = dict[str, Any]

# What stands for a callable gamma in a state_dict: functions do not belong in checkpoint files.
SCHEDULED_GAMMA = "callable"

# Entries a group may carry beside the constructor's arguments.
# float16 overflows at 65504, where gradients under loss scaling live.
_DTYPES = {
    "last_grad_dtype": (torch.bfloat16, torch.float32, torch.float64),
    "orthogonalize_dtype": (torch.float16, torch.bfloat16, torch.float32),
}
_FLAGS = (
    *("amsgrad", "is_approx", "optimize_1d", "lean"),
    *("maximize", "capturable", "differentiable"),
)

EXTRA_DEFAULTS: Mapping[str, object] = {
    "role": None,
    "orthogonalize_dtype": None,
    "process_group": None,
}


def nearest(name: object, choices: tuple[object, ...] | list[str]) -> str:
    """Return ``; did you mean '...'?`` for a misspelt choice, or the list of choices."""
    shown = {str(choice): repr(choice) for choice in choices}
    folded = {text.casefold(): text for text in shown}
    close = get_close_matches(str(name).casefold(), folded, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {shown[folded[close[0]]]}?"
    return f"; choose from {', '.join(shown.values())}"


def check_group(group: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` or ``TypeError`` if a group holds an illegal value or combination."""
    _check_choice(group, "mars_type", get_args(MarsType))
    _check_choice(group, "clip", (*get_args(Clip), None))
    _check_choice(group, "second_moment", get_args(SecondMoment))
    _check_choice(group, "nonfinite", get_args(Nonfinite))
    _check_choice(group, "role", (*get_args(Role), None))
    for name in ("lr", "lr_1d", "base_lr", "eps", "weight_decay", "weight_decay_1d"):
        _check_not_negative(name, group[name])
    for name in ("betas", "betas_1d"):
        _check_betas(name, group[name])
    if not callable(group["gamma"]):
        check_gamma(group["gamma"])
    _check_not_negative("max_norm", group["max_norm"], way_out="; clip=None turns the clip off")
    if group["max_norm"] == 0:
        raise ValueError("max_norm must be positive, got 0; clip=None turns the clip off")
    for name, dtypes in _DTYPES.items():
        if group[name] not in (None, *dtypes):
            allowed = ", ".join(str(dtype) for dtype in dtypes)
            raise ValueError(f"{name} must be None or one of {allowed}, got {group[name]!r}")
    _check_process_group(group)
    for name in _FLAGS:
        if not isinstance(group[name], bool):
            raise TypeError(f"{name} must be True or False, got {group[name]!r}")
    for name in ("foreach", "fused"):
        if not isinstance(group[name], bool | None):
            raise TypeError(f"{name} must be True, False or None, got {group[name]!r}")
    _check_combinations(group)


def _check_process_group(group: Mapping[str, Any]) -> None:
    given = group["process_group"]
    if given is None:
        return
    if not isinstance(given, torch.distributed.ProcessGroup):
        raise TypeError(
            f"process_group must be a torch.distributed.ProcessGroup or None, got {given!r}; a "
            "rank outside of a group has no parameters of it"
        )
    for name in ("capturable", "differentiable"):
        if group[name]:
            raise ValueError(f"{name}=True excludes process_group: ranks exchange matrices")


def check_gamma(gamma: float) -> float:
    """Return ``gamma`` as a float if it lies in [0, 1]; refuse it otherwise."""
    if not _is_number(gamma):
        raise TypeError(
            f"gamma must be a number or a callable step -> number, got {gamma!r} "
            f"of type {type(gamma).__name__}"
        )
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must lie in [0, 1], got {gamma}; 0 turns the correction off")
    return float(gamma)


def check_unknown_keys(given: Mapping[str, Any], *, known: tuple[str, ...]) -> None:
    """Refuse a key that is nearly an option; other foreign keys are the caller's business."""
    for key in given:
        close = [] if key in known else get_close_matches(key, known, n=1, cutoff=0.8)
        if close:
            raise ValueError(f"unknown parameter group entry {key!r}; did you mean {close[0]!r}?")


def _check_choice(group: Mapping[str, Any], name: str, choices: tuple[object, ...]) -> None:
    value = group[name]
    if value not in choices:
        raise ValueError(f"unknown {name} {value!r}{nearest(value, choices)}")


def _check_not_negative(name: str, value: float | Tensor, *, way_out: str = "") -> None:
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"{name} as a tensor must have one element, got {value.numel()}")
        if value.device.type != "cpu":
            return  # its value would cost a device synchronisation
        value = float(value.detach())
    elif not _is_number(value):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be finite and not negative, got {value}{way_out}")


def _check_betas(name: str, betas: object) -> None:
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise TypeError(f"{name} must be a pair of numbers, got {betas!r}")
    for beta in betas:
        if not _is_number(beta):
            raise TypeError(f"{name} must be a pair of numbers, got {betas!r}")
        if not 0 <= beta < 1:
            raise ValueError(f"{name} must lie in [0, 1), got {betas!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_combinations(group: Mapping[str, Any]) -> None:
    if group["foreach"] and group["fused"]:
        raise ValueError("foreach=True and fused=True exclude each other; set at most one")
    if group["fused"] and group["differentiable"]:
        raise ValueError("fused=True excludes differentiable=True: kernels have no derivative")
    if group["capturable"] and callable(group["gamma"]):
        raise ValueError(
            "capturable=True cannot call gamma from a captured graph; give gamma as a number"
        )
    if group["differentiable"] and not group["is_approx"]:
        raise ValueError(
            "differentiable=True needs is_approx=True: autograd cannot follow a visit to the "
            "previous point"
        )
    if group["lean"]:
        _check_lean(group)


def _check_lean(group: Mapping[str, Any]) -> None:
    if not group["is_approx"]:
        raise ValueError(
            "lean=True needs is_approx=True: exact mode evaluates the previous gradient"
        )
    if group["clip"] is not None:
        raise ValueError(
            f"lean=True needs clip=None, got clip={group['clip']!r}: the clip needs the corrected "
            "gradient, which the lean form never builds"
        )
    # Lion has no second moment, and the matrix rules have none unless vectors follow MARS-AdamW.
    uses_second_moment = group["mars_type"] == "mars-adamw" or (
        group["optimize_1d"] and group["mars_type"] != "mars-lion"
    )
    if uses_second_moment and group["second_moment"] != "gradient":
        raise ValueError(
            f"lean=True needs second_moment='gradient', got {group['second_moment']!r}: the "
            "corrected gradient is never built"
        )
    if group["last_grad_dtype"] is not None:
        raise ValueError("lean=True keeps no previous gradient; leave last_grad_dtype=None")

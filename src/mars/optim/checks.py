"""What the optimizer refuses: parameters, gradients and checkpoints it could not treat faithfully.

Each check raises before anything has changed, and says what to do instead.
"""

import warnings
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parameter import is_lazy

from mars.optim.nonfinite import parameter_name
from mars.optim.options import SCHEDULED_GAMMA, Group, check_group
from mars.optim.routing import MATRIX_RULES, route
from mars.optim.sharding import check_layout, layout_of
from mars.optim.state import check_state_fits, state_dtypes

_DTYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)


def check_parameter(param: object, options: Group, *, name: str | None = None) -> None:
    """Refuse a parameter that ``options`` cannot be applied to as they say."""
    if not isinstance(param, Tensor):
        return  # the base class has the message for that
    if is_lazy(param):
        return  # its shape and dtype are not known yet
    which = f"{f'parameter {name!r}' if name else 'a parameter'} of shape {tuple(param.shape)}"
    if param.is_conj():
        raise ValueError(
            f"{which} is a lazy conjugate, which cannot be written as real "
            "numbers; use resolve_conj()"
        )
    if param.dtype not in _DTYPES:
        raise ValueError(
            f"cannot optimize {which} and dtype {param.dtype}; "
            f"supported are {', '.join(str(dtype) for dtype in _DTYPES)}"
        )
    if getattr(param, "_is_flat_param", False) or getattr(param, "_fsdp_flattened", False):
        raise ValueError(
            f"{which} was flattened by FullyShardedDataParallel (FSDP1), so "
            "its matrices cannot be told apart; use FSDP2 (torch.distributed.fsdp.fully_shard)"
        )
    if hasattr(param, "ds_id"):
        raise ValueError(
            f"{which} is partitioned by DeepSpeed ZeRO-3, so its matrix "
            "is not here; use FSDP2 (torch.distributed.fsdp.fully_shard)"
        )
    check_layout(param, options, name=which)
    if options["capturable"] and layout_of(param) and route(param, options).rule in MATRIX_RULES:
        raise ValueError(
            f"capturable=True cannot hold the exchange between ranks that {which} needs; leave it "
            "False in its group"
        )
    if options["role"] == "matrix" and param.ndim < 2:
        raise ValueError(
            f"role='matrix' needs two dimensions or more, got {which}; give it role='vector'"
        )
    if param.is_complex() and options["last_grad_dtype"] is not None:
        raise ValueError(
            f"last_grad_dtype={options['last_grad_dtype']} cannot hold the gradient of {which}, "
            "which is complex; leave last_grad_dtype=None in its group"
        )


def has_matrices(group: Group) -> bool:
    """Whether any parameter of a group has two dimensions or more."""
    return any(not is_lazy(param) and param.ndim >= 2 for param in group["params"])


def warn_if_undivided(groups: list[Group]) -> None:
    """Warn if every one of several ranks may be orthogonalising the same matrices."""
    if dist.get_world_size() == 1:
        return
    for group in groups:
        for param in group["params"]:
            plain = group["process_group"] is None and layout_of(param) is None
            if plain and param.grad is not None and route(param, group).rule in MATRIX_RULES:
                warnings.warn(
                    "there are several processes, and each orthogonalises every matrix; under "
                    "DistributedDataParallel give mars.param_groups the wrapped model, or the "
                    "group an entry process_group, and they divide the work",
                    stacklevel=4,
                )
                return


def check_step(groups: list[Group], *, had_matrices: list[bool]) -> None:
    """Refuse options, parameters or gradients that a step could not honour.

    ``had_matrices`` says of each group whether it had any when it was added.
    """
    for index, group in enumerate(groups):
        check_group(group)
        if had_matrices[index] and not has_matrices(group):
            raise RuntimeError(
                f"the matrices of parameter group {index} were replaced by flat tensors, as "
                "DeepSpeed ZeRO and FSDP1 do, so every one would silently become AdamW; use FSDP2 "
                "(torch.distributed.fsdp.fully_shard)"
            )
        for position, param in enumerate(group["params"]):
            if param.grad is not None and param.grad.layout != torch.strided:
                raise RuntimeError(
                    f"the gradient of {parameter_name(groups, index, position)} is sparse; use "
                    "dense gradients (nn.Embedding(sparse=False)) or torch.optim.SparseAdam for it"
                )
    check_shared(groups)


def check_shared(groups: list[Group]) -> None:
    """Refuse differences between groups in what concerns all of them."""
    if len({group["is_approx"] for group in groups}) > 1:
        raise ValueError("is_approx must be the same in every group: a point is one of all")
    coupled = {group["nonfinite"] for group in groups if group["clip"] == "global"}
    if len(coupled) > 1:
        raise ValueError(
            f"groups with clip='global' share one norm, so nonfinite must be the same in all of "
            f"them, got {', '.join(sorted(coupled))}"
        )


def check_loaded(
    loaded: Mapping[str, Any], groups: list[Group], defaults: Mapping[str, Any]
) -> None:
    """Refuse a state_dict whose options are illegal or whose state does not fit the parameters."""
    saved_groups = loaded["param_groups"]
    if [len(g["params"]) for g in saved_groups] != [len(g["params"]) for g in groups]:
        return  # the base class has the message for that
    ids = chain.from_iterable(group["params"] for group in saved_groups)
    for index, (group, saved) in enumerate(zip(groups, saved_groups, strict=True)):
        options = {**defaults, "base_lr": group["base_lr"], **saved}
        if callable(group["gamma"]) and options["gamma"] != SCHEDULED_GAMMA:
            raise ValueError(
                f"the state_dict was saved with gamma={options['gamma']}, but group {index} has a "
                "callable gamma; load it with a number, then assign the callable to group['gamma']"
            )
        if options["gamma"] == SCHEDULED_GAMMA:
            if not callable(group["gamma"]):
                raise ValueError(
                    f"the state_dict was saved with a callable gamma, but group {index} has "
                    f"gamma={group['gamma']}; construct the optimizer with that callable first"
                )
            options["gamma"] = group["gamma"]
        check_group(options)
        for position, param in enumerate(group["params"]):
            state = loaded["state"].get(next(ids))
            if state:
                name = parameter_name(groups, index, position)
                _check_loaded_state(state, param, options, name=name)


def _check_loaded_state(
    state: Mapping[str, Any], param: Tensor, options: Group, *, name: str
) -> None:
    check_state_fits(state, param, options, name=name)
    for key in state_dtypes(param, options):
        if key in state and state[key].shape != param.shape:
            raise ValueError(
                f"the state_dict's {key} for {name} has shape {tuple(state[key].shape)}"
            )

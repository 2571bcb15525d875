"""The tensors of nested states by name, and taking the sharded ones out and putting them back.

A leaf's name is the path to it, ``training/stepper/optimizer/state/3/exp_avg``. Where a sharded
tensor was, a state on disk has a placeholder with the name it is stored under; tensors that share
their memory are stored once, under the name of the first.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mars.checkpoint.errors import CheckpointError
from mars.checkpoint.ranks import world_size
from mars.config.errors import RefusedError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Place = Callable[[str, torch.Size, torch.dtype], Tensor]
"""From the name of a leaf, its full shape and dtype to an empty tensor or DTensor to fill."""

# A nested state, whose values may be anything that a checkpoint holds.
States = dict[str, Any]

_PLACEHOLDER = "mars.sharded"


def separated(states: Mapping[str, Any]) -> tuple[States, dict[str, "DTensor"]]:
    """Return the states with placeholders for DTensors, and the DTensors by name.

    On a single rank a DTensor is whole: its tensor takes its place.
    """
    shards: dict[str, DTensor] = {}
    # Without the module there are none, and importing it would take longer than saving.
    if "torch.distributed.tensor" not in sys.modules:
        return dict(states), shards
    names: dict[tuple[object, ...], str] = {}

    def separate(path: tuple[str, ...], value: Any) -> Any:
        if _is_placeholder(value):
            raise CheckpointError(f"{'/'.join(path)} has the key {_PLACEHOLDER!r}: rename it")
        if not is_sharded(value):
            return value
        if world_size() == 1:
            return value.to_local()
        name = names.setdefault(_memory(value), _checked_name(path, value))
        shards.setdefault(name, value)
        return {_PLACEHOLDER: name}

    return _mapped(dict(states), separate), shards


def joined(
    states: States, *, stored: Callable[[str], Tensor] | None, place: Place | None
) -> States:
    """Return the states with stored tensors for placeholders and all others in their places.

    Args:
        states: as they were read, from a checkpoint with placeholders if ``stored`` is given.
        stored: returns the sharded tensor that has a name.
        place: gives what each whole tensor is copied to; None leaves it as it is.
    """
    if stored is None and place is None:
        return states

    def join(path: tuple[str, ...], value: Any) -> Any:
        if stored is not None and _is_placeholder(value):
            return stored(value[_PLACEHOLDER])
        if place is not None and isinstance(value, Tensor):
            name = "/".join(path)
            return _fill_(placed(name, value.shape, value.dtype, place=place), value)
        return value

    return _mapped(states, join)


def placed(name: str, shape: torch.Size, dtype: torch.dtype, *, place: Place) -> Tensor:
    """Return the tensor that a leaf is read into; refuse one of another shape."""
    target = place(name, shape, dtype)
    if target.shape != shape:
        raise RefusedError(
            f"{name} has the shape {tuple(shape)} in the checkpoint and {tuple(target.shape)} in "
            "this run; load it into the model and optimizer it was saved from"
        )
    return target


def is_sharded(value: object) -> bool:
    """Whether a value is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def _mapped(states: States, change: Callable[[tuple[str, ...], Any], Any]) -> States:
    """Return a copy of nested states whose leaves are changed, each called with the path to it."""

    def walk(path: tuple[str, ...], value: Any) -> Any:
        kind = type(value)
        if kind in (dict, OrderedDict) and not _is_placeholder(value):
            copied = copy(value)  # with the versions of modules that a state_dict carries
            for key, item in value.items():
                copied[key] = walk((*path, str(key)), item)
            return copied
        if kind in (list, tuple):
            return kind(walk((*path, str(index)), item) for index, item in enumerate(value))
        return change(path, value)

    mapped: States = walk((), states)
    return mapped


def _is_placeholder(value: object) -> bool:
    return isinstance(value, dict) and _PLACEHOLDER in value


def _checked_name(path: tuple[str, ...], value: "DTensor") -> str:
    name = "/".join(path)
    if any("/" in key for key in path):
        raise CheckpointError(f"{name} has a key with a '/' in its path: rename it")
    if any(placement.is_partial() for placement in value.placements) or value.is_meta:
        raise CheckpointError(
            f"{name} is a DTensor ({value.placements}, {value.device}); a checkpoint holds "
            "sharded and replicated values: redistribute it first"
        )
    if value.dtype.is_complex and value.dtype != torch.complex64:
        raise CheckpointError(
            f"{name} is a DTensor of {value.dtype}, which safetensors has not: view it as real"
        )
    return name


def _memory(value: "DTensor") -> tuple[object, ...]:
    """Return what is equal for DTensors that are the same values in the same memory.

    An empty shard has no address, but its storage, like any other, has an identity.
    """
    local = value.to_local()
    storage = local.untyped_storage()._cdata
    return storage, local.storage_offset(), local.shape, local.stride(), local.dtype, value.shape


def _fill_(target: Tensor, whole: Tensor) -> Tensor:
    """Copy a whole tensor, or of a DTensor's this rank's part, and return the target."""
    with torch.no_grad():
        if not is_sharded(target):
            return target.copy_(whole)
        for chunk in target.__create_chunk_list__():  # type: ignore[attr-defined]  # of a DTensor
            part = tuple(
                slice(start, start + size)
                for start, size in zip(chunk.offsets, chunk.sizes, strict=True)
            )
            target.to_local().copy_(whole[part])  # type: ignore[attr-defined]
    return target

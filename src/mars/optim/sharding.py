"""What a step knows of other processes: which part of a tensor is here, and what ranks must share.

A parameter may be a DTensor (FSDP2, HSDP, tensor parallelism): its state has the same placements,
and the engines work on local tensors. This is the only module that knows meshes; who computes what
of a matrix rule, and how the parts travel, is for `exchange`.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import Placement


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor lies on a mesh of ranks."""

    mesh: "DeviceMesh"
    placements: "tuple[Placement, ...]"

    def sharded_dims(self) -> set[int]:
        """Return the mesh dimensions along which ranks hold different parts."""
        return {i for i, placement in enumerate(self.placements) if not placement.is_replicate()}


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Which entries of a tensor a rank holds: an index into the whole tensor, and its shape."""

    index: tuple[slice, ...]
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """How many entries that is."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Axis:
    """A line of ranks that hold the same: their group, and the rank in it at each place."""

    group: dist.ProcessGroup
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Holding:
    """What each rank of a group holds of a tensor.

    Ranks with the same entry in ``replicas``, a place on each of ``axes``, hold the whole tensor
    between them, once. The axes have the ranks that hold the same part as this one.
    """

    group: dist.ProcessGroup
    shape: torch.Size
    parts: tuple[Part, ...]
    replicas: tuple[tuple[int, ...], ...]
    axes: tuple[Axis, ...]

    @property
    def is_replicated(self) -> bool:
        """Whether every rank holds all of it."""
        return len(set(self.replicas)) == len(self.parts)


def layout_of(param: Tensor) -> Layout | None:
    """Return how a parameter lies on a mesh; None for a plain tensor."""
    dtensor = _as_dtensor(param)
    return None if dtensor is None else Layout(dtensor.device_mesh, tuple(dtensor.placements))


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that is here, sharing its memory."""
    dtensor = _as_dtensor(tensor)
    if dtensor is None:
        return tensor
    with torch.no_grad():
        part = dtensor.to_local()
    # A collective that is still under way has its result behind ``wait``.
    wait = getattr(part, "wait", None)
    return part if wait is None else wait()


def local_gradient(param: Tensor) -> Tensor:
    """Return the part of a parameter's gradient that belongs to the part of it that is here."""
    return local(placed_gradient(param))


def local_gradients(params: Iterable[Tensor]) -> dict[Tensor, Tensor]:
    """Return `local_gradient` of each parameter that has one; ranks may exchange parts for it."""
    return {param: local_gradient(param) for param in params if param.grad is not None}


def placed_gradient(param: Tensor) -> Tensor:
    """Return a parameter's gradient, laid out as the parameter is.

    It may come with other placements, such as a sum over ranks that is still to be made.
    """
    assert param.grad is not None
    gradient, layout = _as_dtensor(param.grad), layout_of(param)
    if gradient is None or layout is None or layout_of(gradient) == layout:
        return param.grad
    with torch.no_grad():
        return gradient.redistribute(layout.mesh, layout.placements)


@torch.no_grad()
def local_part(value: Tensor, *, like: Tensor) -> Tensor:
    """Return what of a tensor, whole or laid out in any way, lies here if it lies as ``like`` does.

    Ranks that hold parts of ``value`` call it together, unless it lies so already.
    """
    layout, dtensor = layout_of(like), _as_dtensor(value)
    if dtensor is not None:
        if layout_of(dtensor) == layout:
            return local(dtensor)
        value = dtensor.full_tensor()
    if layout is None:
        return value
    parts = _parts(tuple(value.shape), tuple(layout.mesh.shape), layout.placements)
    return value[parts[_coordinate(layout.mesh)].index]


def check_layout(param: Tensor, options: Mapping[str, Any], *, name: str) -> None:
    """Refuse a placement or an option that a sharded parameter cannot honour."""
    layout = layout_of(param)
    if layout is None:
        return
    if any(placement.is_partial() for placement in layout.placements):
        raise ValueError(
            f"{name} has placements {layout.placements}: its value is a sum "
            "that no rank has; redistribute it to Shard or Replicate"
        )
    if layout.mesh.get_coordinate() is None:
        raise ValueError(
            f"{name} lies on a mesh without this rank; give each rank's "
            "optimizer the parameters that it holds"
        )
    ranks = layout.mesh.mesh
    if any((ranks.diff(dim=dim) < 0).any() for dim in range(ranks.ndim)):
        # torch gives out parts in the order of a group's ranks, not of the mesh.
        raise ValueError(
            f"{name} lies on a mesh whose ranks do not ascend: {ranks.tolist()}; give DeviceMesh "
            "its ranks in ascending order along every dimension"
        )
    if options["differentiable"]:
        raise ValueError(
            f"differentiable=True cannot follow {name}, which is sharded: the step "
            "works on local tensors; use plain parameters"
        )


def is_divided(param: Tensor, process_group: dist.ProcessGroup | None) -> bool:
    """Whether several ranks hold a parameter, in parts or in copies."""
    layout = layout_of(param)
    if layout is not None:
        return layout.mesh.size() > 1
    return process_group is not None and dist.get_world_size(process_group) > 1


def group_of(param: Tensor, process_group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """Return the ranks that hold a parameter, or None if it is this rank's alone.

    None too for ranks that have no process group in common.
    """
    if not is_divided(param, process_group):
        return None
    layout = layout_of(param)
    if layout is None:
        return process_group
    spans_world = layout.mesh.size() == dist.get_world_size()
    if layout.mesh.ndim > 1 and not spans_world and layout.mesh.mesh_dim_names is None:
        return None
    return _group_of(layout.mesh, name="")


def holding_of(param: Tensor, process_group: dist.ProcessGroup | None) -> Holding | None:
    """Return who holds what of a parameter, or None if it is this rank's alone.

    ``process_group`` has the ranks that hold equal copies of a plain parameter, as under DDP.
    """
    if not is_divided(param, process_group):
        return None
    layout = layout_of(param)
    if layout is not None:
        holding = _on_mesh(param, layout)
        own = holding.parts[dist.get_rank(holding.group)].shape
        if own != tuple(local(param).shape):
            raise RuntimeError(
                f"a parameter of shape {tuple(param.shape)}, placements {layout.placements}, has a "
                f"part of shape {tuple(local(param).shape)} here, where {own} was expected; shard "
                "it by fully_shard or parallelize_module"
            )
        return holding
    assert process_group is not None
    return _whole_everywhere(param, process_group)


def sum_over_shards(layouts: Sequence[Layout | None], values: Sequence[Tensor]) -> list[Tensor]:
    """Return each tensor of numbers summed over the parts that its layout says there are.

    Replicas count once. All tensors of one mesh travel in one collective; what has no layout is
    returned as it is.
    """
    summed = list(values)
    for mesh in {layout.mesh: None for layout in layouts if layout is not None}:
        own = [i for i, layout in enumerate(layouts) if layout is not None and layout.mesh == mesh]
        dims = sorted(set().union(*(_layout(layouts[i]).sharded_dims() for i in own)))
        if not dims:
            continue
        # One collective over the world does for a mesh that spans it, if replicas stay silent.
        spans_world = len(dims) > 1 and mesh.size() == dist.get_world_size()
        reduced = range(mesh.ndim) if spans_world else dims
        coordinate = _coordinate(mesh)
        counted = [
            values[i]
            * all(coordinate[d] == 0 for d in set(reduced) - _layout(layouts[i]).sharded_dims())
            for i in own
        ]
        vector = torch.cat([each.reshape(-1).double() for each in counted])
        for group in [None] if spans_world else [mesh.get_group(d) for d in dims]:
            dist.all_reduce(vector, group=group)
        for i, total in zip(
            own, torch.split(vector, [values[i].numel() for i in own]), strict=True
        ):
            summed[i] = total.view(values[i].shape).to(values[i].dtype)
    return summed


def is_so_everywhere(params: Sequence[Tensor], is_so: bool) -> bool:
    """Return whether every rank that shares one of the parameters says so."""
    meshes = everywhere([layout_of(param) for param in params])
    if not meshes:
        return is_so
    against = torch.tensor(0.0 if is_so else 1.0, device=params[0].device)
    return not any(bool(total) for total in sum_over_shards(meshes, [against] * len(meshes)))


def everywhere(layouts: Sequence[Layout | None]) -> list[Layout]:
    """Return, for each mesh on which tensors are sharded, a layout in which every rank counts."""
    meshes = {
        layout.mesh: None for layout in layouts if layout is not None and layout.sharded_dims()
    }
    if not meshes:
        return []
    from torch.distributed.tensor import Shard

    return [Layout(mesh, (Shard(0),) * mesh.ndim) for mesh in meshes]


def _layout(layout: Layout | None) -> Layout:
    assert layout is not None
    return layout


def _as_dtensor(tensor: Tensor) -> "DTensor | None":
    # Nobody has one where the module that makes them was never imported, and importing it is slow.
    module = sys.modules.get("torch.distributed.tensor")
    return tensor if module is not None and isinstance(tensor, module.DTensor) else None


def _coordinate(mesh: "DeviceMesh") -> tuple[int, ...]:
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    return tuple(coordinate)


def _on_mesh(param: Tensor, layout: Layout) -> Holding:
    mesh = layout.mesh
    group = _group_of(mesh, name=f"a parameter of shape {tuple(param.shape)}")
    if not layout.sharded_dims():
        return _whole_everywhere(param, group)
    parts = _parts(tuple(param.shape), tuple(mesh.shape), layout.placements)
    kept = [d for d in range(mesh.ndim) if d not in layout.sharded_dims()]
    by_rank: dict[int, tuple[Part, tuple[int, ...]]] = {}
    for coordinate, rank in zip(parts, mesh.mesh.flatten().tolist(), strict=True):
        replica = tuple(coordinate[d] for d in kept)
        by_rank[dist.get_group_rank(group, rank)] = parts[coordinate], replica
    ordered = [by_rank[rank] for rank in range(mesh.size())]
    return Holding(
        group,
        param.shape,
        parts=tuple(part for part, _ in ordered),
        replicas=tuple(replica for _, replica in ordered),
        axes=tuple(_axis(mesh, dim) for dim in kept),
    )


def _whole_everywhere(param: Tensor, group: dist.ProcessGroup) -> Holding:
    """Return the holding of a parameter that every rank of a group has all of."""
    ranks = tuple(range(dist.get_world_size(group)))
    whole = Part((slice(None),) * param.ndim, tuple(param.shape))
    places = tuple((rank,) for rank in ranks)
    return Holding(group, param.shape, (whole,) * len(ranks), places, (Axis(group, ranks),))


def _axis(mesh: "DeviceMesh", dim: int) -> Axis:
    """Return the ranks of a mesh that differ from this one in one dimension only."""
    group = mesh.get_group(dim)
    here = _coordinate(mesh)
    line = mesh.mesh[tuple(slice(None) if d == dim else here[d] for d in range(mesh.ndim))]
    return Axis(group, tuple(dist.get_group_rank(group, rank) for rank in line.tolist()))


def _group_of(mesh: "DeviceMesh", *, name: str) -> dist.ProcessGroup:
    """Return a process group of all ranks of a mesh."""
    if mesh.ndim == 1:
        return mesh.get_group()
    if mesh.size() == dist.get_world_size():
        world = dist.group.WORLD
        assert world is not None
        return world
    if mesh.mesh_dim_names is None:
        raise ValueError(
            f"{name} lies on a mesh of shape {tuple(mesh.shape)} that is a part of the world and "
            "has no dimension names, so its ranks have no common process group; give "
            "init_device_mesh its mesh_dim_names"
        )
    return mesh._flatten().get_group()


@lru_cache(maxsize=4096)
def _parts(
    shape: tuple[int, ...], mesh_shape: tuple[int, ...], placements: "tuple[Placement, ...]"
) -> dict[tuple[int, ...], Part]:
    """Return the part of a tensor at each coordinate of a mesh, in the order of its ranks."""
    return {
        coordinate: _part(shape, mesh_shape, coordinate, placements)
        for coordinate in product(*(range(size) for size in mesh_shape))
    }


def _part(
    shape: tuple[int, ...],
    mesh_shape: tuple[int, ...],
    coordinate: tuple[int, ...],
    placements: "tuple[Placement, ...]",
) -> Part:
    runs = [slice(0, size) for size in shape]
    # A strided shard is cut from what is left after the others: FSDP2 shards what tensor
    # parallelism has divided, although its mesh dimension comes first.
    order = sorted(range(len(placements)), key=lambda i: not placements[i].is_shard())
    for mesh_dim in order:
        if placements[mesh_dim].is_replicate():
            continue
        dim: int = placements[mesh_dim].dim  # type: ignore[attr-defined]  # a Shard of either kind
        runs[dim] = _chunk(runs[dim], mesh_shape[mesh_dim], coordinate[mesh_dim])
    return Part(tuple(runs), tuple(run.stop - run.start for run in runs))


def _chunk(run: slice, chunks: int, number: int) -> slice:
    """Return one of the pieces that ``torch.chunk`` cuts a run into; the last may be empty."""
    length = run.stop - run.start
    size = -(-length // chunks)
    first = min(run.start + number * size, run.stop)
    return slice(first, min(first + size, run.stop))

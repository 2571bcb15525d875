"""Ranks that save and load sharded states, fail, and are killed; each leaves its report behind.

A program of its own, so that it can fork: what takes longest is importing torch, here once.
"""

import errno
import os
import signal
import sys
import time
import traceback
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    zeros,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from mars.checkpoint import Loaded, find, load, load_newest, save, writing
from mars.checkpoint.hashed import HashedFile

# Dim 0 below the world size, empty, without dimensions, and what is not float32.
LEAVES = {
    "matrix": ((7, 5), torch.float32),
    "narrow": ((3, 4), torch.float32),
    "row": ((1, 6), torch.float64),
    "vector": ((10,), torch.float32),
    "cube": ((4, 6, 2), torch.float16),
    "low": ((9, 3), torch.bfloat16),
    "count": ((6,), torch.int64),
    "mask": ((5, 2), torch.bool),
    "complex": ((4, 2), torch.complex64),
    "bytes": ((3,), torch.uint8),
    "scalar": ((), torch.float32),
    "empty": ((0, 3), torch.float32),
}
LAYOUTS = ["rows", "columns", "hsdp", "grid", "replicated"]


def whole(name: str, *, offset: int = 0) -> Tensor:
    """Return all of a leaf; no two elements are equal where the dtype can tell them apart."""
    shape, dtype = LEAVES[name]
    count = torch.Size(shape).numel()
    return (torch.arange(count) + 1 + offset).remainder(251).reshape(shape).to(dtype)


def whole_states() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the model and training states as one process would hold them."""
    model = OrderedDict((name, whole(name)) for name in LEAVES)
    model["plain"] = torch.arange(4.0)
    training = {
        "step": 3,
        "stepper": {"state": {0: {"exp_avg": whole("matrix", offset=100), "step": torch.ones(())}}},
        "history": [whole("narrow", offset=50), (whole("vector", offset=20), "text")],
        "dtype": torch.bfloat16,
    }
    return model, training


def placing(layout: str) -> tuple[DeviceMesh, Callable[[int], list[Any]]]:
    """Return a mesh, and the placements on it of a tensor by its number of dimensions."""
    world = dist.get_world_size()
    line = init_device_mesh("cpu", (world,))
    square = init_device_mesh("cpu", (2, world // 2)) if world > 1 else None
    mesh = square if square and layout in ("hsdp", "grid") else line

    def placements(dims: int) -> list[Any]:
        if dims == 0 or layout == "replicated":
            return [Replicate()] * mesh.ndim
        second = Shard(1) if dims > 1 else Replicate()
        if mesh is square:
            return [Replicate(), Shard(0)] if layout == "hsdp" else [Shard(0), second]
        return [Shard(1) if layout == "columns" and dims > 1 else Shard(0)]

    return mesh, placements


def place(layout: str) -> Callable[[str, torch.Size, torch.dtype], Tensor]:
    """Return a place for every leaf: DTensors in a layout, but plain where a run holds it whole."""
    mesh, placements = placing(layout)

    def give(name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        if name in ("model/plain", "training/stepper/state/0/step"):
            return torch.zeros(shape, dtype=dtype)
        spread = placements(len(shape))
        return zeros(*shape, dtype=dtype, device_mesh=mesh, placements=spread)

    return give


def spread(value: Any, give: Callable[..., Tensor], *, name: str = "") -> Any:
    """Return a nested state with its tensors distributed as their places say."""
    if isinstance(value, Tensor):
        target = give(name, value.shape, value.dtype)
        if not isinstance(target, DTensor):
            return value.clone()
        mesh, placements = target.device_mesh, target.placements
        # Every rank has the whole: nothing is sent.
        return distribute_tensor(value, mesh, placements, src_data_rank=None)
    inner = f"{name}/" if name else ""
    if isinstance(value, dict):
        return type(value)((k, spread(v, give, name=f"{inner}{k}")) for k, v in value.items())
    if isinstance(value, list | tuple):
        return type(value)(spread(v, give, name=f"{inner}{i}") for i, v in enumerate(value))
    return value


def differences(left: Any, right: Any, *, name: str = "") -> list[str]:
    """Return the names of leaves that differ in type, placement, dtype, shape or any bit."""
    if type(left) is not type(right):
        return [f"{name}: {type(left)} and {type(right)}"]
    if isinstance(left, DTensor):
        if (left.placements, left.shape) != (right.placements, right.shape):
            return [f"{name}: {left.placements} and {right.placements}"]
        return differences(left.to_local(), right.to_local(), name=name)
    if isinstance(left, Tensor):
        same = (left.dtype, left.shape) == (right.dtype, right.shape) and torch.equal(left, right)
        return [] if same else [name]
    if isinstance(left, dict):
        if list(left) != list(right):
            return [f"{name}: {list(left)} and {list(right)}"]
        return [d for k in left for d in differences(left[k], right[k], name=f"{name}/{k}")]
    if isinstance(left, list | tuple):
        pairs = enumerate(zip(left, right, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, name=f"{name}/{i}")]
    return [] if left == right else [name]


def write(folder: Path, layout: str, *, step: int = 1, keep: int = 9) -> Path:
    """Save the states in a layout; each rank's own part names the rank."""
    give = place(layout)
    model, training = whole_states()
    rank = dist.get_rank()
    return save(
        folder,
        step=step,
        model=spread(model, give, name="model"),
        training=spread(training, give, name="training"),
        keep=keep,
        about={"layout": layout},
        own={"rank": rank, "random": torch.full((3,), rank)},
    )


def wrong(loaded: Loaded, give: Callable[..., Tensor] | None) -> list[str]:
    """Return what of loaded states is not as in the whole ones, or as their parts in places."""
    expected = dict(zip(("model", "training"), whole_states(), strict=True))
    found = {"model": loaded.model, "training": loaded.training}
    return differences(found, expected if give is None else spread(expected, give))


@contextmanager
def elements_read() -> Iterator[list[int]]:
    """Give a list to which each read adds its number of elements."""
    counts: list[int] = []
    real = HuggingFaceStorageReader._process_read_request

    def counted(self: Any, file: Any, request: Any, planner: Any) -> None:
        counts.append(torch.Size(request.lengths).numel())
        real(self, file, request, planner)

    with mock.patch.object(HuggingFaceStorageReader, "_process_read_request", counted):
        yield counts


def local_elements(value: Any) -> int:
    """Return how many elements the DTensors of a nested state have on this rank."""
    if isinstance(value, DTensor):
        return value.to_local().numel()
    if isinstance(value, dict):
        return sum(map(local_elements, value.values()))
    return sum(map(local_elements, value)) if isinstance(value, list | tuple) else 0


def read_all(path: Path) -> dict[str, Any]:
    """Return what is wrong with a checkpoint read in every layout, and what was read for it."""
    report: dict[str, Any] = {}
    for layout in LAYOUTS:
        give = place(layout)
        with elements_read() as counts:
            loaded = load(path, place=give)
        held = local_elements(loaded.model) + local_elements(loaded.training)
        report[layout] = {
            "wrong": wrong(loaded, give),
            "own": loaded.own,
            "read": sum(counts),
            "held": held,
        }
    loaded = load(path)
    report["whole"] = {"wrong": wrong(loaded, None), "own": loaded.own}
    return report


def reshard(place_: Path) -> dict[str, Any]:
    """Save on four, two and one rank, and read each on the others."""
    folder = place_
    report: dict[str, Any] = {}
    for layout in LAYOUTS:
        write(folder / f"4-{layout}", layout)
    report["tied"] = tied(folder / "tied")
    report["bare"] = bare(folder / "bare")
    report["tensor parallel"] = [two_ways(folder / f"two-ways-{i}", rows=i) for i in (8, 6)]
    report["plain on 4"] = read_all(folder / "plain" / "step-00000001")
    for world in (2, 1):
        with world_of(world, place_) as is_in:
            if is_in:
                report |= read_back(folder, world)
    report["2 on 4"] = read_all(folder / "2-rows" / "step-00000001")
    report["columns of 2 on 4"] = read_all(folder / "2-columns" / "step-00000001")
    return report


def read_back(folder: Path, world: int) -> dict[str, Any]:
    """Read what four ranks saved, and save with fewer."""
    report = {
        f"4-{layout} on {world}": read_all(folder / f"4-{layout}" / "step-00000001")
        for layout in LAYOUTS
    }
    report[f"plain on {world}"] = read_all(folder / "plain" / "step-00000001")
    for layout in ("rows", "columns"):
        path = write(folder / f"{world}-{layout}", layout)
    report[f"{world} on {world}"] = read_all(path)
    return report


@contextmanager
def world_of(world: int, place_: Path) -> Iterator[bool]:
    """Give whether this rank is in a smaller process group that stands in for the whole one."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    dist.destroy_process_group()
    if rank < world:
        join(place_ / f"world-{world}", rank, world)
    yield rank < world
    if rank < world:
        dist.destroy_process_group()
    join(place_ / f"after-{world}", rank, ranks)


def join(file: Path, rank: int, ranks: int) -> None:
    """Meet the other ranks at a file; none waits for ever."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{file}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=90),
    )


class Tied(nn.Module):
    """Two names for one weight, the second of three rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 8)
        self.head = nn.Linear(8, 3, bias=False)
        self.head.weight = self.embedding.weight
        self.norm = nn.LayerNorm(8)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits."""
        return self.head(self.norm(self.embedding(tokens)))


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a sharded model with tied weights and its optimizer, after a step."""
    torch.manual_seed(0)
    model = Tied()
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.tensor([0, 1, 2])).square().sum().backward()
    optimizer.step()
    return model, optimizer


def tied(folder: Path) -> dict[str, Any]:
    """Save and restore a model whose weights are tied, and say what came back."""
    model, optimizer = trained()
    state, training = model.state_dict(), {"optimizer": optimizer.state_dict()}
    path = save(folder, step=1, model=state, training=training, keep=1)

    def give(name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        if name.endswith("/step"):
            return torch.zeros(shape, dtype=dtype)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        return zeros(*shape, dtype=dtype, device_mesh=mesh, placements=[Shard(0)])

    loaded = load(path, place=give)
    return {
        "wrong": differences(loaded.model, state) + differences(loaded.training, training),
        "versions": loaded.model._metadata == state._metadata,
        "tied": loaded.model["head.weight"] is loaded.model["embedding.weight"],
        "own": loaded.own,
    }


def two_ways(folder: Path, *, rows: int) -> list[str]:
    """Save a model that is tensor-parallel and sharded, and return what came back wrong."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, rows), nn.Linear(rows, 8))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    fully_shard(parallelize_module(model, mesh["tensor"], plan), mesh=mesh["data"])
    state = model.state_dict()
    path = save(folder, step=1, model=state, training={}, keep=1)
    loaded = load(path, place=lambda name, *_: torch.zeros_like(state[name.split("/")[1]]))
    whole = {name: value.full_tensor() for name, value in state.items()}
    return differences(loaded.model, state) + differences(dict(load(path).model), whole)


def bare(folder: Path) -> dict[str, Any]:
    """Save what leaves ranks with nothing to write, and what no rank has in shards."""
    line = init_device_mesh("cpu", (dist.get_world_size(),))
    scalar = distribute_tensor(torch.tensor(2.5), line, [Replicate()])
    one = save(folder / "one", step=1, model={"scalar": scalar}, training={}, keep=1)
    none = save(
        folder / "none",
        step=1,
        model={"w": torch.ones(2)},
        training={},
        keep=1,
        own={"rank": dist.get_rank()} if dist.get_rank() != 1 else {},
    )
    return {
        "scalar": load(one).model["scalar"],
        "one": sorted(p.name for p in one.iterdir()),
        "none": sorted(p.name for p in none.iterdir()),
        "own": load(none).own,
    }


def outcome(work: Callable[[], object]) -> list[str]:
    """Return the class and message of what is raised."""
    try:
        work()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]


@contextmanager
def full_disk(*, rank: int, name: str) -> Iterator[None]:
    """Fail the writes of one rank to the files that have a name."""
    real = HashedFile.write

    def limited(self: HashedFile, data: Any) -> int:
        if dist.get_rank() == rank and Path(str(self.name)).name.startswith(name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, data)

    with mock.patch.object(HashedFile, "write", limited):
        yield


@contextmanager
def broken(name: str, *, rank: int) -> Iterator[None]:
    """Fail a function of the module that writes, on one rank."""
    real = getattr(writing, name)

    def fail(*args: Any, **kwargs: Any) -> Any:
        if dist.get_rank() == rank:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*args, **kwargs)

    with mock.patch.object(writing, name, fail):
        yield


def fail(place_: Path) -> dict[str, Any]:
    """Fail in every way on one rank of two; then damage files, and load."""
    folder = place_ / "failing"
    write(folder, "rows", step=1)
    report: dict[str, Any] = {}
    failures = {
        "shard": full_disk(rank=1, name="shard-"),
        "own": full_disk(rank=1, name="own-"),
        "model": full_disk(rank=0, name="model"),
        "space": broken("_check_space", rank=0),
        "seal": broken("manifest_bytes", rank=0),
        "memory": mock.patch.object(torch, "save", side_effect=MemoryError("no memory")),
    }
    for name, failure in failures.items():
        with failure:
            report[name] = outcome(lambda: write(folder, "rows", step=2))
        dist.barrier()
        report[name] += sorted(p.name for p in folder.iterdir())
        dist.barrier()
    # As if each had a disk of its own: the folder of rank 0 is not there for rank 1.
    apart = folder / f"apart-{dist.get_rank()}"
    apart.mkdir()
    report["apart"] = outcome(lambda: write(apart, "rows"))
    report["apart"] += [p.name for p in apart.iterdir()]
    report["refused"] = refusals(folder / "refused")
    dist.barrier()
    report["damage"] = damages(folder)
    return report


def refusals(folder: Path) -> dict[str, list[str]]:
    """Return what is said of what cannot be saved."""
    mesh = init_device_mesh("cpu", (2,))
    rank = dist.get_rank()
    shard = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    partial = DTensor.from_local(torch.ones(4), mesh, [Partial()])

    def attempt(model: dict[str, Any], **more: Any) -> list[str]:
        return outcome(
            lambda: save(folder, **{"step": 1, "training": {}, "keep": 1, **more}, model=model)
        )

    return {
        "slash": attempt({"a/b": shard}),
        "partial": attempt({"w": partial}),
        "complex": attempt({"w": shard.to(torch.complex128)}),
        "placeholder": attempt({"w": shard, "x": {"mars.sharded": 1}}),
        "names": attempt({f"w{rank}": shard}),
        "more": attempt({"w": shard} | ({"more": shard.clone()} if rank else {})),
        "keep": attempt({}, keep=rank),
        "step": attempt({}, step=rank + 5),
        "own": attempt({}, own={"x": {1, 2}} if rank else None),
        "folder": [str(folder.exists())],
    }


def damages(folder: Path) -> dict[str, Any]:
    """Damage each file of a checkpoint in turn, and return what the ranks then load."""
    report = {}
    for name in ("shard-00002-model-00001-of-00001.safetensors", "own-00001.pt", "model.pt"):
        path = write(folder, "rows", step=2)
        if dist.get_rank() == 0:
            raw = bytearray((path / name).read_bytes())
            raw[-1] ^= 1
            (path / name).write_bytes(raw if name != "model.pt" else raw[:-1])
        dist.barrier()
        give = place("columns")
        loaded = load_newest(folder, place=give)
        assert loaded is not None
        report[name] = [loaded.step, loaded.rejected, wrong(loaded, give), loaded.own]
        report[f"{name} itself"] = outcome(lambda: load(path))  # noqa: B023
        dist.barrier()
    for found in find(folder):
        if dist.get_rank() == 1:
            (found.path / "manifest.json").unlink()
    dist.barrier()
    report["none"] = outcome(lambda: load_newest(folder))
    report["misplaced"] = misplaced(folder / "misplaced")
    return report


def misplaced(folder: Path) -> list[str]:
    """Return what is said if one rank's place has another shape."""
    path = write(folder, "rows")
    give = place("rows")

    def other(name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        if dist.get_rank() == 1 and name == "model/matrix":
            return torch.zeros(2)
        return give(name, shape, dtype)

    return outcome(lambda: load_newest(path.parent, place=other))


def lose_first(place_: Path) -> dict[str, Any]:
    """Save again while rank 0 is killed."""
    return lose(place_, victim=0, name="training")


def lose_second(place_: Path) -> dict[str, Any]:
    """Save again while rank 1 is killed."""
    return lose(place_, victim=1, name="shard-")


def lose(place_: Path, *, victim: int, name: str) -> dict[str, Any]:
    """Save, then kill a rank that writes a file of the next save; return what the others see."""
    folder = place_ / "checkpoints"
    write(folder, "rows", step=1)
    real = HashedFile.write

    def killed(self: HashedFile, data: Any) -> int:
        if dist.get_rank() == victim and Path(str(self.name)).name.startswith(name):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, data)

    started = time.monotonic()
    with mock.patch.object(HashedFile, "write", killed):
        seen = outcome(lambda: write(folder, "rows", step=2))
    return {"seen": seen, "seconds": time.monotonic() - started}


def in_ranks(work: Callable[[Path], dict[str, Any]], folder: Path, *, ranks: int) -> None:
    """Do the work in forked ranks that leave ``report-0.pt`` and so on in a folder of its name."""
    place_ = folder / work.__name__
    place_.mkdir(exist_ok=True)
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            try:
                join(place_ / "rendezvous", rank, ranks)
                torch.save(work(place_), place_ / f"report-{rank}.pt")
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    for story, count in ((reshard, 4), (fail, 2), (lose_first, 3), (lose_second, 3)):
        in_ranks(story, Path(sys.argv[1]), ranks=count)

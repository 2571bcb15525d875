"""A model that several processes share: DDP, FSDP2, and FSDP2 inside groups of processes (HSDP).

How a model is divided is decided here and nowhere else. Its weights are those of one process for
the same seed, its names are those of the bare model, and its tied embedding stays one tensor.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mars import checkpoint
from mars.config.schema import Run
from mars.models.gpt2 import GPT2
from mars.training.launch import Mode
from mars.training.optimizers import AnyOptimizer, Together
from mars.training.problem import Make, Model
from mars.training.task import Forward
from mars.training.world import World

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}

Accumulate = Callable[[bool], AbstractContextManager[object]]
"""The context of a micro-batch's forward and backward pass, told whether it is a step's last."""


def at_once(_: bool) -> AbstractContextManager[object]:
    """Return the context of micro-batches that nothing is exchanged after."""
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Shared:
    """A model as this process has it.

    ``model`` has the bare model's names and is what is validated and saved; ``wrapped`` is what
    groups of parameters are made from, and ``forward`` what training calls.
    """

    mode: Mode
    model: Model
    wrapped: nn.Module
    forward: Forward
    accumulate: Accumulate = at_once

    @property
    def is_sharded(self) -> bool:
        """Whether each process has a part of every parameter."""
        return self.mode in ("fsdp2", "hsdp")


def share(config: Run, world: World, device: torch.device, *, make: Make) -> Shared:
    """Return a config's model with its initial weights, divided over the processes."""
    mode = world.launch.mode(config)
    if mode in ("fsdp2", "hsdp"):
        return _sharded(config, world, device, mode=mode)
    model = make(torch.Generator().manual_seed(config.seed)).to(device)
    if mode == "none":
        return Shared(mode, model, model, _compiled(model, config))
    ddp = nn.parallel.DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        # Gradients live in the buckets that are sent: one copy of them less.
        gradient_as_bucket_view=True,
    )

    def accumulate(is_last: bool) -> AbstractContextManager[object]:
        return nullcontext() if is_last else ddp.no_sync()

    return Shared(mode, model, ddp, _compiled(ddp, config), accumulate)


def _compiled(model: nn.Module, config: Run) -> Forward:
    compiled: Forward = torch.compile(model) if config.training.compile else model
    return compiled


def _sharded(config: Run, world: World, device: torch.device, *, mode: Mode) -> Shared:
    """Return a model of which each process holds a part of every parameter."""
    # Importing it takes as long as torch itself: only for those who shard.
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    # Without memory until it is divided: no process ever holds more than one whole matrix.
    with torch.device("meta"):
        model = GPT2(
            config.model, activation_checkpointing=config.training.activation_checkpointing
        )
    mesh = _mesh(config, world, device, mode=mode)
    dtype = _DTYPES.get(config.training.precision)
    policy = MixedPrecisionPolicy(
        param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    for block in model.h:
        # What autocast computes in half precision is sent in it. Norms and embeddings stay in
        # float32, and with them the residual stream, as autocast leaves them in one process.
        units = [block] if dtype is None else [block.get_submodule(n) for n in ("attn", "mlp")]
        if config.training.compile:
            for unit in units:
                unit.compile()
        fully_shard(units, mesh=mesh, mp_policy=policy)
    root: FSDPModule = fully_shard(model, mesh=mesh)
    model.to_empty(device=device)
    model.initialize_(torch.Generator().manual_seed(config.seed))
    # Without a backward pass a model keeps whole embeddings for the next call, which in exact mode
    # is one at the previous point.
    model.register_forward_hook(lambda *_: None if torch.is_grad_enabled() else root.reshard())

    def accumulate(is_last: bool) -> AbstractContextManager[object]:
        root.set_requires_gradient_sync(is_last)
        return nullcontext()

    return Shared(mode, model, model, model, accumulate)


def _mesh(config: Run, world: World, device: torch.device, *, mode: Mode) -> "DeviceMesh":
    from torch.distributed.device_mesh import init_device_mesh

    if mode == "fsdp2":
        return init_device_mesh(device.type, (world.size,), mesh_dim_names=("shard",))
    replicas = world.launch.replicas(config)
    shape = (replicas, world.size // replicas)
    return init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))


def place_like(model: nn.Module, optimizer: AnyOptimizer) -> checkpoint.Place:
    """Return what gives a checkpoint's leaf the division of the parameter it belongs to."""
    owners = {f"model/{name}": param for name, param in model.named_parameters()}
    if isinstance(optimizer, Together):
        for number, part in enumerate(optimizer.parts):
            owners |= _owners(f"optimizer/parts/{number}", part)
    else:
        owners |= _owners("optimizer", optimizer)

    def place(name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        is_state = name.startswith("training/")
        owner = owners.get(name.rpartition("/")[0] if is_state else name)
        if owner is None or owner.shape != shape:
            return torch.empty(shape, dtype=dtype)
        return torch.empty_like(owner, dtype=dtype, requires_grad=False)

    return place


def _owners(name: str, optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
    """Return the parameters by where their state is, which counts them as they stand in groups."""
    params = (param for group in optimizer.param_groups for param in group["params"])
    return {f"training/stepper/{name}/state/{i}": param for i, param in enumerate(params)}

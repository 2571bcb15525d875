"""A small GPT that is awkward to shard, and its training on any number of ranks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from mars import MARS, param_groups
from mars.config.schema import Model
from mars.models.gpt2 import GPT2

Mode = Literal["alone", "ddp", "fsdp2", "hsdp"]

SEQUENCES = 8
SHAPE = Model(layers=2, heads=2, width=12, context_length=8, vocab_size=23)


class Awkward(nn.Module):
    """A GPT-2 (tied embedding) with a narrow path, a parameter nobody uses and a frozen matrix."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.gpt = GPT2(SHAPE, generator=generator)
        # Three rows: with four ranks one of them holds nothing.
        self.down = nn.Parameter(torch.randn(3, 23, generator=generator) * 0.2)
        self.up = nn.Parameter(torch.randn(23, 3, generator=generator) * 0.2)
        self.scale = nn.Parameter(torch.ones(1))
        self.unused = nn.Parameter(torch.randn(5, 7, generator=generator))
        self.frozen = nn.Parameter(torch.randn(23, 23, generator=generator) * 0.1, False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss."""
        logits = self.gpt(tokens)
        bent = torch.tanh(logits @ self.down.T) @ self.up.T + logits @ self.frozen
        logits = logits + self.scale * bent
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@dataclass
class Trained:
    """A model on this rank, its optimizer and what it has come to."""

    module: nn.Module
    model: Awkward
    optimizer: MARS
    losses: list[float] = field(default_factory=list)

    def whole(self) -> dict[str, Tensor]:
        """Return the parameters, whole and on every rank."""
        return {name: whole(param) for name, param in self.model.named_parameters()}


def whole(tensor: Tensor) -> Tensor:
    """Return a copy of all of a tensor."""
    full: Callable[[], Tensor] | None = getattr(tensor.detach(), "full_tensor", None)
    return tensor.detach().clone() if full is None else full().clone()


@cache
def mesh_of(mode: Mode) -> DeviceMesh | None:
    """Return the mesh that a mode shards over."""
    ranks = dist.get_world_size() if mode != "alone" else 1
    if mode == "fsdp2":
        return init_device_mesh("cpu", (ranks,), mesh_dim_names=("shard",))
    if mode == "hsdp":
        return init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicate", "shard"))
    return None


def build(
    mode: Mode,
    *,
    ddp: dict[str, Any] | None = None,
    policy: MixedPrecisionPolicy | None = None,
    **options: Any,
) -> Trained:
    """Return the awkward model in a mode, with MARS on it."""
    model = Awkward()
    module: nn.Module = model
    mesh = mesh_of(mode)
    if mode == "ddp":
        module = DistributedDataParallel(model, **{"find_unused_parameters": True, **(ddp or {})})
    elif mesh is not None:
        for part in (model.gpt.h[0], model):
            fully_shard(part, mesh=mesh, mp_policy=policy or MixedPrecisionPolicy())
    return Trained(module, model, MARS(param_groups(module), lr=3e-3, **options))


def batch(step: int, *, rank: int = 0, ranks: int = 1) -> tuple[Tensor, Tensor]:
    """Return a rank's sequences of a step."""
    generator = torch.Generator().manual_seed(1000 + step)
    tokens = torch.randint(23, (SEQUENCES, SHAPE.context_length + 1), generator=generator)
    # Some structure to learn: every other token is the one before it.
    tokens[:, 1::2] = tokens[:, 0:-1:2]
    own = tokens.chunk(ranks)[rank]
    return own[:, :-1], own[:, 1:]


def train(trained: Trained, steps: range, *, rank: int = 0, ranks: int = 1) -> None:
    """Take steps, noting the loss over all ranks."""
    for step in steps:
        own = batch(step, rank=rank, ranks=ranks)

        def closure() -> float:
            trained.optimizer.zero_grad()
            loss = trained.module(*own)  # noqa: B023
            loss.backward()
            return float(loss.detach())

        loss = torch.tensor(trained.optimizer.step(closure), dtype=torch.float64)
        if ranks > 1:
            dist.all_reduce(loss)
        trained.losses.append(float(loss) / ranks)

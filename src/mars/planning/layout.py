"""How a model lies on GPUs: whole on each, or in shards, and what the largest part of it is."""

import math
from dataclasses import dataclass
from typing import Literal

from mars.config.errors import RefusedError
from mars.planning.gpus import GPUS_A_NODE

Mode = Literal["none", "ddp", "fsdp2", "hsdp"]


@dataclass(frozen=True, slots=True)
class Layout:
    """A parallel mode on a number of GPUs; ``replicas`` groups of ``shards`` GPUs hold the model.

    The ranks of a group of shards follow each other, as in a device mesh (replicas, shards).
    """

    mode: Mode
    replicas: int
    shards: int

    @property
    def gpus(self) -> int:
        """How many there are."""
        return self.replicas * self.shards

    @property
    def is_sharded(self) -> bool:
        """Whether a GPU holds a part of the model only."""
        return self.mode in ("fsdp2", "hsdp")

    def elements(self, shape: tuple[int, ...]) -> int:
        """Return how many elements of a tensor the first rank holds, which no rank exceeds.

        Shards are rows, cut as `torch.chunk` does: all chunks but the last are equally large.
        """
        if self.shards == 1:
            return math.prod(shape)
        return -(-shape[0] // self.shards) * math.prod(shape[1:])


def layout_of(mode: Mode, *, gpus: int, replicas: int | None) -> Layout:
    """Return the layout of a mode; raise `RefusedError` where there is none."""
    if gpus < 1:
        raise RefusedError(f"--gpus must be at least 1, got {gpus}")
    if replicas is not None and mode != "hsdp":
        raise RefusedError(f"--replicas {replicas} has no meaning for {mode}; it belongs to hsdp")
    if mode == "none" and gpus > 1:
        raise RefusedError(f"--parallel none is one GPU, got --gpus {gpus}; use ddp or fsdp2")
    if mode != "none" and gpus == 1:
        raise RefusedError(f"--parallel {mode} needs several GPUs, got --gpus 1; use none")
    if mode == "fsdp2":
        return Layout(mode, replicas=1, shards=gpus)
    if mode == "hsdp":
        groups = _replicas(gpus, replicas)
        return Layout(mode, replicas=groups, shards=gpus // groups)
    return Layout(mode, replicas=gpus, shards=1)


def layouts(*, gpus: int, replicas: int | None) -> list[Layout]:
    """Return the layouts of all modes that so many GPUs allow."""
    if gpus <= 1:
        if replicas is not None:
            raise RefusedError(f"--replicas {replicas} needs several GPUs, got --gpus {gpus}")
        return [layout_of("none", gpus=gpus, replicas=None)]
    found = [layout_of(mode, gpus=gpus, replicas=None) for mode in ("ddp", "fsdp2")]
    has_nodes = gpus > GPUS_A_NODE and gpus % GPUS_A_NODE == 0
    if replicas is not None or has_nodes:
        found.append(layout_of("hsdp", gpus=gpus, replicas=replicas))
    return found


def _replicas(gpus: int, replicas: int | None) -> int:
    """Return the number of replicas, a node of eight each unless it is given."""
    if replicas is None:
        if gpus <= GPUS_A_NODE or gpus % GPUS_A_NODE:
            raise RefusedError(
                f"--parallel hsdp: {gpus} GPUs are not several nodes of {GPUS_A_NODE}; say into "
                "how many groups they divide with --replicas, or use fsdp2"
            )
        return gpus // GPUS_A_NODE
    if replicas < 2 or gpus % replicas or gpus == replicas:
        raise RefusedError(
            f"--replicas {replicas} does not divide --gpus {gpus} into several groups of several "
            "GPUs; fsdp2 is one group, ddp has a GPU in each"
        )
    return replicas

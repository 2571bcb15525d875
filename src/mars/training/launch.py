"""Which process of how many this is, as torchrun tells it, and which runs so many can share.

Nothing here imports torch: what cannot be shared is refused at once.
"""

import math
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from mars.config.errors import RefusedError
from mars.config.schema import Run

Mode = Literal["none", "ddp", "fsdp2", "hsdp"]

_COUNTS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True, slots=True)
class Launch:
    """This process among those that share a run; by default it is alone.

    ``job`` is the same for all processes of a launch and for those that replace them after a
    failure; empty without a launcher.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    restarts: int = 0
    job: str = ""

    @property
    def is_first(self) -> bool:
        """Whether this process speaks and writes for all."""
        return self.rank == 0

    @property
    def label(self) -> str:
        """The process in words."""
        return f"rank {self.rank} of {self.size}"

    @property
    def nodes(self) -> int:
        """The machines of the launch, where each has as many processes as this one."""
        return max(1, self.size // self.local_size)

    def mode(self, config: Run) -> Mode:
        """Return how the processes share the run of a config."""
        return "none" if self.size == 1 else config.training.parallel or "ddp"

    def replicas(self, config: Run) -> int:
        """Return how many groups of processes have the whole model each, under hsdp."""
        return config.training.replicas or self.nodes


def read_launch(environment: Mapping[str, str] | None = None) -> Launch:
    """Return what the environment says of this process; without torchrun it is alone."""
    environment = os.environ if environment is None else environment
    if "RANK" not in environment and environment.get("WORLD_SIZE", "1") == "1":
        return Launch()
    try:
        rank, size, local_rank, local_size = (int(environment[name]) for name in _COUNTS)
        restarts = int(environment.get("TORCHELASTIC_RESTART_COUNT", "0"))
    except (KeyError, ValueError) as error:
        raise RefusedError(
            f"the environment of a process among several is incomplete: {error}; start them with "
            "torchrun --nproc-per-node N -m mars train ..."
        ) from error
    # torchrun's default name is the same for every launch: its own process is not.
    named = environment.get("TORCHELASTIC_RUN_ID", "none")
    job = named if named != "none" else f"{socket.gethostname()}:{os.getppid()}"
    return Launch(rank, size, local_rank, local_size, restarts, job)


@contextmanager
def refused_once(launch: Launch) -> Iterator[None]:
    """Let one process of each machine tell a refusal that all of them come to by themselves."""
    try:
        yield
    except RefusedError:
        if launch.local_rank == 0:
            raise
        raise SystemExit(2) from None


def check_launch(config: Run, launch: Launch) -> None:
    """Refuse a run that the processes at hand cannot share."""
    training, size = config.training, launch.size
    if training.parallel is not None and not launch.job:
        raise RefusedError(
            f'training.parallel = "{training.parallel}" is for several processes: start it with '
            "torchrun --nproc-per-node N -m mars train ..., or leave it out "
            "(--set training.parallel=)"
        )
    if training.batch_size % size:
        raise RefusedError(
            f"training.batch_size = {training.batch_size} is not divisible by {size} processes; "
            f"use {math.ceil(training.batch_size / size) * size}"
        )
    share, micro = training.batch_size // size, training.micro_batch_size
    if micro is not None and share % micro:
        raise RefusedError(
            f"training.micro_batch_size = {micro} does not divide the {share} sequences that each "
            f"of {size} processes has of training.batch_size = {training.batch_size}; "
            f"use {max(each for each in range(1, micro) if share % each == 0)}"
        )
    if training.validation_sequences < size:
        raise RefusedError(
            f"training.validation_sequences = {training.validation_sequences} is fewer than one "
            f"for each of {size} processes; use {size}"
        )
    if size > 1:
        _check_device(config, launch)
    if launch.mode(config) == "hsdp":
        _check_replicas(config, launch)


def _check_device(config: Run, launch: Launch) -> None:
    kind, colon, _ = config.training.device.partition(":")
    if colon:
        raise RefusedError(
            f'training.device = "{config.training.device}" names one device for {launch.size} '
            f'processes; "{kind}" gives each its own'
        )
    if kind not in ("auto", "cpu", "cuda"):
        raise RefusedError(
            f'training.device = "{kind}" trains in one process alone; several use cpu or cuda'
        )


def _check_replicas(config: Run, launch: Launch) -> None:
    replicas, size = launch.replicas(config), launch.size
    if config.training.replicas is None and launch.nodes == 1:
        raise RefusedError(
            'training.parallel = "hsdp" on one node needs training.replicas: how many groups of '
            "processes have the whole model each, such as 2"
        )
    if size % replicas:
        raise RefusedError(
            f"training.replicas = {replicas} does not divide {size} processes; "
            f"use {math.gcd(replicas, size)}"
        )

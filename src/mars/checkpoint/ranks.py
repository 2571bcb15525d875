"""What the ranks of a run do together: each its part, then one outcome for all.

A process without a process group, or alone in one, has nobody to agree with: nothing is sent and
its errors stay as they are. Only JSON travels between ranks.
"""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions

from mars.checkpoint.errors import CheckpointError, RankLostError, reason
from mars.config.errors import FailedError, RefusedError

T = TypeVar("T")

# One rank may write or verify much while the others wait; a lost one is noticed by its connections.
_PATIENCE = timedelta(hours=1)

# What is raised on one rank is raised on the others, as the first of these that it is.
_KINDS: tuple[type[Exception], ...] = (CheckpointError, RefusedError)


def world_size() -> int:
    """Return how many ranks save and load together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return which of the ranks this process is."""
    return dist.get_rank() if world_size() > 1 else 0


def together(work: Callable[[], T]) -> T:
    """Return this rank's result once every rank has one; if any failed, all raise the same error.

    The work must not communicate: a rank that fails leaves it early.
    """
    if world_size() == 1:
        return work()
    result: T | None = None
    error: Exception | None = None
    try:
        result = work()
    except Exception as caught:
        error = caught
    failures = [failure for failure in gathered(_told(error)) if failure is not None]
    if failures:
        number, message = failures[0]
        raise (FailedError if number is None else _KINDS[number])(message) from error
    return result  # type: ignore[return-value]  # without an error it is what the work returned


def first(work: Callable[[], T]) -> T:
    """Return on every rank what the work returned on rank 0, JSON; raise on all what it raised."""
    return gathered(together(lambda: work() if rank() == 0 else None))[0]  # type: ignore[no-any-return]


def gathered(value: object) -> list[Any]:
    """Return what every rank gave, JSON values in the order of the ranks."""
    if world_size() == 1:
        return [value]
    raw = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    try:
        lengths = [int(length) for length in _all(torch.tensor(len(raw)))]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(raw)] = raw
        parts = [part.cpu() for part in _all(padded)]
    except RuntimeError as error:
        raise RankLostError.noticed(error) from error
    return [
        json.loads(bytes(part[:length].tolist()))
        for part, length in zip(parts, lengths, strict=True)
    ]


def _all(tensor: Tensor) -> list[Tensor]:
    """Return the tensor of every rank, which has the same shape on all."""
    tensor = tensor.to(_device())
    parts = [torch.empty_like(tensor) for _ in range(world_size())]
    options = AllgatherOptions()
    options.timeout = _PATIENCE
    world = dist.group.WORLD
    assert world is not None
    world.allgather([parts], [tensor], options).wait()
    return parts


def _device() -> torch.device:
    """Return a device whose tensors the process group can send."""
    if "cpu" in dist.get_backend_config():
        return torch.device("cpu")
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def _told(error: Exception | None) -> tuple[int | None, str] | None:
    """Return an error as the other ranks will raise it: its kind, None for a failure, and words."""
    if error is None:
        return None
    for number, kind in enumerate(_KINDS):
        if isinstance(error, kind):
            return number, str(error)
    return None, f"rank {rank()}: {reason(error)}"

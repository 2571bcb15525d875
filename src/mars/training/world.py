"""The processes that share a run: how they meet, agree, and find out that one is lost.

A process alone asks nobody: every method then returns at once, and nothing is imported.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NoReturn, TypeVar

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import AllreduceOptions, PrefixStore
from torch.distributed.rendezvous import rendezvous

from mars.config.errors import FailedError, RefusedError
from mars.training.hardware import process_device
from mars.training.launch import Launch, refused_once

T = TypeVar("T")

# Before training one process may prepare a corpus, while the others wait.
_PATIENCE = timedelta(hours=6)
_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP")
# What the texts of torch's errors have in common when another process does not answer.
_LOST = ("gloo", "nccl", "connection", "socket", "timed out", "timeout", "broken pipe", "tcpstore")


@dataclass(frozen=True, slots=True)
class World:
    """This process and those it trains with; by default there are none."""

    launch: Launch = field(default_factory=Launch)
    device: torch.device | None = None

    @property
    def rank(self) -> int:
        """The number of this process."""
        return self.launch.rank

    @property
    def size(self) -> int:
        """The number of processes."""
        return self.launch.size

    @property
    def is_first(self) -> bool:
        """Whether this process speaks and writes for all."""
        return self.launch.is_first

    def after_step(self, loss: Tensor, stop: str | None) -> tuple[Tensor, str | None]:
        """Return the mean loss of all processes, and a signal if one came to any of them.

        One collective for both: the processes stop after the same step.
        """
        if self.size == 1:
            return loss, stop
        row = [float(stop == name) for name in _SIGNALS]
        votes = torch.tensor([*row, 0.0], dtype=torch.float64, device=self.device)
        votes[-1] = loss / self.size
        torch.distributed.all_reduce(votes)
        *received, mean = votes.tolist()
        came = [name for name, vote in zip(_SIGNALS, received, strict=True) if vote]
        return torch.tensor(mean), came[0] if came else None

    def sums(self, *values: float) -> list[float]:
        """Return the sums of values over all processes."""
        if self.size == 1:
            return list(values)
        summed = torch.tensor(values, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(summed)
        found: list[float] = summed.tolist()
        return found

    def told(self, text: str) -> str:
        """Return what the first process says, whatever the others say."""
        return text if self.size == 1 else self._gathered(text)[0]

    def in_turn(self, call: Callable[[], T]) -> T:
        """Return what a call gives, which the first process makes before the others do."""
        with self.agreed():
            made = [call()] if self.is_first else []
        with self.agreed():
            made = made or [call()]
        return made[0]

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Leave a context in all processes, or in none: what one refuses ends them all.

        The first process raises the reason, of whichever process has one; the others leave
        without a word, but for an error that nobody foresaw.
        """
        if self.size == 1:
            yield
            return
        failure: Exception | None = None
        try:
            yield
        except Exception as error:  # of any kind: the others must not wait for this process
            failure = error
        try:
            said = self._gathered(_described(failure))
        except RuntimeError as lost:
            # The others wait elsewhere, in something that this process did not come to.
            raise (failure or lost) from lost
        if any(said):
            self._give_up(said, failure)

    def _give_up(self, said: list[str], failure: Exception | None) -> NoReturn:
        rank = next(rank for rank, text in enumerate(said) if text)
        kind, text = json.loads(said[rank])
        if failure is not None and _kind(failure) == "broken":
            raise failure
        if not self.is_first:
            raise SystemExit(2 if kind == "refused" else 1)
        is_common = all(each == said[rank] for each in said)
        told = text if is_common or rank == 0 else f"rank {rank} of {self.size}: {text}"
        raise (RefusedError if kind == "refused" else FailedError)(told) from failure

    def _gathered(self, text: str) -> list[str]:
        """Return the texts of all processes, by rank."""
        own = torch.tensor(list(text.encode()), dtype=torch.uint8)
        lengths = torch.zeros(self.size, dtype=torch.int64)
        lengths[self.rank] = len(own)
        _sum_patiently_(lengths)
        padded = torch.zeros(self.size, max(1, int(lengths.max())), dtype=torch.uint8)
        padded[self.rank, : len(own)] = own
        # A sum: each row is that of one process.
        _sum_patiently_(padded)
        rows = zip(padded, lengths.tolist(), strict=True)
        return [bytes(row[:length].tolist()).decode() for row, length in rows]


@contextmanager
def connected(launch: Launch, *, device: str, timeout_seconds: int) -> Iterator[World]:
    """Give the world of a launch; a process alone is at once in it.

    ``timeout_seconds`` is how long a process of a run waits for the others before it gives up.
    """
    if launch.size == 1:
        yield World(launch)
        return
    with refused_once(launch):
        found = process_device(device, launch)
    backend = "gloo"
    if found.type == "cuda":
        torch.cuda.set_device(found)
        backend = "cpu:gloo,cuda:nccl"
    try:
        _meet(launch, backend=backend, timeout=timedelta(seconds=timeout_seconds))
    except (RuntimeError, ValueError) as error:
        reason = one_line(error)
        raise FailedError(f"{launch.label} does not find the others: {reason}") from error
    yield World(launch, found)
    # Not after an error: whoever is lost does not answer to a farewell either.
    torch.distributed.destroy_process_group()


def _meet(launch: Launch, *, backend: str, timeout: timedelta) -> None:
    """Make the process group of a launch."""
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    store.set_timeout(timeout)
    # On one machine torchrun may keep its store when it starts processes again, with addresses of
    # those that are gone. On several each start has a new store, and counts may differ.
    prefix = f"start-{launch.restarts}" if launch.nodes == 1 else "start"
    torch.distributed.init_process_group(
        backend,
        store=PrefixStore(prefix, store),
        rank=rank,
        world_size=size,
        timeout=timeout,
    )


def _sum_patiently_(tensor: Tensor) -> None:
    """Replace a tensor by its sum over all processes, however long the others take."""
    options = AllreduceOptions()
    options.timeout = _PATIENCE
    world = torch.distributed.group.WORLD
    assert world is not None
    world.allreduce([tensor], options).wait()


def is_lost(error: BaseException) -> bool:
    """Whether an error, or one it came from, says that another process does not answer."""
    seen: BaseException | None = error
    while seen is not None:
        is_torch = isinstance(seen, RuntimeError) and not isinstance(seen, FailedError)
        if is_torch and any(word in str(seen).casefold() for word in _LOST):
            return True
        seen = seen.__cause__
    return False


def one_line(error: BaseException) -> str:
    """Return the first sentence of what an error comes from, without the place in torch."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines() or [type(error).__name__]
    sentence = lines[0].partition(". ")[0]
    return sentence.rpartition("] ")[2] or sentence


def _kind(error: Exception) -> str:
    if isinstance(error, RefusedError):
        return "refused"
    return "failed" if isinstance(error, FailedError | OSError) else "broken"


def _described(error: Exception | None) -> str:
    """Return the kind and text of an error as JSON; nothing where there is none."""
    if error is None:
        return ""
    kind = _kind(error)
    text = str(error) if kind != "broken" else f"{type(error).__name__}: {one_line(error)}"
    return json.dumps([kind, text])

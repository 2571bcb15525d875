"""The order in which training reads tokens: a pure function of a seed and a number.

An epoch lays windows of ``context_length`` tokens end to end around the split, which is a ring
(a document ends where it closes), from a random token on; so no token is an input twice in an
epoch, and fewer than a window's are left out. Its windows come in a random order. The sequence of
number n is a window of epoch n // windows per epoch: all there is to save is how far a run is.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mars.config.errors import RefusedError
from mars.data.corpus import Tokens

Sequences = tuple[Tensor, Tensor]  # inputs and targets, int64, (sequences, context_length)


class Sampler:
    """Training sequences by number."""

    def __init__(self, tokens: Tokens, *, context_length: int, seed: int) -> None:
        _check_length(tokens, context_length=context_length)
        if seed < 0:
            raise RefusedError(f"seed must be at least 0, got {seed}")
        self.tokens = tokens
        self.context_length = context_length
        self.seed = seed
        self.sequences_per_epoch = len(tokens) // context_length
        # Two: a batch may lie in two epochs, and threads read ahead.
        self._epoch = lru_cache(maxsize=2)(self._shuffled)

    def sequences(self, numbers: Sequence[int]) -> Sequences:
        """Return the sequences with these numbers, counted from the start of training."""
        return _sequences(self.tokens, self.starts(numbers), context_length=self.context_length)

    def starts(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        """Return the place of each sequence's first token in the split."""
        epochs, windows = np.divmod(np.asarray(numbers, dtype=np.int64), self.sequences_per_epoch)
        starts = np.empty_like(windows)
        for epoch in np.unique(epochs).tolist():
            first, order = self._epoch(epoch)
            chosen = epochs == epoch
            starts[chosen] = first + order[windows[chosen]] * self.context_length
        return starts % len(self.tokens)

    def _shuffled(self, epoch: int) -> tuple[int, NDArray[np.int64]]:
        """Return where the windows of an epoch begin, and their order."""
        generator = np.random.default_rng([self.seed, epoch])
        first = int(generator.integers(len(self.tokens)))
        return first, generator.permutation(self.sequences_per_epoch)


class Batches(Iterator[list[Sequences]]):
    """The micro-batches of one process, step by step, without end.

    A step is the next ``batch_size`` sequences; each rank takes an equal block of them in order.
    The same steps follow for any number of ranks, micro-batches and workers, and after any stop.

    Args:
        sampler: what the sequences come from.
        batch_size: sequences of a step, over all ranks.
        micro_batch_size: sequences of a micro-batch; ranks times it divide the batch.
        rank, world_size: which process of how many this is.
        workers: threads that read steps ahead, one each; 0 reads when asked.
        position: sequences consumed before, over all ranks.
    """

    def __init__(
        self,
        sampler: Sampler,
        *,
        batch_size: int,
        micro_batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 0,
        position: int = 0,
    ) -> None:
        _check_rank(rank, world_size=world_size)
        if batch_size < 1 or micro_batch_size < 1 or batch_size % (world_size * micro_batch_size):
            raise RefusedError(
                f"batch_size {batch_size} is no multiple of micro_batch_size {micro_batch_size} "
                f"times {world_size} processes; change one of them"
            )
        if workers < 0:
            raise RefusedError(f"workers must be at least 0, got {workers}; 0 reads in the loop")
        self._sampler = sampler
        self._batch_size, self._micro_batch_size = batch_size, micro_batch_size
        self._block = batch_size // world_size
        self._offset = rank * self._block
        self._workers = workers
        self._pool = ThreadPoolExecutor(workers, "mars-batches") if workers else None
        self._ahead: deque[Future[list[Sequences]]] = deque()
        self.load_state_dict({"position": position})

    def __next__(self) -> list[Sequences]:
        if self._pool is None:
            step = self._read(self._position)
        else:
            while len(self._ahead) <= self._workers:
                start = self._position + len(self._ahead) * self._batch_size
                self._ahead.append(self._pool.submit(self._read, start))
            step = self._ahead[0].result()  # a failure stays first in line
            self._ahead.popleft()
        self._position += self._batch_size
        return step

    def state_dict(self) -> dict[str, int]:
        """Return how many sequences were handed out, over all ranks; not what was read ahead."""
        return {"position": self._position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on after the sequences that a state counts."""
        position = state.get("position")
        if not isinstance(position, int) or position < 0:
            raise RefusedError(f"{dict(state)} is no state of the batches; it has a position")
        self._forget()
        self._position = position

    def close(self) -> None:
        """End the threads; reading on needs a new object."""
        self._forget()
        if self._pool is not None:
            self._pool.shutdown()

    def _forget(self) -> None:
        while self._ahead:
            self._ahead.pop().cancel()

    def _read(self, position: int) -> list[Sequences]:
        first = position + self._offset
        inputs, targets = self._sampler.sequences(range(first, first + self._block))
        parts = (torch.split(each, self._micro_batch_size) for each in (inputs, targets))
        return list(zip(*parts, strict=True))


def validation_windows(
    tokens: Tokens,
    *,
    context_length: int,
    count: int,
    micro_batch_size: int,
    rank: int = 0,
    world_size: int = 1,
) -> Iterator[Sequences]:
    """Return this rank's micro-batches of fixed windows, spread evenly over the split.

    There are ``count`` windows over all ranks, or as many as the split has; the number is rounded
    down to a multiple of ``world_size``, since ranks that call a sharded model must do so equally
    often. The last micro-batch may be smaller.
    """
    _check_length(tokens, context_length=context_length)
    _check_rank(rank, world_size=world_size)
    if count < 1 or micro_batch_size < 1:
        raise RefusedError(
            f"validation on {count} sequences, {micro_batch_size} at a time; both are at least 1"
        )
    available = (len(tokens) - 1) // context_length
    each = min(count, available) // world_size
    if each == 0:
        raise RefusedError(
            f"validation on {count} sequences of the {available} there are is fewer than one for "
            f"each of {world_size} processes; validate on more, or take a larger split"
        )
    windows = np.arange(rank * each, (rank + 1) * each) * available // (each * world_size)
    return (
        _sequences(tokens, starts, context_length=context_length)
        for starts in np.split(
            windows * context_length, range(micro_batch_size, each, micro_batch_size)
        )
    )


def _sequences(tokens: Tokens, starts: NDArray[np.int64], *, context_length: int) -> Sequences:
    inputs = tokens.windows(starts, length=context_length)
    targets = tokens.windows(starts + 1, length=context_length)
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def _check_length(tokens: Tokens, *, context_length: int) -> None:
    if context_length < 1:
        raise RefusedError(f"context_length must be at least 1, got {context_length}")
    if len(tokens) <= context_length:
        raise RefusedError(
            f"{len(tokens)} tokens hold no sequence of context_length {context_length} and the "
            "token after it; take a shorter context or a larger corpus"
        )


def _check_rank(rank: int, *, world_size: int) -> None:
    if not 0 <= rank < world_size:
        raise RefusedError(f"rank {rank} of {world_size} processes; it lies below their number")

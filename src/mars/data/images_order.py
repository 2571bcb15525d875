"""The order in which training reads images: a pure function of a seed and a number.

Image number n of a run is one of epoch n // images per epoch, which has every image once in an
order of its own. Batches run on over the end of an epoch, so all of them have the same size. All
there is to save is how far a run is.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mars.config.errors import RefusedError
from mars.data.images_augment import draw

Picked = tuple[Tensor, Tensor]  # places in the split and draws for augmentation, int64


class ImageOrder:
    """Images of a split by their number in the run, and what happens to them."""

    def __init__(self, count: int, *, seed: int, padding: int, flip: bool) -> None:
        self.count = count
        self._seed, self._padding, self._flip = seed, padding, flip
        # Two: a batch may lie in two epochs.
        self._epoch = lru_cache(maxsize=2)(self._shuffled)

    def picked(self, numbers: NDArray[np.int64]) -> Picked:
        """Return the places of images in the split, and the draws for their augmentation."""
        epochs, within = np.divmod(numbers, self.count)
        places = np.empty_like(numbers)
        for epoch in np.unique(epochs).tolist():
            chosen = epochs == epoch
            places[chosen] = self._epoch(epoch)[within[chosen]]
        draws = draw(numbers, seed=self._seed, padding=self._padding, flip=self._flip)
        return torch.from_numpy(places), draws

    def _shuffled(self, epoch: int) -> NDArray[np.int64]:
        return np.random.default_rng([self._seed, epoch]).permutation(self.count)


class ImageBatches(Iterator[list[Picked]]):
    """The micro-batches of one process, step by step, without end.

    A step is the next ``batch_size`` images; each rank takes an equal block of them in order. The
    same steps follow for any number of ranks and micro-batches, and after any stop.
    """

    def __init__(
        self,
        order: ImageOrder,
        *,
        batch_size: int,
        micro_batch_size: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_size % (world_size * micro_batch_size):
            raise RefusedError(
                f"batch_size {batch_size} is no multiple of micro_batch_size {micro_batch_size} "
                f"times {world_size} processes; change one of them"
            )
        self._order = order
        self._batch_size, self._micro_batch_size = batch_size, micro_batch_size
        self._block = batch_size // world_size
        self._offset = rank * self._block
        self._position = 0

    def __next__(self) -> list[Picked]:
        first = self._position + self._offset
        picked = self._order.picked(np.arange(first, first + self._block))
        self._position += self._batch_size
        parts = (torch.split(each, self._micro_batch_size) for each in picked)
        return list(zip(*parts, strict=True))

    def state_dict(self) -> dict[str, int]:
        """Return how many images were handed out, over all ranks."""
        return {"position": self._position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on after the images that a state counts."""
        position = state.get("position")
        if not isinstance(position, int) or position < 0:
            raise RefusedError(f"{dict(state)} is no state of the batches; it has a position")
        self._position = position

    def close(self) -> None:
        """Do nothing: what is handed out are numbers, and none is read ahead."""

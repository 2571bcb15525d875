"""Crop and flip for a whole batch at once, on the device the images are on.

What happens to an image is a function of the seed and of the image's number in the run, counted
from the start of training. So it does not depend on batches, processes or where a run was resumed,
and every epoch sees an image anew.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

# splitmix64 (Steele, Lea, Flood 2014): a counter in, 64 well mixed bits out.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def draw(numbers: NDArray[np.int64], *, seed: int, padding: int, flip: bool) -> Tensor:
    """Return for each image of the run where its crop begins (row, column) and whether it flips.

    The crop is as large as the image, out of the image with ``padding`` pixels around it; so rows
    and columns are from 0 to twice the padding. The result is int64, (images, 3).
    """
    key = _mixed(np.array([seed], np.uint64))
    bits = _mixed(key ^ _mixed(numbers.astype(np.uint64)))
    # Three fields of 21 bits: a remainder by at most some hundreds is uniform to 1e-4.
    fields = [(bits >> np.uint64(shift)) & np.uint64((1 << 21) - 1) for shift in (0, 21, 42)]
    sides = np.uint64(2 * padding + 1)
    rows, columns = (field % sides for field in fields[:2])
    flips = fields[2] & np.uint64(flip)
    return torch.from_numpy(np.stack([rows, columns, flips], axis=1).astype(np.int64))


def crop_and_flip(images: Tensor, draws: Tensor, *, padding: int) -> Tensor:
    """Return images (count, channels, height, width) cropped and flipped as their draws say.

    Pixels outside an image are zero. Rows, columns and flips of the draws, which are on the same
    device, become one index a pixel; one gather moves the whole batch.
    """
    count, channels, height, width = images.shape
    padded = F.pad(images, [padding] * 4)
    rows = draws[:, 0, None] + torch.arange(height, device=images.device)
    across = torch.arange(width, device=images.device).expand(count, width)
    across = torch.where(draws[:, 2, None].bool(), across.flip(1), across)
    columns = draws[:, 1, None] + across
    places = rows[:, :, None] * padded.shape[3] + columns[:, None, :]
    index = places.view(count, 1, -1).expand(count, channels, -1)
    return padded.flatten(2).gather(2, index).view(count, channels, height, width)


def flipped(images: Tensor) -> Tensor:
    """Return the images mirrored left to right."""
    return images.flip(3)


def _mixed(counter: NDArray[Any]) -> NDArray[Any]:
    """Return well mixed bits of counters; arithmetic is modulo 2**64, as the algorithm wants."""
    bits = counter + _GOLDEN
    for shift, multiplier in zip(_SHIFTS, (*_MULTIPLIERS, np.uint64(1)), strict=True):
        bits = (bits ^ (bits >> shift)) * multiplier
    return bits

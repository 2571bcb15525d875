"""What an image goes through is a function of the seed and its number, and of nothing else."""

from itertools import chain, islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mars.config.errors import RefusedError
from mars.data.images_augment import crop_and_flip, draw, flipped
from mars.data.images_order import ImageBatches, ImageOrder


def one_by_one(images, draws, padding):
    """Crop and flip with slices, image by image."""
    made = []
    for image, (row, column, is_flipped) in zip(images, draws.tolist(), strict=True):
        channels, height, width = image.shape
        around = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=image.dtype)
        around[:, padding : padding + height, padding : padding + width] = image
        cut = around[:, row : row + height, column : column + width]
        made.append(cut.flip(2) if is_flipped else cut)
    return torch.stack(made)


@given(
    shape=st.tuples(*[st.integers(1, size) for size in (5, 3, 9, 7)]),
    padding=st.integers(0, 4),
    seed=st.integers(0, 2**63 - 1),
    flip=st.booleans(),
)
def test_a_whole_batch_equals_a_loop_over_images(shape, padding, seed, flip):
    images = torch.randint(0, 256, shape, dtype=torch.uint8)
    draws = draw(np.arange(shape[0]), seed=seed, padding=padding, flip=flip)
    expected = one_by_one(images, draws, padding)
    assert torch.equal(crop_and_flip(images, draws, padding=padding), expected)


def test_cifar_sized_batches_equal_the_loop_and_use_every_draw():
    images = torch.randint(0, 256, (512, 3, 32, 32), dtype=torch.uint8)
    draws = draw(np.arange(10_000, 10_512), seed=1, padding=4, flip=True)
    assert torch.equal(crop_and_flip(images, draws, padding=4), one_by_one(images, draws, 4))
    assert len({tuple(each) for each in draws.tolist()}) > 130  # of 162


def test_without_padding_and_flip_nothing_changes():
    images = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8)
    draws = draw(np.arange(4), seed=0, padding=0, flip=False)
    assert draws.abs().sum() == 0
    assert torch.equal(crop_and_flip(images, draws, padding=0), images)
    assert torch.equal(flipped(flipped(images)), images)


def test_the_drawn_values_are_uniform_and_independent():
    count = 81_000
    draws = draw(np.arange(count), seed=3, padding=4, flip=True).numpy()
    cells = np.zeros((9, 9, 2))
    np.add.at(cells, tuple(draws.T), 1)
    expected = count / cells.size
    chi_squared = ((cells - expected) ** 2 / expected).sum()
    # 161 degrees of freedom: mean 161, standard deviation 18; five of them either way.
    assert 71 < chi_squared < 251
    other = draw(np.arange(count), seed=4, padding=4, flip=True).numpy()
    same = (draws == other).all(1).mean()
    assert same == pytest.approx(1 / 162, rel=0.15)
    shifted = (draws[1:] == draws[:-1]).all(1).mean()
    assert shifted == pytest.approx(1 / 162, rel=0.15)


def order(count=10, seed=5):
    return ImageOrder(count, seed=seed, padding=2, flip=True)


def test_an_epoch_has_every_image_once_and_another_order_each_time():
    places, _ = order().picked(np.arange(30))
    epochs = places.view(3, 10)
    assert epochs.sort(1).values.tolist() == [list(range(10))] * 3
    assert not torch.equal(epochs[0], epochs[1])
    other, _ = order(seed=6).picked(np.arange(10))
    assert not torch.equal(epochs[0], other)


def test_an_image_is_drawn_anew_in_every_epoch():
    _, draws = order(count=100).picked(np.arange(200))
    assert (draws[:100] == draws[100:]).all(1).float().mean() < 0.1  # one in 50 by chance


def steps(count, **options):
    batches = ImageBatches(order(), **{"batch_size": 12, "micro_batch_size": 12, **options})
    return list(islice(batches, count))


def joined(made):
    return [torch.cat(parts) for parts in zip(*chain.from_iterable(made), strict=True)]


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("micro_batch_size", [1, 2])
def test_the_same_images_come_for_any_division(world_size, micro_batch_size):
    whole = joined(steps(5))
    ranks = [
        steps(5, rank=rank, world_size=world_size, micro_batch_size=micro_batch_size)
        for rank in range(world_size)
    ]
    together = joined([part for step in zip(*ranks, strict=True) for part in step])
    for expected, found in zip(whole, together, strict=True):
        assert torch.equal(expected, found)
    assert {len(micro[0]) for micro in ranks[0][0]} == {micro_batch_size}


def test_a_state_continues_in_the_middle_of_an_epoch():
    batches = ImageBatches(order(), batch_size=4, micro_batch_size=4)
    for _ in range(3):
        next(batches)
    state = batches.state_dict()
    assert state == {"position": 12}
    expected = joined([next(batches), next(batches)])
    resumed = ImageBatches(order(), batch_size=4, micro_batch_size=4)
    resumed.load_state_dict(state)
    found = joined([next(resumed), next(resumed)])
    assert all(map(torch.equal, expected, found))
    resumed.close()


def test_what_cannot_be_divided_or_restored_is_refused():
    with pytest.raises(RefusedError, match="batch_size 12 is no multiple of micro_batch_size 5"):
        steps(1, micro_batch_size=5)
    batches = ImageBatches(order(), batch_size=4, micro_batch_size=4)
    for state in ({}, {"position": -1}, {"position": "1"}):
        with pytest.raises(RefusedError, match="is no state of the batches"):
            batches.load_state_dict(state)

"""The sampler: every token once an epoch, the same batches however they are read."""

from collections import Counter
from contextlib import closing
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mars.config.errors import RefusedError
from mars.data.corpus import Tokens
from mars.data.sampler import Batches, Sampler, validation_windows


def counting(number: int, shard: int = 37) -> Tokens:
    """Return the tokens 0, 1, 2, ... in shards."""
    return Tokens(np.split(np.arange(number, dtype=np.uint32), range(shard, number, shard)))


def sampler(number: int = 1000, context_length: int = 8, seed: int = 0) -> Sampler:
    return Sampler(counting(number), context_length=context_length, seed=seed)


def joined(step) -> torch.Tensor:
    """Return inputs and targets of a step's micro-batches, one under the other."""
    return torch.cat([torch.stack(micro_batch, dim=1) for micro_batch in step])


SIZES = st.integers(1, 20).flatmap(
    lambda context: st.tuples(st.integers(context + 1, 400), st.just(context))
)


# Sequences.


@given(sizes=SIZES, seed=st.integers(0, 2**40), epoch=st.integers(0, 3))
def test_an_epoch_visits_every_token_at_most_once_and_leaves_less_than_a_window(sizes, seed, epoch):
    number, context = sizes
    reader = Sampler(counting(number), context_length=context, seed=seed)
    first = epoch * reader.sequences_per_epoch
    inputs, _ = reader.sequences(range(first, first + reader.sequences_per_epoch))
    visits = Counter(inputs.flatten().tolist())
    assert set(visits.values()) == {1}
    assert number - context < len(visits) <= number


@given(sizes=SIZES, seed=st.integers(0, 9), numbers=st.lists(st.integers(0, 2000), max_size=9))
def test_targets_are_the_tokens_after_the_inputs(sizes, seed, numbers):
    number, context = sizes
    reader = Sampler(counting(number), context_length=context, seed=seed)
    inputs, targets = reader.sequences(numbers)
    assert inputs.shape == targets.shape == (len(numbers), context)
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.is_contiguous()
    assert targets.is_contiguous()
    assert torch.equal(targets, (inputs + 1) % number)
    assert torch.equal(inputs, (inputs[:, :1] + torch.arange(context)) % number)


@given(numbers=st.lists(st.integers(0, 1000), min_size=1, max_size=9), seed=st.integers(0, 9))
def test_a_sequence_depends_on_its_number_alone(numbers, seed):
    together, _ = sampler(seed=seed).sequences(numbers)
    for number, row in zip(numbers, together, strict=True):
        alone, _ = sampler(seed=seed).sequences([number])
        assert torch.equal(alone[0], row)


def test_shards_do_not_matter():
    one, many = (
        Sampler(counting(1000, shard), context_length=16, seed=3).sequences(range(200))
        for shard in (1000, 7)
    )
    assert torch.equal(one[0], many[0])
    assert torch.equal(one[1], many[1])


def test_epochs_and_seeds_differ_in_order_and_in_where_windows_begin():
    places = {}
    for seed in range(3):
        reader = sampler(seed=seed)
        each = reader.sequences_per_epoch
        for epoch in range(3):
            starts = reader.starts(range(epoch * each, (epoch + 1) * each))
            places[seed, epoch] = starts.tolist()
    orders = {tuple(starts) for starts in places.values()}
    assert len(orders) == 9
    assert len({min(starts) % 8 for starts in places.values()}) > 3
    assert all(starts != sorted(starts) for starts in places.values())


def test_the_order_is_the_one_that_saved_positions_count_on():
    reader = sampler(number=50, context_length=8, seed=7)
    assert reader.starts(range(12, 18)).tolist() == [4, 14, 30, 38, 46, 22]


@pytest.mark.parametrize("number", [8, 1])
def test_a_corpus_shorter_than_a_window_is_refused_with_its_numbers(number):
    match = f"^{number} tokens hold no sequence of context_length 8 "
    with pytest.raises(RefusedError, match=match):
        sampler(number)
    with pytest.raises(RefusedError, match=match):
        validation_windows(counting(number), context_length=8, count=1, micro_batch_size=1)
    assert sampler(9).sequences_per_epoch == 1


def test_impossible_samplers_are_refused():
    with pytest.raises(RefusedError, match="context_length must be at least 1, got 0"):
        sampler(context_length=0)
    with pytest.raises(RefusedError, match="seed must be at least 0, got -1"):
        sampler(seed=-1)


# Batches.


@given(
    ranks=st.sampled_from([1, 2, 3, 4, 6]),
    micro_batches=st.sampled_from([1, 2]),
    workers=st.integers(0, 3),
    position=st.integers(0, 300),
)
def test_batches_are_the_same_for_any_ranks_micro_batches_and_workers(
    ranks, micro_batches, workers, position
):
    inputs, targets = sampler().sequences(range(position, position + 72))
    expected = torch.stack([inputs, targets], dim=1).split(24)
    blocks = []
    for rank in range(ranks):
        batches = Batches(
            sampler(),
            batch_size=24,
            micro_batch_size=24 // ranks // micro_batches,
            rank=rank,
            world_size=ranks,
            workers=workers,
            position=position,
        )
        with closing(batches):
            steps = list(islice(batches, 3))
        assert [len(step) for step in steps] == [micro_batches] * 3
        blocks.append([joined(step) for step in steps])
    for step, whole in enumerate(expected):
        assert torch.equal(torch.cat([block[step] for block in blocks]), whole)


@given(stop=st.integers(0, 5), before=st.integers(0, 3), after=st.integers(0, 3))
def test_a_resume_is_bitwise_identical(stop, before, after):
    sizes = {"batch_size": 30, "micro_batch_size": 10}  # 125 windows an epoch: two are crossed
    with closing(Batches(sampler(), **sizes)) as batches:
        uninterrupted = [joined(next(batches)) for _ in range(10)]
    with closing(Batches(sampler(), **sizes, workers=before)) as batches:
        steps = [joined(next(batches)) for _ in range(stop)]
        state = batches.state_dict()
    assert state == {"position": 30 * stop}
    with closing(Batches(sampler(), **sizes, workers=after)) as batches:
        batches.load_state_dict(state)
        steps += [joined(next(batches)) for _ in range(10 - stop)]
    assert torch.equal(torch.stack(steps), torch.stack(uninterrupted))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_loaded_state_discards_what_was_read_ahead(workers):
    with closing(Batches(sampler(), batch_size=4, micro_batch_size=2, workers=workers)) as batches:
        first = [joined(next(batches)) for _ in range(3)]
        batches.load_state_dict({"position": 0})
        assert batches.state_dict() == {"position": 0}
        again = [joined(next(batches)) for _ in range(3)]
    assert torch.equal(torch.stack(first), torch.stack(again))


def test_workers_read_so_many_steps_ahead():
    reader = sampler()
    read = []
    reader.sequences = lambda numbers: (read.append(numbers), Sampler.sequences(reader, numbers))[1]
    with closing(Batches(reader, batch_size=4, micro_batch_size=4, workers=2)) as batches:
        assert read == []
        next(batches)
    assert {numbers.start for numbers in read} <= {0, 4, 8}
    assert batches.state_dict() == {"position": 4}


def test_a_failure_to_read_stays_a_failure_of_that_step():
    reader = sampler()
    is_broken = True

    def sequences(numbers):
        if numbers.start == 8 and is_broken:
            raise OSError("no such disk")
        return Sampler.sequences(reader, numbers)

    reader.sequences = sequences
    with closing(Batches(reader, batch_size=4, micro_batch_size=4, workers=2)) as batches:
        next(batches), next(batches)
        for _ in range(2):
            with pytest.raises(OSError, match="no such disk"):
                next(batches)
            assert batches.state_dict() == {"position": 8}
        is_broken = False
        batches.load_state_dict(batches.state_dict())
        assert torch.equal(joined(next(batches))[:, 0], sampler().sequences(range(8, 12))[0])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"micro_batch_size": 5}, "batch_size 12 is no multiple of micro_batch_size 5 times 1"),
        ({"world_size": 5}, "micro_batch_size 1 times 5 processes"),
        ({"micro_batch_size": 4, "world_size": 2}, "micro_batch_size 4 times 2"),
        ({"micro_batch_size": 0}, "micro_batch_size 0"),
        ({"batch_size": 0}, "batch_size 0"),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2 processes"),
        ({"rank": -1}, "rank -1"),
        ({"workers": -1}, "workers must be at least 0, got -1"),
        ({"position": -1}, "'position': -1"),
    ],
)
def test_impossible_batches_are_refused(options, match):
    with pytest.raises(RefusedError, match=match):
        Batches(sampler(), **{"batch_size": 12, "micro_batch_size": 1} | options)


@pytest.mark.parametrize("state", [{}, {"position": -4}, {"position": "4"}, {"position": None}])
def test_a_foreign_state_is_refused_and_changes_nothing(state):
    batches = Batches(sampler(), batch_size=4, micro_batch_size=4, position=8)
    with pytest.raises(RefusedError, match="is no state of the batches"):
        batches.load_state_dict(state)
    assert batches.state_dict() == {"position": 8}


# Validation.


def windows(number: int, *, context_length: int = 8, **options) -> list[torch.Tensor]:
    options = {"count": 10, "micro_batch_size": 4} | options
    return [
        torch.stack(micro_batch, dim=1)
        for micro_batch in validation_windows(
            counting(number), context_length=context_length, **options
        )
    ]


def test_validation_windows_are_spread_evenly_and_do_not_change():
    found = windows(1001, count=25)
    starts = torch.cat(found)[:, 0, 0]
    assert starts.tolist() == [40 * number for number in range(25)]
    assert [len(micro_batch) for micro_batch in found] == [4] * 6 + [1]
    for once, again in zip(found, windows(1001, count=25), strict=True):
        assert torch.equal(once, again)


@given(number=st.integers(9, 300), count=st.integers(1, 50), micro_batch_size=st.integers(1, 9))
def test_validation_windows_are_distinct_and_as_many_as_there_are(number, count, micro_batch_size):
    found = torch.cat(windows(number, count=count, micro_batch_size=micro_batch_size))
    assert len(found) == min(count, (number - 1) // 8)
    inputs, targets = found.unbind(dim=1)
    assert len(inputs.flatten().unique()) == inputs.numel()
    assert torch.equal(targets, inputs + 1)  # never around the end
    assert targets.max() < number


@given(ranks=st.integers(1, 5), count=st.integers(5, 40), micro_batch_size=st.integers(1, 9))
def test_ranks_validate_equally_often_on_the_windows_of_one(ranks, count, micro_batch_size):
    whole = torch.cat(windows(1000, count=count // ranks * ranks))
    options = {"count": count, "micro_batch_size": micro_batch_size, "world_size": ranks}
    each = [windows(1000, rank=rank, **options) for rank in range(ranks)]
    assert len({tuple(len(micro_batch) for micro_batch in found) for found in each}) == 1
    assert torch.equal(torch.cat([torch.cat(found) for found in each]), whole)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"count": 0}, "validation on 0 sequences"),
        ({"micro_batch_size": 0}, "0 at a time"),
        ({"count": 3, "world_size": 4}, "fewer than one for each of 4 processes"),
        ({"rank": 1}, "rank 1 of 1 processes"),
    ],
)
def test_impossible_validation_is_refused_before_the_first_window(options, match):
    options = {"count": 10, "micro_batch_size": 4} | options
    with pytest.raises(RefusedError, match=match):
        validation_windows(counting(1000), context_length=8, **options)

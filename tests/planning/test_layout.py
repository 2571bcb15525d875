"""How GPUs share a model, and who holds the most of a tensor."""

import pytest
import torch

from mars.config.errors import RefusedError
from mars.planning.layout import Layout, layout_of, layouts


@pytest.mark.parametrize("shape", [(1,), (3,), (7, 5), (8, 5), (50257, 3), (768, 3, 2)])
@pytest.mark.parametrize("shards", [1, 2, 3, 4, 8, 16])
def test_the_largest_part_is_the_first_chunk_of_rows(shape, shards):
    parts = torch.empty(shape, device="meta").chunk(shards)
    assert Layout("fsdp2", replicas=1, shards=shards).elements(shape) == parts[0].numel()
    assert parts[0].numel() == max(part.numel() for part in parts)


@pytest.mark.parametrize("shape", [(1, 4), (7, 5), (16, 3), (9,)])
@pytest.mark.parametrize("shards", [2, 4, 8])
def test_the_largest_part_is_what_a_dtensor_holds(shape, shards):
    from torch.distributed.tensor import Shard

    rows, _ = Shard.local_shard_size_and_offset(shape[0], shards, 0)
    held = rows * torch.empty(shape, device="meta")[0].numel()
    assert Layout("fsdp2", replicas=1, shards=shards).elements(shape) == held


@pytest.mark.parametrize(
    ("gpus", "replicas", "modes"),
    [
        (1, None, {"none": (1, 1)}),
        (2, None, {"ddp": (2, 1), "fsdp2": (1, 2)}),
        (8, None, {"ddp": (8, 1), "fsdp2": (1, 8)}),
        (12, None, {"ddp": (12, 1), "fsdp2": (1, 12)}),
        (32, None, {"ddp": (32, 1), "fsdp2": (1, 32), "hsdp": (4, 8)}),
        (8, 2, {"ddp": (8, 1), "fsdp2": (1, 8), "hsdp": (2, 4)}),
    ],
)
def test_all_modes_that_are_possible_are_found(gpus, replicas, modes):
    found = {each.mode: each for each in layouts(gpus=gpus, replicas=replicas)}
    assert {m: (each.replicas, each.shards) for m, each in found.items()} == modes
    assert {each.gpus for each in found.values()} == {gpus}


@pytest.mark.parametrize(
    ("mode", "gpus", "replicas", "message"),
    [
        ("none", 0, None, "--gpus must be at least 1, got 0"),
        ("none", 2, None, "--parallel none is one GPU, got --gpus 2"),
        ("ddp", 1, None, "--parallel ddp needs several GPUs"),
        ("fsdp2", 8, 2, "--replicas 2 has no meaning for fsdp2; it belongs to hsdp"),
        ("hsdp", 8, None, "8 GPUs are not several nodes of 8"),
        ("hsdp", 20, None, "20 GPUs are not several nodes of 8; say into how many"),
        ("hsdp", 8, 3, "--replicas 3 does not divide --gpus 8"),
        ("hsdp", 8, 1, "fsdp2 is one group"),
        ("hsdp", 8, 8, "ddp has a GPU in each"),
        ("hsdp", 8, 0, "--replicas 0 does not divide"),
        ("hsdp", 8, -2, "--replicas -2 does not divide"),
    ],
)
def test_an_impossible_mode_is_refused(mode, gpus, replicas, message):
    with pytest.raises(RefusedError, match="--") as refusal:
        layout_of(mode, gpus=gpus, replicas=replicas)
    assert message in str(refusal.value)


def test_replicas_of_one_gpu_are_refused():
    with pytest.raises(RefusedError, match="--replicas 2 needs several GPUs"):
        layouts(gpus=1, replicas=2)

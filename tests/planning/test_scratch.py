"""What an optimizer's step holds beside its state, by formula and measured."""

from dataclasses import replace

import pytest
import torch

from mars.bench.measure import held_bytes
from mars.config.schema import Model
from mars.models.gpt2 import GPT2
from mars.optim import orthogonalize
from mars.planning.inventory import take_inventory
from mars.planning.layout import Layout, layout_of
from mars.planning.scratch import scratch_bytes
from mars.training.optimizers import build_optimizer
from planning.steps import ALONE, OPTIMIZERS, WIDE, like_a_gpu

# Large enough for several chunks of a CPU, and matrices above one batch of them.
LARGE = Model(layers=2, heads=4, width=512, context_length=16, vocab_size=2048)
EAGER = {name: replace(optimizer, fused=False) for name, optimizer in OPTIMIZERS.items()}


def measured(model: Model, name: str) -> int:
    """Return the most that a second step holds, as torch's allocator counts it."""
    net = GPT2(model)
    optimizer = build_optimizer(EAGER[name], net)
    for _ in range(2):
        for param in net.parameters():
            param.grad = torch.randn_like(param)
        peak, left = held_bytes(optimizer.step)
    return peak - max(left, 0)


def predicted(model: Model, name: str, layout: Layout = ALONE) -> int:
    return scratch_bytes(take_inventory(model, EAGER[name]), EAGER[name], layout)


@pytest.mark.parametrize("name", ["mars-adamw", "mars-lion", "lean", "bfloat16 last_grad"])
def test_the_eager_engine_holds_chunks(name, monkeypatch):
    like_a_gpu(monkeypatch)
    assert predicted(LARGE, name) == pytest.approx(measured(LARGE, name), rel=0.05, abs=1000)


@pytest.mark.parametrize("name", ["mars-m", "mars-shampoo", "lean mars-m"])
def test_matrix_rules_hold_a_batch_of_matrices(name, monkeypatch):
    like_a_gpu(monkeypatch)
    # In float32, whatever this machine is fastest in.
    monkeypatch.setattr(orthogonalize, "default_dtype", lambda device: torch.float32)
    assert predicted(LARGE, name) == pytest.approx(measured(LARGE, name), rel=0.05, abs=1000)


@pytest.mark.parametrize("name", ["mars-adamw", "mars-lion", "lean", "adamw", "exact"])
def test_fused_steps_hold_nothing(name):
    inventory = take_inventory(LARGE, OPTIMIZERS[name])
    assert scratch_bytes(inventory, OPTIMIZERS[name], ALONE) == 0


def test_a_chunk_is_no_larger_than_the_model():
    elements = take_inventory(WIDE, EAGER["mars-adamw"]).elements
    assert predicted(WIDE, "mars-adamw") == 4 * elements
    quarter = layout_of("fsdp2", gpus=4, replicas=None)
    assert predicted(WIDE, "mars-adamw", quarter) == elements


def test_torch_without_its_fused_form_holds_a_copy_of_the_parameters():
    elements = take_inventory(LARGE, EAGER["adamw"]).elements
    assert predicted(LARGE, "adamw") == predicted(LARGE, "nadamw") == 4 * elements


def test_lion_holds_two_copies_of_the_largest_tensor():
    assert predicted(LARGE, "lion") == 2 * 4 * LARGE.vocab_size * LARGE.width


def test_divided_matrices_take_memory_that_does_not_grow_with_replicas():
    gpus = 64
    ddp, fsdp2 = (layout_of(mode, gpus=gpus, replicas=None) for mode in ("ddp", "fsdp2"))
    groups = layout_of("hsdp", gpus=gpus, replicas=8)
    fused = OPTIMIZERS["mars-m"]
    wide = replace(LARGE, width=1024)
    inventory = take_inventory(wide, fused)
    largest = 4 * wide.width**2  # one matrix is more than a batch, so it goes alone
    alone = scratch_bytes(inventory, fused, ALONE)
    waves = {
        layout.mode: scratch_bytes(inventory, fused, layout) - alone
        for layout in (ddp, fsdp2, groups)
    }
    assert waves == {
        "ddp": 4 * (2**24 + 3 * largest),  # a bounded number of broadcasts
        "fsdp2": 4 * 8 * largest,
        "hsdp": 4 * (2**24 + 9 * largest),
    }

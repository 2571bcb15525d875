"""What a forward pass keeps, by formula, is what autograd saves."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from mars.models.gpt2 import GPT2
from mars.planning.activations import Activations, activations_of, compute_bytes
from mars.planning.inventory import take_inventory
from mars.planning.memory import Held, memory_of
from planning.steps import ALONE, SHAPES, WIDE, batch, run_of

# Beside what is counted, autograd saves some scalars and the total weight of the loss.
SCALARS = 64


def saved_bytes(run, *, weights: bool) -> int:
    """Return the bytes of all storages that one forward pass saves; casts of weights if asked."""
    model = GPT2(run.model, activation_checkpointing=run.training.activation_checkpointing)
    own = {param.untyped_storage().data_ptr() for param in model.parameters()}
    shapes = {param.shape for param in model.parameters() if param.ndim == 2}
    shapes |= {shape[::-1] for shape in shapes}
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        is_weight = tensor.shape in shapes and tensor.dtype != torch.float32
        if storage.data_ptr() not in own and is_weight == weights:
            # Keeping the tensor keeps its address from being used again.
            found[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    ((inputs, targets),) = batch(run)
    half = run.training.precision != "float32"
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16) if half else nullcontext(),
    ):
        loss = model(inputs, targets)
    assert loss.requires_grad
    return sum(nbytes for nbytes, _ in found.values())


def counted(run) -> Activations:
    return activations_of(run.model, run.training, micro_batch_size=run.training.micro_batch_size)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_activations_are_what_autograd_saves(shape, precision):
    run = run_of(SHAPES[shape], precision=precision)
    assert counted(run).total == pytest.approx(saved_bytes(run, weights=False), abs=SCALARS)


@pytest.mark.parametrize("size", [1, 2, 8])
def test_activations_grow_with_the_micro_batch(size):
    run = run_of(batch_size=size, micro_batch_size=size)
    assert counted(run).total == pytest.approx(saved_bytes(run, weights=False), abs=SCALARS)
    assert counted(run).total == size * counted(run_of(batch_size=1, micro_batch_size=1)).total


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_checkpointed_block_keeps_its_input_alone(precision):
    run = run_of(precision=precision, activation_checkpointing=True)
    made = counted(run)
    tokens = 4 * WIDE.context_length
    assert made.stream == 4 * tokens * WIDE.width
    assert made.total == WIDE.layers * made.stream + made.head + made.log_probabilities
    assert made.total == pytest.approx(saved_bytes(run, weights=False), abs=SCALARS)


def test_casts_of_weights_are_those_that_autograd_saves():

    run = run_of(precision="bfloat16")
    held = Held(
        inventory=take_inventory(run.model, run.optimizer),
        layout=ALONE,
        activations=counted(run),
        micro_batches=1,
        scratch=0,
    )
    assert memory_of(held, is_exact=False).casts == saved_bytes(run, weights=True)


def test_float32_products_are_twice_those_of_half_precision():
    wide, half = (counted(run_of(precision=p)) for p in ("float32", "bfloat16"))
    features = 4 * WIDE.context_length * WIDE.width
    assert wide.block - half.block == 14 * 2 * features
    assert wide.log_probabilities == half.log_probabilities
    assert compute_bytes("float16") == compute_bytes("bfloat16") == 2


def test_dropout_adds_a_byte_for_each_number_it_looks_at():
    plain, dropped = (counted(run_of(replace(WIDE, dropout=p))) for p in (0.0, 0.1))
    features = 4 * WIDE.context_length * WIDE.width
    assert dropped.block - plain.block == 2 * features
    assert dropped.head - plain.head == features

"""The parameters of a plan are those of the model, under the rules of its optimizer."""

from dataclasses import replace

import pytest
import torch

from mars.models.gpt2 import GPT2
from mars.planning.inventory import take_inventory
from mars.training.optimizers import build_optimizer
from planning.steps import OPTIMIZERS, SHAPES, WIDE

MATRIX_RULES = {
    "mars-m": "mars-m",
    "mars-shampoo": "mars-shampoo",
    "exact mars-m": "mars-m",
    "lean mars-m": "mars-m",
    "muon": "muon",
}
# Bytes of state a parameter, of matrices and of vectors.
BYTES = {
    "mars-adamw": (12, 8),
    "mars-lion": (8, 8),
    "mars-shampoo": (8, 8),
    "mars-m": (8, 8),
    "exact": (12, 12),
    "exact mars-m": (8, 12),
    "lean": (8, 8),
    "lean mars-m": (4, 8),
    "bfloat16 last_grad": (10, 8),
    "optimize_1d": (12, 12),
    "adamw": (8, 8),
    "nadamw": (8, 8),
    "lion": (4, 4),
    "muon": (4, 8),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["mars-m", "muon", "adamw"])
def test_every_parameter_of_the_model_is_there_once_and_in_order(name, shape):
    net = GPT2(SHAPES[shape])
    expected = [(name, tuple(param.shape)) for name, param in net.named_parameters()]
    inventory = take_inventory(SHAPES[shape], OPTIMIZERS[name])
    assert [(entry.name, entry.shape) for entry in inventory] == expected
    assert inventory.elements == net.parameter_count()
    assert inventory.flops_per_token == net.flops_per_token()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_matrices_and_vectors_have_the_bytes_of_their_rules(name):
    matrices, vectors = BYTES[name]
    for entry in take_inventory(WIDE, OPTIMIZERS[name]):
        if entry.role in ("matrix", "vector"):
            each = matrices if entry.role == "matrix" else vectors
            assert entry.state_bytes == each * entry.elements, entry.name


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_only_hidden_matrices_are_orthogonalised(name):
    entries = take_inventory(WIDE, OPTIMIZERS[name])
    found = {entry.name for entry in entries if entry.is_orthogonalized}
    matrices = {entry.name for entry in entries if entry.role == "matrix"}
    assert found == (matrices if name in MATRIX_RULES else set())
    rules = {entry.rule for entry in entries if entry.is_orthogonalized}
    assert rules == ({MATRIX_RULES[name]} if name in MATRIX_RULES else set())


@pytest.mark.parametrize("name", ["mars-adamw", "mars-lion", "mars-m", "exact", "lean"])
def test_mars_has_the_rows_of_its_own_description(name):
    with torch.device("meta"):
        net = GPT2(WIDE)
    described = build_optimizer(OPTIMIZERS[name], net).describe()
    rows = {row.tensor: (row.role, row.rule, row.state_bytes) for row in described}
    inventory = take_inventory(WIDE, OPTIMIZERS[name])
    assert {e.name: (e.role, e.rule, e.state_bytes) for e in inventory} == rows
    assert sum(entry.visit_bytes for entry in inventory) == described.visit_bytes


def test_blocks_and_the_rest_are_all():
    inventory = take_inventory(WIDE, OPTIMIZERS["adamw"])
    names = [entry.name for entry in inventory.outside]
    assert names == ["wte.weight", "wpe.weight", "ln_f.weight"]
    blocks = [entry for entry in inventory if entry.block is not None]
    assert {entry.block for entry in blocks} == set(range(WIDE.layers))
    assert len(blocks) == WIDE.layers * len(inventory.first_block)
    assert sum(entry.elements for entry in inventory.first_block) * WIDE.layers == sum(
        entry.elements for entry in blocks
    )


def test_the_largest_model_takes_no_memory():
    huge = replace(WIDE, layers=48, width=12288, heads=96, vocab_size=50304)
    inventory = take_inventory(huge, OPTIMIZERS["mars-adamw"])
    assert inventory.elements > 80e9
    assert inventory.state_bytes == pytest.approx(12 * inventory.elements, rel=1e-4)

"""What a step moves and multiplies, and how long that takes."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mars.bench.options import Plan
from mars.bench.shapes import size_of
from mars.bench.subjects import subjects
from mars.config.schema import Model, Optimizer
from mars.optim.orthogonalize import orthogonalize
from mars.planning.gpus import gpu_of
from mars.planning.inventory import Entry, take_inventory
from mars.planning.layout import layout_of
from mars.planning.passes import moved_bytes, traffic_of
from mars.planning.timing import (
    model_seconds,
    moved_seconds,
    newton_schulz_flops,
    newton_schulz_seconds,
)
from planning.steps import ALONE, OPTIMIZERS, WIDE

UNCLIPPED = Optimizer(clip="none")


@pytest.mark.parametrize(
    ("rule", "optimizer", "expected"),
    [
        ("adamw", Optimizer(), 28),
        ("mars-adamw", Optimizer(), 44),
        ("mars-adamw", UNCLIPPED, 36),
        ("mars-adamw", OPTIMIZERS["lean"], 28),
        ("mars-adamw", OPTIMIZERS["bfloat16 last_grad"], 38),
        ("mars-lion", OPTIMIZERS["mars-lion"], 36),
        ("mars-m", OPTIMIZERS["mars-m"], 44),
        ("mars-m", OPTIMIZERS["lean mars-m"], 28),
        ("lion", OPTIMIZERS["lion"], 20),
        ("muon", OPTIMIZERS["muon"], 28),
        # No gradient is remembered (4 less), one is copied (8), two exchanges and a copy (56).
        ("mars-adamw", OPTIMIZERS["exact"], 44 - 4 + 8 + 56),
        ("adamw", OPTIMIZERS["exact"], 28 + 56),
    ],
)
def test_a_rule_moves_the_bytes_of_its_passes(rule, optimizer, expected):
    assert moved_bytes(rule, optimizer) == expected


def test_passes_of_exact_mode_do_not_write_the_previous_gradient_after_reading_it():
    passes = traffic_of("mars-m", OPTIMIZERS["exact mars-m"]).passes
    assert passes[:3] == ("g l ->", "g m l -> m d", "p d -> p")


@pytest.mark.parametrize("mars_type", ["mars-adamw", "mars-lion", "mars-shampoo", "mars-m"])
@pytest.mark.parametrize("lean", [False, True])
def test_a_step_of_gpt2_small_moves_what_the_benchmark_counts(mars_type, lean):
    engine = "lean-eager" if lean else "eager"
    asked = Plan(("small",), (mars_type,), (engine,), 1, 1, None, None, ports=False, quick=False)
    found, _ = subjects(asked)
    subject = next(each for each in found if each.name == f"{mars_type} {engine}")
    second = {"second_moment": "gradient"} if mars_type == "mars-adamw" else {}
    options = {"lean": True, "clip": "none", **second} if lean else {}
    model = Model(vocab_size=50257, bias=True)
    inventory = take_inventory(model, Optimizer(name=mars_type, **options))
    moved = sum(entry.moved_bytes for entry in inventory)
    assert moved == subject.moved_bytes(size_of("small"))


@pytest.mark.parametrize("shape", [(64, 64), (64, 256), (256, 64)])
def test_newton_schulz_has_the_operations_that_torch_counts(shape):
    entry = Entry(
        name="h.0.w",
        shape=shape,
        role="matrix",
        rule="mars-m",
        state_bytes=0,
        visit_bytes=0,
        moved_bytes=0,
    )
    counter = FlopCounterMode(display=False)
    with counter:
        orthogonalize([torch.randn(shape)], dtype=torch.float32)
    assert newton_schulz_flops(entry) == counter.get_total_flops()


def test_owners_divide_the_matrices_but_not_one_of_them():
    inventory, gpu = take_inventory(WIDE, OPTIMIZERS["mars-m"]), gpu_of("h100")
    flops = [newton_schulz_flops(entry) for entry in inventory if entry.is_orthogonalized]
    assert len(flops) == 4 * WIDE.layers

    def seconds(gpus: int) -> float:
        layout = layout_of("fsdp2", gpus=gpus, replicas=None) if gpus > 1 else ALONE
        return newton_schulz_seconds(inventory, layout=layout, gpu=gpu)

    assert seconds(1) == pytest.approx(sum(flops) / gpu.half_flops)
    assert seconds(2) == pytest.approx(sum(flops) / 2 / gpu.half_flops)
    assert seconds(1024) == pytest.approx(max(flops) / gpu.half_flops)


def test_elementwise_rules_orthogonalise_nothing():
    inventory = take_inventory(WIDE, OPTIMIZERS["mars-adamw"])
    assert newton_schulz_seconds(inventory, layout=ALONE, gpu=gpu_of("h100")) == 0


def test_a_sharded_step_moves_its_part():
    inventory, gpu = take_inventory(WIDE, OPTIMIZERS["mars-adamw"]), gpu_of("a100-80gb")
    alone = moved_seconds(inventory, layout=ALONE, gpu=gpu)
    moved = sum(entry.moved_bytes for entry in inventory)
    assert alone == pytest.approx(moved / 2039e9)
    quarter = layout_of("fsdp2", gpus=4, replicas=None)
    assert moved_seconds(inventory, layout=quarter, gpu=gpu) == pytest.approx(alone / 4)


def test_checkpointing_computes_the_forward_pass_twice():
    inventory, gpu = take_inventory(WIDE, Optimizer()), gpu_of("h100")

    def seconds(precision: str, *, again: bool) -> float:
        return model_seconds(
            inventory, tokens=1000, precision=precision, is_checkpointed=again, gpu=gpu
        )

    plain = seconds("bfloat16", again=False)
    assert plain == pytest.approx(1000 * inventory.flops_per_token / 989e12)
    assert seconds("bfloat16", again=True) == pytest.approx(4 / 3 * plain)
    assert seconds("float32", again=False) == pytest.approx(989 / 67 * plain)

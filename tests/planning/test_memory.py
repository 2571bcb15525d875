"""What a plan says of memory, held against real steps in one process."""

from dataclasses import replace

import pytest

from mars.config.schema import Model, Optimizer, Run, Training
from mars.planning import scratch
from mars.planning.activations import activations_of
from mars.planning.inventory import take_inventory
from mars.planning.layout import Layout, layout_of
from mars.planning.memory import Held, Memory, memory_of
from planning.steps import (
    ALONE,
    OPTIMIZERS,
    SHAPES,
    SHORT,
    WIDE,
    WORDY,
    Measured,
    like_a_gpu,
    predicted,
    run_of,
)

# The eager engine: what the other would compile takes half a minute.
EAGER = {name: replace(optimizer, fused=False) for name, optimizer in OPTIMIZERS.items()}


@pytest.mark.parametrize("shape", [SHORT, SHAPES["bias"]], ids=["short", "bias"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_is_predicted_to_the_byte(name, shape):
    run = run_of(shape, EAGER[name])
    assert predicted(run).memory.optimizer_state == Measured(run).state_bytes


@pytest.mark.parametrize("name", ["mars-adamw", "exact", "lean", "adamw", "mars-m"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_peak_of_a_step_is_predicted(shape, name, monkeypatch):
    like_a_gpu(monkeypatch)
    optimizer = OPTIMIZERS[name] if name == "adamw" else EAGER[name]
    run = run_of(SHAPES[shape], optimizer)
    assert predicted(run).memory.peak == pytest.approx(Measured(run).peak, rel=0.05)


@pytest.mark.parametrize(
    "training",
    [
        {"precision": "bfloat16"},
        {"activation_checkpointing": True},
        {"activation_checkpointing": True, "precision": "bfloat16"},
        {"batch_size": 8},
        {"batch_size": 8, "precision": "bfloat16"},
        {"batch_size": 8, "activation_checkpointing": True},
        {"micro_batch_size": 1, "batch_size": 1},
    ],
    ids=lambda training: " ".join(f"{key}={value}" for key, value in training.items()),
)
@pytest.mark.parametrize("shape", [WIDE, WORDY, SHORT], ids=["wide", "wordy", "short"])
def test_the_peak_is_predicted_in_every_form_of_training(shape, training):
    run = run_of(shape, OPTIMIZERS["adamw"], **training)
    assert predicted(run).memory.peak == pytest.approx(Measured(run).peak, rel=0.05)


def memory(run: Run, layout: Layout, *, micro_batches: int = 1) -> Memory:
    inventory = take_inventory(run.model, run.optimizer)
    held = Held(
        inventory=inventory,
        layout=layout,
        activations=activations_of(run.model, run.training, micro_batch_size=4),
        micro_batches=micro_batches,
        scratch=scratch.scratch_bytes(inventory, run.optimizer, layout),
    )
    return memory_of(held, is_exact=bool(run.optimizer.exact))


def sharded(gpus: int) -> Layout:
    return layout_of("fsdp2", gpus=gpus, replicas=None)


def test_a_sharded_model_holds_its_part_of_parameters_gradients_and_state():
    run = run_of()
    whole, part = memory(run, ALONE), memory(run, sharded(4))
    for name in ("parameters", "gradients", "optimizer_state"):
        assert getattr(part, name) == getattr(whole, name) / 4
    assert part.activations == whole.activations


def test_hsdp_divides_by_the_shards_and_not_by_the_replicas():
    run = run_of()
    groups = layout_of("hsdp", gpus=8, replicas=2)
    for name in ("parameters", "gradients", "optimizer_state", "gathered"):
        assert getattr(memory(run, groups), name) == getattr(memory(run, sharded(4)), name)


def test_ddp_holds_what_one_gpu_holds_and_gradients_all_the_time():
    run = run_of()
    alone, many = memory(run, ALONE), memory(run, layout_of("ddp", gpus=4, replicas=None))
    for name in ("parameters", "gradients", "optimizer_state", "activations"):
        assert getattr(many, name) == getattr(alone, name)
    extra = many.moments["loss backward"] - alone.moments["loss backward"]
    assert extra == many.gradients


def test_sharded_gradients_are_whole_between_micro_batches():
    run = run_of()
    once, twice = (memory(run, sharded(4), micro_batches=count) for count in (1, 2))
    assert once.gradients == twice.gradients / 4
    assert twice.gradients == twice.parameters * 4


def test_exact_mode_under_ddp_holds_gradients_three_times():
    run = run_of(optimizer=OPTIMIZERS["exact"])
    inventory = take_inventory(run.model, run.optimizer)
    visited = sum(entry.visit_bytes for entry in inventory)
    many = memory(run, layout_of("ddp", gpus=4, replicas=None))
    assert visited > 0
    assert memory(run, ALONE).previous_gradients == visited
    assert many.previous_gradients == visited + many.gradients


def test_gathered_layers_are_two_blocks_in_the_precision_and_the_rest_in_float32():
    run = run_of(precision="bfloat16")
    width, vocabulary, context = WIDE.width, WIDE.vocab_size, WIDE.context_length
    block = 12 * width**2 + 2 * width
    outside = (vocabulary + context + 1) * width
    assert memory(run, sharded(2)).gathered == 2 * 2 * block + 4 * outside


def test_the_peak_is_the_largest_moment():
    made = memory(run_of(), ALONE)
    assert made.peak == max(made.moments.values()) == made.moments[made.peak_moment]


def test_gpt2_small_has_the_parameters_and_state_of_the_paper():
    small = take_inventory(Model(), Optimizer())
    assert small.elements == 124_373_760
    assert small.state_bytes == 12 * 124_354_560 + 8 * 19_200
    lean = Optimizer(lean=True, clip="none", second_moment="gradient")
    assert take_inventory(Model(), lean).state_bytes == 8 * 124_373_760


def test_a_checkpointed_step_peaks_lower():
    kept = predicted(Run(training=Training(micro_batch_size=4, batch_size=4))).memory
    again = predicted(
        Run(training=Training(micro_batch_size=4, batch_size=4, activation_checkpointing=True))
    ).memory
    assert again.peak < kept.peak
    assert again.activations < kept.activations

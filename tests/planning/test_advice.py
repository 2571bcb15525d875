"""What is tried where nothing fits."""

from dataclasses import replace

import pytest

from mars.planning.advice import advise
from mars.planning.estimate import USABLE_SHARE, estimate, inventory_of
from mars.planning.gpus import GIGA, gpu_of
from mars.planning.request import make_request


def planned(model: str, *, memory: float = 80, **keywords):
    gpu = replace(gpu_of("h100"), memory_bytes=int(memory * GIGA))
    request = make_request(model, gpu=gpu, **keywords)
    inventory = inventory_of(request)
    return request, [estimate(request, layout, inventory) for layout in request.layouts]


def test_nothing_is_advised_where_something_fits():
    request, estimates = planned("gpt3-13b", gpus=16)
    assert [each.fits for each in estimates] == [False, True, True]
    assert advise(request, estimates) is None


def test_another_mode_comes_first():
    made = advise(*planned("gpt3-13b", gpus=16, mode="ddp"))
    assert made.options == ("--parallel", "fsdp2")
    assert made.estimate.fits


def test_then_checkpointing_then_a_smaller_micro_batch_then_more_gpus():
    settings = ["micro_batch_size=8"]
    _, (small,) = planned("gpt2-small", gpus=1, settings=settings)
    checkpointed, (again,) = planned(
        "gpt2-small", gpus=1, settings=[*settings, "activation_checkpointing=true"]
    )
    assert again.memory.peak < small.memory.peak
    just = again.memory.peak / USABLE_SHARE / GIGA + 0.1
    made = advise(*planned("gpt2-small", memory=just, gpus=1, settings=settings))
    assert made.options == ("--activation-checkpointing",)
    assert made.estimate.memory.peak == again.memory.peak
    made = advise(*planned("gpt2-small", memory=just - 1, gpus=1, settings=settings))
    assert made.options == ("--activation-checkpointing", "--micro-batch-size", "1")
    assert made.estimate.micro_batch_size == 1
    assert checkpointed.micro_batch_size == 8


def test_more_gpus_are_counted_in_doublings():
    made = advise(*planned("gpt3-13b", memory=60, gpus=2))
    _, (too_few,) = planned(
        "gpt3-13b", memory=60, gpus=4, mode="fsdp2", settings=["activation_checkpointing=true"]
    )
    assert made.options == ("--activation-checkpointing", "--gpus", "8")
    assert made.estimate.layout.shards == 8
    assert not too_few.fits


@pytest.mark.parametrize("gpus", [1, 8])
def test_what_can_never_fit_has_no_advice(gpus):
    request, estimates = planned("gpt3-13b", memory=1, gpus=gpus)
    assert advise(request, estimates) is None
    assert not any(each.fits for each in estimates)


def test_the_advice_is_what_the_command_then_plans():
    request, estimates = planned("gpt2-xl", memory=24, gpus=1)
    made = advise(request, estimates)
    assert made.options[:3] == ("--activation-checkpointing", "--micro-batch-size", "1")
    gpus = int(made.options[-1])
    _, again = planned(
        "gpt2-xl",
        memory=24,
        gpus=gpus,
        settings=["activation_checkpointing=true", "micro_batch_size=1"],
    )
    peaks = {each.layout.mode: each.memory.peak for each in again}
    assert peaks[made.estimate.layout.mode] == made.estimate.memory.peak


def test_gradients_that_accumulate_whole_are_avoided_by_larger_micro_batches():
    asked = {"gpus": 8, "mode": "fsdp2"}
    request, estimates = planned("gpt3-13b", settings=["batch_size=16"], **asked)
    assert (request.micro_batches, estimates[0].fits) == (2, False)
    made = advise(request, estimates)
    assert made.options == ("--activation-checkpointing", "--micro-batch-size", "2")
    assert made.estimate.micro_batches == 1
    settings = ["batch_size=16", "micro_batch_size=2", "activation_checkpointing=true"]
    _, (again,) = planned("gpt3-13b", settings=settings, **asked)
    assert again.memory == made.estimate.memory


def test_a_batch_that_was_asked_for_stays_on_more_gpus():
    settings = ["batch_size=24", "activation_checkpointing=true"]
    made = advise(*planned("gpt3-13b", memory=60, gpus=2, settings=settings))
    assert made.options == ("--gpus", "8", "--micro-batch-size", "3")
    assert (made.estimate.micro_batch_size, made.estimate.micro_batches) == (3, 1)
    # Sixteen GPUs, which would do, do not divide 24 sequences.
    made = advise(*planned("gpt3-13b", memory=30, gpus=2, settings=settings))
    assert made is None


def test_needing_is_the_peak_over_the_usable_share():
    _, estimates = planned("gpt2-small", gpus=1)
    (only,) = estimates
    assert only.needed_bytes == int(only.memory.peak / USABLE_SHARE)
    assert only.fits == (only.needed_bytes <= 80 * GIGA)

"""Gradients at any point: of the batch that was asked for, with the dropout that was asked for."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diagnosis.known import make_correction
from mars.config.schema import Model
from mars.diagnosis.gradients import Gradients, make_seed
from mars.diagnosis.measure import Experiment
from mars.diagnosis.plan import Plan
from mars.models.gpt2 import GPT2

SHAPE = {"layers": 1, "heads": 2, "width": 8, "context_length": 6, "vocab_size": 11}


def gpt2(*, dropout: float = 0.0, **options) -> GPT2:
    config = Model(**SHAPE, dropout=dropout)
    generator = torch.Generator().manual_seed(0)
    return GPT2(config, generator=generator, **options).double().train()


def batch(size: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randint(11, (size, 6), generator=generator) for _ in range(2))


def made(model: GPT2, *, part_size: int = 100) -> Gradients:
    return Gradients(
        copy.deepcopy(model), lambda m, b: m(*b), samples=lambda _: None, part_size=part_size
    )


def point_of(model: GPT2) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def assert_close(ours, theirs) -> None:
    assert len(ours) == len(theirs)
    for left, right in zip(ours, theirs, strict=True):
        assert torch.allclose(left, right, rtol=1e-9, atol=1e-12)


def test_a_gradient_is_that_of_the_model_at_the_point():
    model = gpt2()
    gradients = made(model)
    there = [p + 0.1 for p in point_of(model)]
    with torch.no_grad():
        for param, value in zip(model.parameters(), there, strict=True):
            param.copy_(value)
    model(*batch(5)).backward()
    assert_close(gradients.at(there, batch(5), seed=0), [p.grad for p in model.parameters()])


@pytest.mark.parametrize("part_size", [1, 2, 3, 4])
def test_parts_of_any_size_give_the_gradient_of_the_whole(part_size):
    model = gpt2()
    whole = made(model).at(point_of(model), batch(4), seed=0)
    assert_close(made(model, part_size=part_size).at(point_of(model), batch(4), seed=0), whole)


def test_a_gradient_does_not_depend_on_the_one_before():
    model = gpt2()
    gradients, here = made(model), point_of(model)
    first = gradients.at(here, batch(3), seed=0)
    gradients.at([2 * p for p in here], batch(5), seed=1)
    again = gradients.at(here, batch(3), seed=0)
    assert all(torch.equal(left, right) for left, right in zip(first, again, strict=True))
    assert all(param.grad is None for param in gradients.model.parameters())


def test_a_seed_decides_the_dropout():
    model = gpt2(dropout=0.5)
    gradients, here = made(model), point_of(model)
    first, again, other = (gradients.at(here, batch(3), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])


def test_both_evaluations_of_a_sample_see_the_same_dropout():
    # On a path that stands still they are then equal, and the correction is nothing.
    model = gpt2(dropout=0.5)
    gradients = Gradients(
        copy.deepcopy(model),
        lambda m, b: m(*b),
        samples=lambda _: lambda numbers: batch(len(numbers)),
        part_size=2,
    )
    plan = Plan(steps=(4,), streams=3, history=4, micro_batch_size=3, large_batch=6)
    experiment = Experiment(
        gradients=gradients, correction=make_correction(gamma=0.5), plan=plan, seed=0
    )
    path = [point_of(model)] * 5
    streams = experiment.measure(path, step=4, tick=lambda _: None).streams
    assert torch.equal(streams["exact"].mean[0], streams["ema"].mean[0])
    # The samples are always the same, so what differs from step to step is the dropout.
    assert not torch.allclose(streams["approx"].mean[0], streams["ema"].mean[0])
    assert streams["ema"].variance([0]) > 0


def test_recomputed_activations_are_those_of_the_point():
    model, recomputing = gpt2(), gpt2(activation_checkpointing=True)
    there = [1.5 * p for p in point_of(model)]
    assert_close(
        made(recomputing).at(there, batch(2), seed=0), made(model).at(there, batch(2), seed=0)
    )


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9)), unique=True))
def test_seeds_of_different_origin_differ(origins):
    seeds = [make_seed(*origin) for origin in origins]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    # Those of runs are small numbers, as people choose them.
    assert all(seed > 2**32 for seed in seeds)

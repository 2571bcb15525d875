"""Schedules: pure functions of the step."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mars.config.schema import Schedule
from mars.training.schedule import factor

KINDS = ["cosine", "linear", "wsd", "multistep", "constant"]


def rates(steps: int, **options) -> list[float]:
    schedule = Schedule(**options)
    return [factor(schedule, step=i, steps=steps, lr=1.0) for i in range(steps)]


@given(
    kind=st.sampled_from(KINDS),
    warmup=st.integers(0, 30),
    steps=st.integers(31, 200),
    floor=st.floats(0, 1),
)
def test_a_schedule_rises_to_the_peak_and_never_leaves_its_bounds(kind, warmup, steps, floor):
    found = rates(steps, kind=kind, warmup_steps=warmup, min_lr=floor)
    assert max(found) == 1
    assert found[max(0, warmup - 1)] == 1
    assert found[:warmup] == sorted(found[:warmup])
    after = found[warmup:]
    assert after == sorted(after, reverse=True)
    if kind in ("cosine", "linear", "wsd"):
        assert min(after) >= floor - 1e-12


def test_cosine_is_that_of_torch():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40, eta_min=0.1)
    for ours in rates(40, kind="cosine", min_lr=0.1):
        assert math.isclose(ours, optimizer.param_groups[0]["lr"], abs_tol=1e-12)
        optimizer.step()
        theirs.step()


def test_multistep_is_that_of_torch():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    theirs = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[20, 30], gamma=0.1)
    for ours in rates(40, kind="multistep"):
        assert math.isclose(ours, optimizer.param_groups[0]["lr"], rel_tol=1e-12)
        optimizer.step()
        theirs.step()


def test_the_stable_part_of_wsd_is_flat_and_its_decay_linear():
    found = rates(100, kind="wsd", warmup_steps=10, decay_fraction=0.5, min_lr=0.0)
    assert found[10:55] == [1.0] * 45
    steps = [a - b for a, b in pairwise(found[55:])]
    assert all(math.isclose(s, 1 / 45, rel_tol=1e-9) for s in steps)


@pytest.mark.parametrize("lr", [6e-3, 6e-4])
def test_the_floor_is_a_rate_not_a_fraction(lr):
    schedule = Schedule(kind="linear", min_lr=3e-5)
    assert math.isclose(lr * factor(schedule, step=1000, steps=1000, lr=lr), 3e-5)

"""Random states: captured as plain values, restored bit by bit."""

import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mars.checkpoint import capture_random_state, load, restore_random_state_, save


def draw() -> tuple[list[object], list[object], list[object]]:
    """Draw from every generator, an odd number of normals so that one is left in the buffer."""
    return (
        [random.random(), random.gauss(0, 1), random.getrandbits(100), random.sample(range(99), 9)],
        [*np.random.rand(5), np.random.randn(), *np.random.permutation(9)],
        [*torch.rand(5).tolist(), *torch.randn(17).tolist(), *torch.randperm(9).tolist()],
    )


def through_a_checkpoint(tmp_path, state):
    return load(save(tmp_path, step=1, model={}, training=state, keep=1)).training


@pytest.mark.parametrize("warm_up", range(3))
def test_every_generator_goes_on_bit_by_bit(tmp_path, warm_up):
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    for _ in range(warm_up):
        draw()  # a normal is left over in the buffers of Python and NumPy
    state = through_a_checkpoint(tmp_path, capture_random_state())
    expected = draw()
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    assert draw() != expected
    restore_random_state_(state)
    assert draw() == expected


def test_restoring_what_was_captured_changes_nothing():
    before = capture_random_state()
    restore_random_state_(before)
    after = capture_random_state()
    assert torch.equal(before.pop("torch"), after.pop("torch"))
    assert before == after


def test_a_state_loaded_to_another_device_is_restored():
    state = capture_random_state()
    expected = torch.rand(3)
    elsewhere = SimpleNamespace(cpu=lambda tensor=state["torch"]: tensor)
    restore_random_state_(state | {"torch": elsewhere})
    assert torch.equal(torch.rand(3), expected)


def test_capturing_draws_nothing():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    capture_random_state()
    assert torch.equal(torch.rand(3), expected)


def test_numpy_may_run_on_another_bit_generator(tmp_path):
    legacy = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(5))
        state = through_a_checkpoint(tmp_path, capture_random_state())
        expected = np.random.rand(4).tolist()
        restore_random_state_(state)
        assert np.random.rand(4).tolist() == expected
    finally:
        np.random.set_bit_generator(legacy)


def test_numpy_is_left_out_where_it_is_not_imported(monkeypatch):
    state = capture_random_state()
    monkeypatch.delitem(sys.modules, "numpy")
    assert "numpy" not in capture_random_state()
    restore_random_state_(state)
    assert random.getstate()[1] == tuple(state["python"][1])


def accelerators(monkeypatch, *, devices: int) -> dict[object, torch.Tensor]:
    """Stand in for CUDA and MPS; return what is set, by device."""
    states = {index: torch.full((16,), index, dtype=torch.uint8) for index in range(devices)}
    states["mps"] = torch.full((4,), 9, dtype=torch.uint8)
    cuda = SimpleNamespace(
        is_initialized=lambda: devices > 0,
        device_count=lambda: devices,
        get_rng_state_all=lambda: [states[index].clone() for index in range(devices)],
        set_rng_state=lambda state, device: states.__setitem__(device, state),
    )
    mps = SimpleNamespace(
        get_rng_state=lambda: states["mps"].clone(),
        set_rng_state=lambda state: states.__setitem__("mps", state),
    )
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(torch, "mps", mps)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: devices > 0)
    return states


def test_every_accelerator_is_captured_and_restored(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        states = accelerators(patched, devices=2)
        state = capture_random_state()
        expected = {device: value.clone() for device, value in states.items()}
        for value in states.values():
            value.zero_()
        restore_random_state_(state)
        assert all(torch.equal(states[device], value) for device, value in expected.items())
    assert through_a_checkpoint(tmp_path, state)["cuda"][1].tolist() == [1] * 16


@pytest.mark.parametrize("devices", [0, 1])
def test_a_run_may_go_on_with_fewer_devices(monkeypatch, devices):
    with monkeypatch.context() as patched:
        accelerators(patched, devices=2)
        state = capture_random_state()
    states = accelerators(monkeypatch, devices=devices)
    restore_random_state_(state)
    assert set(states) == {*range(devices), "mps"}

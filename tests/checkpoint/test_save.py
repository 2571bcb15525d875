"""Saving: the layout, round trips, rotation, replacing, and what is refused."""

import hashlib
import io
import json
import math
import os
import struct
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import nn

import mars
from mars import checkpoint
from mars.checkpoint import CheckpointError, find, load, load_newest, newest_step, save
from mars.checkpoint.manifest import TRAINING
from mars.config.errors import RefusedError


def write(folder: Path, step: int, *, keep: int = 9, tag: str = "") -> Path:
    model = {"weight": torch.full((50, 50), float(step))}
    return save(
        folder, step=step, model=model, training={"step": step, "tag": tag}, keep=keep, about=None
    )


def steps(folder: Path) -> list[int]:
    return [found.step for found in find(folder)]


def same(left: object, right: object) -> bool:
    """Whether two nested states are equal bit by bit, types included."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return (left.dtype, left.shape) == (right.dtype, right.shape) and torch.equal(
            left.contiguous().view(-1).view(torch.uint8),
            right.contiguous().view(-1).view(torch.uint8),
        )
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right)
    return left == right


dtypes = st.sampled_from(
    [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.int8]
)
shapes = st.lists(st.integers(0, 4), max_size=3)
tensors = st.builds(
    lambda dtype, shape, value: torch.full(shape, value, dtype=dtype),
    dtypes,
    shapes,
    st.integers(-100, 100),
)
plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | dtypes
values = plain | tensors
keys = st.text() | st.integers()
states = st.dictionaries(
    keys,
    st.recursive(
        values,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.tuples(inner, inner)
            | st.dictionaries(keys, inner, max_size=4)
        ),
        max_leaves=12,
    ),
    max_size=5,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=states)
def test_nested_states_come_back_bit_by_bit(tmp_path, state):
    path = save(tmp_path, step=1, model={}, training=state, keep=1)
    assert same(load(path).training, state)


def test_a_checkpoint_is_two_files_and_a_manifest_of_their_digests(tmp_path):
    path = save(
        tmp_path / "run" / "checkpoints",
        step=1000,
        model={"w": torch.arange(5.0)},
        training={"tokens": 12},
        keep=1,
        about={"optimizer": "mars-m", "betas": (0.9, 0.95)},
    )
    assert path == tmp_path / "run" / "checkpoints" / "step-00001000"
    assert {p.name for p in path.iterdir()} == {"manifest.json", "model.pt", "training.pt"}
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["format"] == "mars-checkpoint"
    assert (manifest["version"], manifest["step"]) == (1, 1000)
    assert (manifest["mars"], manifest["torch"]) == (mars.__version__, str(torch.__version__))
    assert manifest["about"] == {"optimizer": "mars-m", "betas": [0.9, 0.95]}
    for name in ("model.pt", "training.pt"):
        raw = (path / name).read_bytes()
        expected = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
        assert manifest["files"][name] == expected
    loaded = load(path)
    assert (loaded.step, loaded.path, loaded.rejected) == (1000, path, [])
    assert loaded.about == manifest["about"]
    assert loaded.training == {"tokens": 12}
    assert torch.equal(loaded.model["w"], torch.arange(5.0))


def test_the_model_alone_is_read_without_the_rest(tmp_path):
    path = save(tmp_path, step=1, model={"w": torch.arange(5.0)}, training={"m": 2}, keep=1)
    (path / TRAINING).write_bytes(b"damaged")
    for loaded in (load(path, model_only=True), load_newest(tmp_path, model_only=True)):
        assert torch.equal(loaded.model["w"], torch.arange(5.0))
        assert (loaded.training, loaded.rejected) == ({}, [])
    with pytest.raises(CheckpointError, match="is damaged"):
        load(path)


def test_a_file_larger_than_any_buffer_is_hashed_as_written(tmp_path):
    model = {"big": torch.arange(700_000), "small": torch.ones(3), "odd": torch.ones(4097)}
    loaded = load(save(tmp_path, step=1, model=model, training={}, keep=1))
    assert same(dict(loaded.model), model)


def test_tied_weights_stay_tied_and_are_written_once(tmp_path):
    weight = torch.randn(300, 300)
    path = save(tmp_path, step=1, model={"in": weight, "out": weight.t()}, training={}, keep=1)
    loaded = load(path)
    assert loaded.model["in"].data_ptr() == loaded.model["out"].data_ptr()
    assert (path / "model.pt").stat().st_size < 1.1 * weight.nbytes


def test_the_versions_of_a_state_dict_survive(tmp_path):
    state = nn.BatchNorm1d(3).state_dict()
    loaded = load(save(tmp_path, step=1, model=state, training={}, keep=1))
    assert isinstance(loaded.model, OrderedDict)
    assert loaded.model._metadata == state._metadata


def test_resume_is_bitwise_identical(tmp_path):
    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1))
        return model, mars.MARS(mars.param_groups(model), lr=1e-2)

    def train(model, optimizer, count):
        for _ in range(count):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()

    model, optimizer = build()
    train(model, optimizer, 3)
    training = {
        "optimizer": optimizer.state_dict(),
        "random": checkpoint.capture_random_state(),
    }
    save(tmp_path, step=3, model=model.state_dict(), training=training, keep=1)
    train(model, optimizer, 3)

    resumed, restarted = build()
    loaded = load_newest(tmp_path)
    resumed.load_state_dict(loaded.model)
    restarted.load_state_dict(loaded.training["optimizer"])
    checkpoint.restore_random_state_(loaded.training["random"])
    train(resumed, restarted, 3)
    assert same(dict(resumed.state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_dtype_of_a_group_comes_back(tmp_path, dtype):
    def build():
        return mars.MARS([nn.Parameter(torch.ones(2, 2))], lr=1e-2, last_grad_dtype=dtype)

    path = save(tmp_path, step=1, model={}, training=build().state_dict(), keep=1)
    restarted = build()
    restarted.param_groups[0]["last_grad_dtype"] = None
    restarted.load_state_dict(load(path).training)
    assert restarted.param_groups[0]["last_grad_dtype"] is dtype


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_rotation_keeps_the_newest(tmp_path, keep):
    for step in range(1, 7):
        write(tmp_path, step, keep=keep)
        assert steps(tmp_path) == list(range(max(1, step - keep + 1), step + 1))
    assert len(list(tmp_path.iterdir())) == keep


def test_rotation_counts_only_steps_up_to_the_saved_one(tmp_path):
    for step in (1, 2, 3, 8, 9):
        write(tmp_path, step)
    write(tmp_path, 4, keep=2)  # the run went back: 8 and 9 are met again later
    assert steps(tmp_path) == [3, 4, 8, 9]


def test_a_step_saved_again_replaces_the_old_one(tmp_path):
    write(tmp_path, 5, tag="first")
    write(tmp_path, 5, tag="second")
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000005"]
    assert load_newest(tmp_path).training["tag"] == "second"


def test_a_replaced_checkpoint_stands_in_until_the_new_one_has_its_name(tmp_path):
    aside = tmp_path / f".step-00000005.{os.getpid()}.replaced"
    write(tmp_path, 5, tag="aside").rename(aside)
    assert [(found.step, found.path) for found in find(tmp_path)] == [(5, aside)]
    assert load_newest(tmp_path).training["tag"] == "aside"
    write(tmp_path, 6)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000005", "step-00000006"]


def test_leftovers_of_dead_processes_go_and_those_of_live_ones_stay(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid in (gone.pid, os.getpid(), os.getppid()):
        for state in ("writing", "removed"):
            (tmp_path / f".step-00000001.{pid}.{state}" / "inner").mkdir(parents=True)
    (tmp_path / f".step-00000002.{gone.pid}.replaced").mkdir()
    (tmp_path / "notes").mkdir()
    write(tmp_path, 2)
    live = [f".step-00000001.{os.getppid()}.{state}" for state in ("removed", "writing")]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*live, "notes", "step-00000002"])


def test_checkpoints_are_found_in_the_order_of_their_steps(tmp_path):
    for step in (100_000_000, 20, 3):
        write(tmp_path, step)
    for foreign in ("step-3", "step-000000003", "step-latest", ".step-00000001.7.writing"):
        (tmp_path / foreign).mkdir()
    assert steps(tmp_path) == [3, 20, 100_000_000]
    assert newest_step(tmp_path) == 100_000_000
    assert find(tmp_path)[-1].path == tmp_path / "step-100000000"


def test_without_a_folder_there_is_nothing_to_load(tmp_path):
    assert load_newest(tmp_path / "checkpoints") is None
    assert find(tmp_path / "checkpoints") == []
    assert newest_step(tmp_path / "checkpoints") is None


class Wrapped(torch.Tensor):
    """As a DTensor is: a tensor that is more than its numbers."""


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (np.float64(1.0), "numpy.float64"),
        (np.ones(2), "numpy.ndarray"),
        (Path("x"), "Path"),
        ({1, 2}, "set"),
        (b"x", "bytes"),
        (torch.ones(2, device="meta"), "meta"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.ones(2).as_subclass(Wrapped), "Wrapped"),
        ({(1, 2): 3}, "(1, 2)"),
        ({torch.float32: 3}, "torch.float32"),
    ],
)
def test_what_could_not_be_loaded_is_refused_by_its_place(tmp_path, value, named):
    with pytest.raises(RefusedError, match=r"training\['sampler'\]\[1\]") as refused:
        save(tmp_path, step=1, model={}, training={"sampler": [0, value]}, keep=1)
    assert named in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keep": 0}, "keep must be at least 1, got 0"),
        ({"step": -1}, "step must be at least 0, got -1"),
        ({"about": {"x": torch.float32}}, "about must be JSON"),
    ],
)
def test_impossible_arguments_are_refused_before_anything_is_written(tmp_path, change, message):
    with pytest.raises(RefusedError, match=message):
        save(tmp_path / "new", **{"step": 1, "model": {}, "training": {}, "keep": 1, **change})
    assert not (tmp_path / "new").exists()


def test_the_estimate_covers_what_is_written_and_little_more():
    many = {str(i): torch.ones(7) for i in range(500)}
    views = {str(i): row for i, row in enumerate(torch.ones(5, 10**5))}
    for model in ({}, many, views, {"w": torch.ones(10**6)}):
        estimate = checkpoint.contents.bytes_on_disk(model.values())
        size = len(_saved(model))
        assert size <= estimate <= size + 2**18 + 1024 * len(model)


def _saved(state: dict) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def test_nan_in_about_can_be_read_again(tmp_path):
    path = save(tmp_path, step=1, model={}, training={}, keep=1, about={"loss": math.nan, 1: 2})
    about = load(path).about
    assert math.isnan(about["loss"])
    assert about["1"] == 2


def test_a_path_that_is_no_checkpoint_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"manifest\.json cannot be read: No such file"):
        load(tmp_path / "step-00000001")

"""Replaying a run gives its very parameters, and leaves its directory alone."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from mars import checkpoint
from mars.checkpoint.folder import step_path
from mars.config.errors import RefusedError
from mars.diagnosis.plan import Plan
from mars.diagnosis.replay import reached_step, read_config, replay, replayed_steps
from mars.training.run_directory import RunDirectory
from training.runs import make_corpus, run, write_config

EXACT = ("optimizer.exact=true",)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """A run of 12 steps with dropout whose checkpoints of 4, 8 and 12 are all there."""
    folder = tmp_path_factory.mktemp("trained")
    run(write_config(folder, corpus), folder / "run", "checkpoint.keep=9")
    return folder / "run"


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file of a folder with its time of change."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def paths(out: Path, *wanted: tuple[int, int], told: list[str] | None = None):
    """Return the paths to some steps, each with its length, in one replay."""
    directory = RunDirectory(out)
    tell = (told if told is not None else []).append
    history = max(length for _, length in wanted)
    with replay(read_config(directory), directory, history=history, tell=tell) as repeated:
        return [repeated.path(step, length=length, tick=lambda _: None) for step, length in wanted]


def assert_at(point: list[torch.Tensor], out: Path, step: int) -> None:
    """Assert that a point is, bit for bit, what the checkpoint of a step holds."""
    saved = checkpoint.load(step_path(out / "checkpoints", step=step)).model
    assert len(point) == len(saved)
    for mine, theirs in zip(point, saved.values(), strict=True):
        assert torch.equal(mine, theirs)


def without_checkpoints(out: Path, copy: Path, *kept: int) -> Path:
    """Copy a run and keep some of its checkpoints only."""
    shutil.copytree(out, copy)
    for found in checkpoint.find(copy / "checkpoints"):
        if found.step not in kept:
            shutil.rmtree(found.path)
    return copy


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        *((name, ()) for name in ("mars-adamw", "mars-m", "adamw", "lion", "muon")),
        ("mars-adamw", EXACT),
        ("mars-adamw", ("training.precision=float16", "training.grad_clip=0.1")),
        ("nadamw", ("training.precision=bfloat16", "schedule.kind=linear")),
    ],
)
def test_a_replay_from_the_start_is_the_run_bit_for_bit(optimizer, settings, corpus, tmp_path):
    out = tmp_path / "run"
    run(write_config(tmp_path, corpus, optimizer=optimizer), out, "checkpoint.keep=9", *settings)
    bare = without_checkpoints(out, tmp_path / "bare")
    (points,) = paths(bare, (12, 12))
    assert len(points) == 13
    for step in (4, 8, 12):
        assert_at(points[step], out, step)
    assert not torch.equal(points[11][0], points[12][0])


def test_a_replay_leaves_the_run_directory_as_it_was(trained):
    before = contents(trained)
    paths(trained, (3, 3), (12, 2))
    assert contents(trained) == before


def test_replays_from_a_checkpoint_and_from_the_start_agree(trained, tmp_path):
    bare = without_checkpoints(trained, tmp_path / "bare")
    (whole,) = paths(bare, (11, 11))
    (ahead,) = paths(trained, (11, 2))
    assert len(ahead) == 3
    for mine, theirs in zip(ahead, whole[-3:], strict=True):
        assert all(torch.equal(left, right) for left, right in zip(mine, theirs, strict=True))


def test_a_replay_that_has_begun_jumps_to_a_checkpoint_ahead(trained, monkeypatch):
    loaded = []
    load = checkpoint.load
    monkeypatch.setattr(checkpoint, "load", lambda path: (loaded.append(path.name), load(path))[1])
    near, far = paths(trained, (2, 2), (12, 3))
    assert loaded == ["step-00000008"]
    assert_at(far[-1], trained, 12)
    assert (len(near), len(far)) == (3, 4)


def test_a_checkpoint_inside_the_window_is_too_late(trained):
    (points,) = paths(trained, (9, 2))
    assert len(points) == 3
    assert_at(points[1], trained, 8)


def test_windows_that_overlap_share_their_points(trained):
    first, second = paths(trained, (7, 3), (8, 4))
    assert_at(second[-1], trained, 8)
    assert_at(second[0], trained, 4)
    for mine, theirs in zip(first, second[:4], strict=True):
        assert all(torch.equal(left, right) for left, right in zip(mine, theirs, strict=True))


def test_a_damaged_checkpoint_is_told_and_passed_over(trained, tmp_path):
    copy = without_checkpoints(trained, tmp_path / "copy", 4, 8)
    weights = next((copy / "checkpoints" / "step-00000008").glob("model*"))
    weights.write_bytes(weights.read_bytes()[:-1])
    told: list[str] = []
    (points,) = paths(copy, (12, 2), told=told)
    assert_at(points[-1], trained, 12)
    assert len(told) == 1
    assert "step-00000008" in told[0]


def test_a_replay_counts_the_sequences_it_takes(trained):
    directory = RunDirectory(trained)
    done: list[int] = []
    with replay(read_config(directory), directory, history=2, tell=lambda _: None) as repeated:
        repeated.path(11, length=2, tick=done.append)
    # From the checkpoint of step 8: three steps of four sequences.
    assert done == [4, 4, 4]
    plan = Plan(steps=(2, 11), streams=2, history=2, micro_batch_size=4, large_batch=8)
    assert replayed_steps(plan, directory) == 2 + 3


def test_how_far_a_run_has_come_is_in_its_records_or_its_checkpoints(trained, tmp_path):
    assert reached_step(RunDirectory(trained)) == 12
    bare = without_checkpoints(trained, tmp_path / "bare")
    assert reached_step(RunDirectory(bare)) == 12
    os.remove(bare / "metrics.jsonl")
    assert reached_step(RunDirectory(bare)) == 0
    saved = without_checkpoints(trained, tmp_path / "saved", 4)
    os.remove(saved / "metrics.jsonl")
    assert reached_step(RunDirectory(saved)) == 4


def test_a_run_on_other_data_is_refused(trained, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(trained, other)
    manifest = other / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"digest": "', '"digest": "0'))
    with pytest.raises(RefusedError, match="was trained on other data"):
        paths(other, (2, 1))


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RefusedError, match=r"is not a run directory: it has no run\.toml"):
        read_config(RunDirectory(tmp_path))


def test_sinks_of_the_run_are_left_out_of_its_replay(trained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    text = (copy / "run.toml").read_text()
    assert 'wandb = "off"' in text
    (copy / "run.toml").write_text(text.replace('wandb = "off"', 'wandb = "online"'))
    assert read_config(RunDirectory(copy)).metrics.wandb == "off"

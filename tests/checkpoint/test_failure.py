"""Disks that are full or broken: what was written stays, and the error says so."""

import errno
import io
import os
import resource
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from mars.checkpoint import CheckpointError, SaveError, load, load_newest, save, writing
from mars.config.errors import FailedError, RefusedError


def write(folder: Path, step: int, *, keep: int = 2) -> Path:
    model = {"weight": torch.full((100, 100), float(step))}
    return save(folder, step=step, model=model, training={"step": model["weight"] + 1}, keep=keep)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "checkpoints", 100)
    return tmp_path / "checkpoints"


def assert_only_step_100_is_there(folder: Path) -> None:
    assert [p.name for p in folder.iterdir()] == ["step-00000100"]
    loaded = load_newest(folder)
    assert loaded.step == 100
    assert loaded.model["weight"].unique().tolist() == [100.0]


def test_a_full_disk_is_noticed_before_writing(folder, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**6, 10**6 - 70_000, 70_000))
    monkeypatch.setattr(writing, "_write", lambda *_, **__: pytest.fail("it was written"))
    with pytest.raises(SaveError, match=r"takes 0\.6 MB and 0\.1 MB are free") as failed:
        write(folder, 200)
    assert f"saving {folder / 'step-00000200'} failed" in str(failed.value)
    assert f"step 100 is good: {folder / 'step-00000100'}" in str(failed.value)
    assert "\n" not in str(failed.value)
    assert_only_step_100_is_there(folder)


@pytest.mark.parametrize("budget", [0, 100, 20_000, 41_000, 60_000])
def test_a_disk_that_fills_up_while_writing_loses_nothing(folder, monkeypatch, budget):
    written = 0
    real = writing._HashedFile.write

    def limited(self, data):
        nonlocal written
        written += memoryview(data).nbytes
        if written > budget:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, data)

    monkeypatch.setattr(writing._HashedFile, "write", limited)
    with pytest.raises(SaveError, match="No space left on device; step 100 is good"):
        write(folder, 200)
    assert_only_step_100_is_there(folder)


@pytest.mark.parametrize("limit", [1000, 39_000, 41_000])
def test_a_write_the_system_refuses_loses_nothing(folder, limit):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(SaveError, match="File too large; step 100 is good"):
            write(folder, 200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_only_step_100_is_there(folder)


@pytest.mark.parametrize("failing", range(5))
def test_a_disk_that_does_not_confirm_loses_nothing(folder, monkeypatch, failing):
    calls = 0
    real = os.fsync

    def broken(descriptor):
        nonlocal calls
        calls += 1
        if calls == failing + 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", broken)
    # Two states, the manifest, their folder; the fifth is for the name, which it has by then.
    good = 100 if failing < 4 else 200
    with pytest.raises(SaveError, match=f"Input/output error; step {good} is good"):
        write(folder, 200)
    assert load_newest(folder).step == good
    assert not [p for p in folder.iterdir() if p.name.startswith(".")]


def test_saving_brings_files_and_folders_to_disk_in_order(tmp_path, monkeypatch):
    folder = tmp_path / "checkpoints"
    synced = []
    real = os.fsync

    def record(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append((path.name, (folder / "step-00000200").exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    write(folder, 200)
    hidden = f".step-00000200.{os.getpid()}.writing"
    assert synced == [
        (tmp_path.name, False),
        ("model.pt", False),
        ("training.pt", False),
        ("manifest.json", False),
        (hidden, False),
        ("checkpoints", True),
    ]


def test_writes_that_the_system_cuts_short_go_on_where_they_ended(tmp_path, monkeypatch):
    class ShortFile(io.FileIO):
        def write(self, data):
            return super().write(memoryview(data)[:1000])

    class ShortHashedFile(writing._HashedFile, ShortFile):
        """The hashed file, on top of the short one instead of the system's."""

    monkeypatch.setattr(writing, "_HashedFile", ShortHashedFile)
    loaded = load(write(tmp_path, 7))
    assert loaded.model["weight"].unique().tolist() == [7.0]


def test_an_interrupt_while_writing_stays_an_interrupt(folder, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(writing._HashedFile, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(folder, step=200, model={"w": torch.ones(10**5)}, training={}, keep=1)
    monkeypatch.undo()
    assert_only_step_100_is_there(folder)


def test_a_failed_replacement_keeps_the_old_one(folder, monkeypatch):
    real = Path.rename

    def rename(self, target):
        if self.name.endswith(".writing"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(SaveError, match="step 100 is good"):
        write(folder, 100)
    monkeypatch.undo()
    assert load_newest(folder).step == 100
    write(folder, 200)
    assert sorted(p.name for p in folder.iterdir()) == ["step-00000100", "step-00000200"]


@pytest.mark.parametrize("inside", [False, True])
def test_a_folder_that_cannot_be_written_is_named(tmp_path, inside):
    blocker = tmp_path / "checkpoints"
    blocker.write_text("a file")
    folder = blocker / "deeper" if inside else blocker
    with pytest.raises(SaveError) as failed:
        write(folder, 1)
    assert f"saving {folder / 'step-00000001'} failed" in str(failed.value)
    assert ("Not a directory" if inside else "File exists") in str(failed.value)
    assert f"no other checkpoint in {folder} is good" in str(failed.value)
    assert blocker.read_text() == "a file"


def deny_listing(monkeypatch, folder: Path, *, after: int) -> None:
    """Make a folder unreadable once it was listed a number of times."""
    left = after
    real = Path.iterdir

    def iterdir(self):
        nonlocal left
        if self == folder:
            left -= 1
            if left < 0:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return real(self)

    monkeypatch.setattr(Path, "iterdir", iterdir)


@pytest.mark.parametrize("after", [0, 1])
def test_a_folder_that_cannot_be_listed_fails_the_save(folder, monkeypatch, after):
    # The first listing is for leftovers, the second, with the checkpoint in place, for rotation.
    deny_listing(monkeypatch, folder, after=after)
    with pytest.raises(SaveError) as failed:
        write(folder, 200)
    assert str(failed.value) == (
        f"saving {folder / 'step-00000200'} failed: Permission denied ({folder}); "
        f"checkpoints {folder} cannot be read: Permission denied"
    )
    monkeypatch.undo()
    assert load_newest(folder).step == (100, 200)[after]


def test_a_folder_that_cannot_be_listed_does_not_hide_damage(folder, monkeypatch):
    (folder / "step-00000100" / "model.pt").write_bytes(b"")
    deny_listing(monkeypatch, folder, after=0)
    with pytest.raises(
        CheckpointError, match=r"model\.pt is damaged: .* cannot be read: Permission"
    ):
        load(folder / "step-00000100")


def test_what_went_wrong_is_told_from_what_is_refused():
    assert issubclass(SaveError, FailedError)
    assert not issubclass(SaveError, RefusedError)
    assert issubclass(CheckpointError, RefusedError)
    assert not issubclass(CheckpointError, FailedError)

"""Damaged, foreign and malicious checkpoints: named, never executed, the previous one used."""

import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from mars.checkpoint import CheckpointError, load, load_newest, save
from mars.checkpoint.manifest import Fingerprint, Manifest, _sealed, manifest_bytes

FILES = ("model.pt", "training.pt")


def write(folder: Path, step: int) -> Path:
    model = {"weight": torch.full((20,), float(step))}
    return save(folder, step=step, model=model, training={"step": step}, keep=9, about={"a": 1})


@pytest.fixture
def folder(tmp_path):
    for step in (50, 100, 200):
        write(tmp_path / "checkpoints", step)
    return tmp_path / "checkpoints"


def reseal(path: Path) -> None:
    """Adjust the manifest to the files, as an adversary would."""
    raw = {name: (path / name).read_bytes() for name in FILES}
    files = {n: Fingerprint(len(r), hashlib.sha256(r).hexdigest()) for n, r in raw.items()}
    (path / "manifest.json").write_bytes(manifest_bytes(Manifest(200, files, {})))


def edit_manifest(path: Path, **changes: object) -> None:
    file = path / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes, indent=2) + "\n")


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def fill(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    reseal(path.parent)


DAMAGE = {
    "truncated": (lambda p: (p / "model.pt").write_bytes(b"PK\3\4"), "model.pt", "it has 4 bytes"),
    "emptied": (lambda p: (p / "training.pt").write_bytes(b""), "training.pt", "it has 0 bytes"),
    "flipped": (
        lambda p: flip(p / "training.pt"),
        "training.pt",
        "is damaged: its SHA-256 differs from the manifest's",
    ),
    "no model": (lambda p: (p / "model.pt").unlink(), "model.pt", "No such file"),
    "a folder": (
        lambda p: ((p / "model.pt").unlink(), (p / "model.pt").mkdir()),
        "model.pt",
        "Is a directory",
    ),
    "no manifest": (lambda p: (p / "manifest.json").unlink(), "manifest.json", "No such file"),
    "empty manifest": (
        lambda p: (p / "manifest.json").write_bytes(b""),
        "manifest.json",
        "it is not JSON",
    ),
    "deep manifest": (
        lambda p: (p / "manifest.json").write_bytes(b"[" * 100_000),
        "manifest.json",
        "it is not JSON",
    ),
    "edited manifest": (lambda p: edit_manifest(p, step=300), "manifest.json", "or edited"),
    "edited note": (lambda p: edit_manifest(p, about={}), "manifest.json", "or edited"),
    "another format": (
        lambda p: edit_manifest(p, format="zarr"),
        "manifest.json",
        "is foreign: format 'zarr', not 'mars-checkpoint'",
    ),
    "a list": (lambda p: (p / "manifest.json").write_text("[]"), "manifest.json", "format None"),
    "newer": (
        lambda p: edit_manifest(p, version=3, mars="9.0"),
        "manifest.json",
        "format version 3, this mars reads up to 2; it was written by mars 9.0",
    ),
    "odd version": (lambda p: edit_manifest(p, version="x"), "manifest.json", "version 'x'"),
    "few entries": (
        lambda p: (p / "manifest.json").write_bytes(manifest_bytes(Manifest(200, {}, {}))),
        "manifest.json",
        "entries are missing",
    ),
    "odd entries": (
        lambda p: (p / "manifest.json").write_bytes(
            _sealed({"format": "mars-checkpoint", "version": 1, "step": 200, "files": 3})
        ),
        "manifest.json",
        "entries are missing",
    ),
    "not torch's": (
        lambda p: fill(p / "model.pt", b"PK\3\4 nothing like it"),
        "model.pt",
        "cannot be loaded",
    ),
    "nothing": (lambda p: fill(p / "training.pt", b""), "training.pt", "cannot be loaded"),
    "a tensor": (
        lambda p: (torch.save(torch.ones(2), p / "model.pt"), reseal(p)),
        "model.pt",
        "it holds a Tensor",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_and_the_previous_one_used(folder, kind):
    damage, file, wrong = DAMAGE[kind]
    bad, good = folder / "step-00000200", folder / "step-00000100"
    damage(bad)
    with pytest.raises(CheckpointError) as refused:
        load(bad)
    message = str(refused.value)
    assert message.startswith(f"checkpoint {bad / file} ")
    assert wrong in message
    assert message.endswith(f"; step 100 is good: {good}")
    assert "\n" not in message
    newest = load_newest(folder)
    assert (newest.step, newest.path, newest.training) == (100, good, {"step": 100})
    assert newest.model["weight"].tolist() == [100.0] * 20
    assert newest.rejected == [message.removesuffix(f"; step 100 is good: {good}")]


def test_every_newer_bad_one_is_reported_the_newest_first(folder):
    flip(folder / "step-00000200" / "model.pt")
    flip(folder / "step-00000100" / "training.pt")
    newest = load_newest(folder)
    assert newest.step == 50
    assert [line.split()[1] for line in newest.rejected] == [
        str(folder / "step-00000200" / "model.pt"),
        str(folder / "step-00000100" / "training.pt"),
    ]
    with pytest.raises(CheckpointError, match="step 50 is good"):
        load(folder / "step-00000200")


def test_a_run_without_a_good_checkpoint_does_not_start_anew(folder):
    for path in folder.iterdir():
        flip(path / "model.pt")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is good") as refused:
        load_newest(folder)
    assert str(refused.value).count("is damaged") == 3
    with pytest.raises(CheckpointError, match=r"no earlier checkpoint in .* is good"):
        load(folder / "step-00000200")


def test_only_earlier_ones_are_offered(folder):
    flip(folder / "step-00000100" / "model.pt")
    with pytest.raises(CheckpointError, match="step 50 is good"):
        load(folder / "step-00000100")


def test_a_checkpoint_under_another_steps_name_is_refused(folder):
    shutil.rmtree(folder / "step-00000200")
    shutil.copytree(folder / "step-00000050", folder / "step-00000300")
    with pytest.raises(CheckpointError, match="manifest says step 50; step 100 is good"):
        load(folder / "step-00000300")
    elsewhere = folder / "the-best"
    shutil.copytree(folder / "step-00000050", elsewhere)
    assert load(elsewhere).step == 50


def test_a_damaged_one_is_replaced_when_the_run_comes_by_again(folder):
    flip(folder / "step-00000200" / "model.pt")
    write(folder, 200)
    newest = load_newest(folder)
    assert (newest.step, newest.rejected) == (200, [])


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_want_of_memory_is_not_taken_for_damage(folder, monkeypatch, error):
    def load_too_much(*_, **__):
        raise error("out of memory")

    monkeypatch.setattr(torch, "load", load_too_much)
    with pytest.raises(error, match="out of memory"):
        load_newest(folder)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    write(folder, 100)
    return write(folder, 200)


@settings(max_examples=60)
@given(data=st.data(), name=st.sampled_from([*FILES, "manifest.json"]))
def test_no_changed_byte_goes_unnoticed(saved, data, name):
    file = saved / name
    before = file.read_bytes()
    place = data.draw(st.integers(0, len(before) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda value: value != before[place]))
    file.write_bytes(before[:place] + bytes([value]) + before[place + 1 :])
    try:
        with pytest.raises(CheckpointError, match=rf"{name} .*; step 100 is good"):
            load(saved)
    finally:
        file.write_bytes(before)


@settings(max_examples=30)
@given(data=st.data(), name=st.sampled_from([*FILES, "manifest.json"]))
def test_no_missing_end_goes_unnoticed(saved, data, name):
    file = saved / name
    before = file.read_bytes()
    file.write_bytes(before[: data.draw(st.integers(0, len(before) - 1))])
    try:
        with pytest.raises(CheckpointError, match=rf"{name} .*; step 100 is good"):
            load(saved)
    finally:
        file.write_bytes(before)


class Malicious:
    """Makes a folder when unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("form", ["archive", "pickle"])
@pytest.mark.parametrize("name", FILES)
def test_a_malicious_file_is_never_executed(folder, tmp_path, form, name):
    path, marker = folder / "step-00000200", tmp_path / "executed"
    payload = {"weight": torch.ones(2), "x": Malicious(marker)}
    if form == "archive":
        torch.save(payload, path / name)
        torch.load(path / name, weights_only=False)
    else:
        (path / name).write_bytes(pickle.dumps(payload["x"], protocol=2))
        pickle.loads((path / name).read_bytes())
    marker.rmdir()  # it was made: the payload is a real one

    with pytest.raises(CheckpointError, match=f"{name} is damaged: .*step 100 is good"):
        load(path)
    reseal(path)
    with pytest.raises(CheckpointError, match=f"{name} is foreign: it contains objects other"):
        load(path)
    newest = load_newest(folder)
    assert (newest.step, len(newest.rejected)) == (100, 1)
    assert not marker.exists()

"""Reading a checkpoint: verified before it is loaded, and nothing in it is executed."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from pickle import UnpicklingError  # the exception alone: nothing here unpickles
from typing import Any, BinaryIO

import torch

from mars.checkpoint.errors import CheckpointError
from mars.checkpoint.folder import find, named_step
from mars.checkpoint.manifest import MODEL, TRAINING, Fingerprint, read_manifest


@dataclass(frozen=True, slots=True)
class Loaded:
    """A good checkpoint's contents."""

    step: int
    model: dict[str, Any]
    training: dict[Any, Any]
    path: Path
    about: dict[str, Any]  # the JSON that was given to save
    rejected: list[str] = field(default_factory=list)
    """What is wrong with each newer checkpoint, the newest first."""


def load(path: Path, *, map_location: str | torch.device = "cpu") -> Loaded:
    """Return a checkpoint's contents; raise `CheckpointError` if it is not good.

    The error names the file, what is wrong with it, and the newest earlier one that is good.
    """
    try:
        return _load(path, map_location=map_location)
    except CheckpointError as error:
        step = named_step(path)
        before = inf if step is None else step
        raise CheckpointError(f"{error}; {good_one(path.parent, before=before)}") from error


def load_newest(folder: Path, *, map_location: str | torch.device = "cpu") -> Loaded | None:
    """Return the newest good checkpoint, and why newer ones were passed over; None without any.

    Where there are checkpoints and none is good, that is an error: a run must not start anew
    because its disk is damaged.
    """
    rejected: list[str] = []
    for found in reversed(find(folder)):
        try:
            loaded = _load(found.path, map_location=map_location)
        except CheckpointError as error:
            rejected.append(str(error))
        else:
            return replace(loaded, rejected=rejected)
    if rejected:
        raise CheckpointError(
            f"no checkpoint in {folder} is good: {'; '.join(rejected)}; "
            "remove the folder to start anew"
        )
    return None


def good_one(folder: Path, *, before: float = inf) -> str:
    """Return a clause that names the newest verified checkpoint before a step."""
    try:
        candidates = find(folder)
    except CheckpointError as error:  # it must not hide the error that the clause is for
        return str(error)
    for found in reversed(candidates):
        if found.step < before and _is_good(found.path):
            return f"step {found.step} is good: {found.path}"
    return f"no {'other' if before == inf else 'earlier'} checkpoint in {folder} is good"


def _load(path: Path, *, map_location: str | torch.device) -> Loaded:
    manifest = read_manifest(path)
    if named_step(path) not in (None, manifest.step):
        raise CheckpointError(
            f"checkpoint {path} was renamed: its manifest says step {manifest.step}"
        )
    states = {}
    for name, fingerprint in manifest.files.items():
        with _verified(path / name, fingerprint) as file:
            states[name] = _state(file, path=path / name, map_location=map_location)
    return Loaded(manifest.step, states[MODEL], states[TRAINING], path, manifest.about)


def _is_good(path: Path) -> bool:
    """Whether a checkpoint has the files its manifest says, without loading them."""
    try:
        for name, fingerprint in read_manifest(path).files.items():
            with _verified(path / name, fingerprint):
                pass
    except CheckpointError:
        return False
    return True


@contextmanager
def _verified(path: Path, expected: Fingerprint) -> Iterator[BinaryIO]:
    """Open a file, at its start, whose length and digest are as expected.

    It is verified in a pass of its own, in blocks: a copy in memory would double what a large
    model needs, and the second pass finds the file in the page cache. Both use one open file, so
    what is loaded is what was verified.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error.strerror}") from error
    with file:
        try:
            length = os.fstat(file.fileno()).st_size
            if length != expected.length:
                raise CheckpointError(
                    f"checkpoint {path} is damaged: it has {length} bytes, "
                    f"its manifest says {expected.length}"
                )
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise CheckpointError(f"checkpoint {path} cannot be read: {error.strerror}") from error
        if digest != expected.sha256:
            raise CheckpointError(
                f"checkpoint {path} is damaged: its SHA-256 differs from the manifest's"
            )
        file.seek(0)
        yield file


def _state(file: BinaryIO, *, path: Path, map_location: str | torch.device) -> dict[Any, Any]:
    try:
        state = torch.load(file, map_location=map_location, weights_only=True, mmap=False)
    except (MemoryError, torch.OutOfMemoryError):
        raise  # for want of memory, not through any fault of the file
    except UnpicklingError as error:
        raise CheckpointError(
            f"checkpoint {path} is foreign: it contains objects other than tensors and plain "
            "values; nothing was executed"
        ) from error
    except Exception as error:  # a file that torch.save did not write fails anywhere in its reader
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"checkpoint {path} cannot be loaded: {reason}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"checkpoint {path} is foreign: it holds a {type(state).__name__}")
    return state

"""Reading a checkpoint: verified before it is loaded, and nothing in it is executed.

With several ranks all read the same checkpoint or none: they divide the verification, and what
one finds wrong all hear of.
"""

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
from torch import Tensor

from mars.checkpoint import ranks
from mars.checkpoint.errors import CheckpointError
from mars.checkpoint.folder import find, named_step
from mars.checkpoint.leaves import Place, States, joined, placed
from mars.checkpoint.manifest import (
    MODEL,
    TRAINING,
    Fingerprint,
    Manifest,
    own_name,
    read_manifest,
)

Device = str | torch.device


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
    own: dict[Any, Any] | None = None
    """What this rank gave as its own; None if it gave nothing, or to another number of ranks."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is to be read of a checkpoint, and where it goes."""

    map_location: Device
    place: Place | None
    model_only: bool


def load(
    path: Path,
    *,
    map_location: Device = "cpu",
    place: Place | None = None,
    model_only: bool = False,
) -> Loaded:
    """Return a checkpoint's contents; raise `CheckpointError` if it is not good.

    The error names the file, what is wrong with it, and the newest earlier one that is good.
    In a process group every rank calls it. A checkpoint may come from any number of ranks.

    Args:
        path: the folder of the checkpoint.
        map_location: where tensors go without ``place``.
        place: asked for every tensor of model and training, gives what to read it into: a tensor
            for all of it, a DTensor for this rank's part. None reads all of it.
        model_only: leave ``training`` empty, and unread.
    """
    wanted = _Wanted(map_location, place, model_only)
    try:
        return _load(path, wanted)
    except CheckpointError as error:
        step = named_step(path)
        before = inf if step is None else step
        raise CheckpointError(f"{error}; {good_one(path.parent, before=before)}") from error


def load_newest(
    folder: Path,
    *,
    map_location: Device = "cpu",
    place: Place | None = None,
    model_only: bool = False,
) -> Loaded | None:
    """Return the newest good checkpoint, and why newer ones were passed over; None without any.

    The arguments and ranks are as for `load`. Where there are checkpoints and none is good, that
    is an error: a run must not start anew because its disk is damaged.
    """
    wanted = _Wanted(map_location, place, model_only)
    rejected: list[str] = []
    for name in ranks.first(lambda: [found.path.name for found in reversed(find(folder))]):
        try:
            loaded = _load(folder / name, wanted)
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


def _load(path: Path, wanted: _Wanted) -> Loaded:
    manifest = ranks.together(lambda: _checked_manifest(path))
    return ranks.together(lambda: _contents(path, manifest, wanted))


def _checked_manifest(path: Path) -> Manifest:
    """Return the manifest, with this rank's share of the files that it does not read verified."""
    manifest = read_manifest(path)
    if named_step(path) not in (None, manifest.step):
        raise CheckpointError(
            f"checkpoint {path} was renamed: its manifest says step {manifest.step}"
        )
    shared = [name for name in manifest.files if name not in (MODEL, TRAINING)]
    for name in shared[ranks.rank() :: ranks.world_size()]:
        with _verified(path / name, manifest.files[name]):
            pass
    return manifest


def _contents(path: Path, manifest: Manifest, wanted: _Wanted) -> Loaded:
    def state(name: str, device: Device) -> dict[Any, Any]:
        with _verified(path / name, manifest.files[name]) as file:
            return _state(file, path=path / name, map_location=device)

    # What is put in its place has no need to pass through a device as a whole.
    device = wanted.map_location if wanted.place is None else "cpu"
    training = {} if wanted.model_only else state(TRAINING, device)
    states: States = {"model": state(MODEL, device), "training": training}
    if manifest.shards:
        states = _with_shards(states, path, manifest, wanted)
    else:
        states = joined(states, stored=None, place=wanted.place)
    name = own_name(ranks.rank())
    is_own = manifest.world_size == ranks.world_size() and name in manifest.files
    is_own = is_own and not wanted.model_only
    own = state(name, "cpu") if is_own else None
    return Loaded(manifest.step, states["model"], states["training"], path, manifest.about, own=own)


def _with_shards(states: States, path: Path, manifest: Manifest, wanted: _Wanted) -> States:
    """Return the states with their sharded tensors read."""
    # Only here: it takes long to import, and most checkpoints have no shards.
    from mars.checkpoint.shards import StoredShards

    shards = StoredShards(path, manifest.shards)
    targets: dict[str, Tensor] = {}

    def stored(name: str) -> Tensor:
        if name not in targets:
            shape, dtype = shards.describe(name)
            targets[name] = (
                torch.empty(shape, dtype=dtype, device=wanted.map_location)
                if wanted.place is None
                else placed(name, shape, dtype, place=wanted.place)
            )
        return targets[name]

    states = joined(states, stored=stored, place=wanted.place)
    shards.read_(targets)
    return states


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


def _state(file: BinaryIO, *, path: Path, map_location: Device) -> dict[Any, Any]:
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

"""Writing a checkpoint: a crash at any instant leaves the previous one usable."""

import errno
import hashlib
import io
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mars.checkpoint.contents import bytes_on_disk, tensors_in
from mars.checkpoint.errors import SaveError
from mars.checkpoint.folder import (
    clear_leftovers,
    fsync,
    hidden,
    put_in_place,
    rotate,
    step_path,
)
from mars.checkpoint.manifest import (
    MODEL,
    NAME,
    TRAINING,
    Fingerprint,
    Manifest,
    manifest_bytes,
)
from mars.checkpoint.reading import good_one
from mars.config.errors import RefusedError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def save(
    folder: Path,
    *,
    step: int,
    model: Mapping[str, Any],
    training: Mapping[Any, Any],
    keep: int,
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write a checkpoint, remove older ones beyond ``keep``, and return where it is.

    Everything is written under a hidden name, brought to disk, then renamed. If that fails,
    nothing that was there before is lost, and `SaveError` says which checkpoint is still good.

    Args:
        folder: the folder of the run's checkpoints; made if need be.
        step: optimizer steps done; a checkpoint of the same step is replaced.
        model: the model's state_dict.
        training: what else a resume needs: nested dicts, lists and tuples of tensors, dtypes
            and plain values.
        keep: how many checkpoints up to this step to keep, this one included.
        about: JSON for the manifest, for people and tools.
    """
    if step < 0:
        raise RefusedError(f"step must be at least 0, got {step}")
    if keep < 1:
        raise RefusedError(f"keep must be at least 1, got {keep}: the newest is always kept")
    states = {MODEL: model, TRAINING: training}
    needed = sum(
        bytes_on_disk(tensors_in(state, where=name.removesuffix(".pt")))
        for name, state in states.items()
    )
    described = _as_json(about or {})
    path = step_path(folder, step=step)
    try:
        _make(folder)
        clear_leftovers(folder)
        _check_space(folder, needed=needed)
        _write(path, step=step, states=states, about=described)
        rotate(folder, step=step, keep=keep)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise SaveError(
            f"saving {path} failed: {error.strerror or error}{where}; {good_one(folder)}"
        ) from error
    return path


def _as_json(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a reader of the JSON will see: lists for tuples, strings for keys."""
    try:
        read: dict[str, Any] = json.loads(json.dumps(dict(about)))
    except (TypeError, ValueError) as error:
        raise RefusedError(f"about must be JSON, got {about!r}: {error}") from error
    return read


def _make(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True)
        fsync(folder.parent)  # or a power cut could take the folder with all that is in it


def _check_space(folder: Path, *, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            errno.ENOSPC,
            f"it takes {needed / 1e6:.1f} MB and {free / 1e6:.1f} MB are free; free some, "
            "keep fewer checkpoints or choose another disk",
        )


def _write(
    path: Path, *, step: int, states: Mapping[str, Mapping[Any, Any]], about: dict[str, Any]
) -> None:
    written = hidden(path, state="writing")
    try:
        written.mkdir()
        files = {name: _write_state(written / name, state) for name, state in states.items()}
        with (written / NAME).open("wb") as file:
            file.write(manifest_bytes(Manifest(step, files, about)))
            file.flush()
            os.fsync(file.fileno())
        fsync(written)
        put_in_place(written, path)
    except BaseException:  # an interrupt too leaves nothing behind
        shutil.rmtree(written, ignore_errors=True)
        raise


def _write_state(path: Path, state: Mapping[Any, Any]) -> Fingerprint:
    """Write a state with torch.save, bring it to disk, and return what was written."""
    raw = _HashedFile(path, "wb")
    with io.BufferedWriter(raw) as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:
            # torch ends its archive even after a failed write; that fails too, hiding the reason.
            raise error.__context__ or error from None
        file.flush()
        os.fsync(file.fileno())
    return Fingerprint(raw.length, raw.sha256.hexdigest())


class _HashedFile(io.FileIO):
    """A file that is hashed as it is written, so that nothing is read back."""

    def __init__(self, path: Path, mode: str) -> None:
        super().__init__(path, mode)
        self.sha256 = hashlib.sha256()
        self.length = 0

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write what one system call takes, and return how much that was."""
        # One system call writes at most 2 GiB; the buffer above comes back with the rest.
        written = super().write(data)
        self.sha256.update(memoryview(data)[:written])
        self.length += written
        return written

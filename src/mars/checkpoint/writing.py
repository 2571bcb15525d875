"""Writing a checkpoint: a crash at any instant leaves the previous one usable.

With several ranks each writes its part into one hidden folder, which rank 0 makes, seals and
renames; after every stage all ranks know whether it succeeded on all.
"""

import errno
import io
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mars.checkpoint import ranks
from mars.checkpoint.contents import bytes_on_disk, tensors_in
from mars.checkpoint.errors import CheckpointError, SaveError, reason
from mars.checkpoint.folder import (
    clear_leftovers,
    fsync,
    hidden,
    put_in_place,
    rotate,
    step_path,
)
from mars.checkpoint.hashed import HashedFile as _HashedFile
from mars.checkpoint.leaves import separated
from mars.checkpoint.manifest import (
    MODEL,
    NAME,
    TRAINING,
    Fingerprint,
    Manifest,
    manifest_bytes,
    own_name,
)
from mars.checkpoint.reading import good_one
from mars.config.errors import FailedError, RefusedError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True, slots=True)
class _Content:
    """What one rank brings to a checkpoint."""

    states: dict[str, Mapping[Any, Any]]  # by file, with placeholders for the shards
    shards: dict[str, "DTensor"]
    own: Mapping[Any, Any]
    about: dict[str, Any]

    def bytes_on_disk(self) -> int:
        """Return about how much of what is written is for this rank to count."""
        counted = [bytes_on_disk(tensors_in(self.own, where="own"))] if self.own else []
        # What all ranks hold, whole or in parts, is counted once.
        if ranks.rank() == 0:
            counted += [
                bytes_on_disk(tensors_in(state, where=name.removesuffix(".pt")))
                for name, state in self.states.items()
            ]
            counted += [shard.numel() * shard.element_size() for shard in self.shards.values()]
        return sum(counted)


def save(
    folder: Path,
    *,
    step: int,
    model: Mapping[str, Any],
    training: Mapping[Any, Any],
    keep: int,
    about: Mapping[str, Any] | None = None,
    own: Mapping[Any, Any] | None = None,
) -> Path:
    """Write a checkpoint, remove older ones beyond ``keep``, and return where it is.

    Everything is written under a hidden name, brought to disk, then renamed. If that fails,
    nothing that was there before is lost, and `SaveError` says which checkpoint is still good.
    In a process group every rank calls it, each with its own values, on a file system that all
    share; what fails on one rank fails on all.

    Args:
        folder: the folder of the run's checkpoints; made if need be.
        step: optimizer steps done; a checkpoint of the same step is replaced.
        model: the model's state_dict.
        training: what else a resume needs: nested dicts, lists and tuples of tensors, dtypes
            and plain values. DTensors are written by the ranks that hold them, all else, equal
            on all ranks, by rank 0.
        keep: how many checkpoints up to this step to keep, this one included.
        about: JSON for the manifest, for people and tools.
        own: what is this rank's alone, such as its random states.
    """
    path = step_path(folder, step=step)
    try:
        steps = ranks.gathered(step)
        ranks.together(lambda: _check(steps, keep=keep))
        content = ranks.together(
            lambda: _content(model=model, training=training, own=own or {}, about=about or {})
        )
        _check_layout(content.shards)
        needed = sum(ranks.gathered(ranks.together(content.bytes_on_disk)))
        ranks.first(lambda: _prepare(folder, needed=needed))
        _write(path, step=step, content=content)
        ranks.first(lambda: rotate(folder, step=step, keep=keep))
    except (OSError, FailedError) as error:
        raise SaveError(f"saving {path} failed: {reason(error)}; {good_one(folder)}") from error
    return path


def _check(steps: list[int], *, keep: int) -> None:
    if min(steps) < 0:
        raise RefusedError(f"step must be at least 0, got {min(steps)}")
    if len(set(steps)) > 1:
        raise RefusedError(f"step must be the same on all ranks, got {steps}")
    if keep < 1:
        raise RefusedError(f"keep must be at least 1, got {keep}: the newest is always kept")


def _content(
    *,
    model: Mapping[str, Any],
    training: Mapping[Any, Any],
    own: Mapping[Any, Any],
    about: Mapping[str, Any],
) -> _Content:
    states, shards = separated({"model": model, "training": training})
    files = {MODEL: states["model"], TRAINING: states["training"]}
    return _Content(files, shards, own, _as_json(about))


def _check_layout(shards: "dict[str, DTensor]") -> None:
    """Refuse sharded tensors that are not, by name, shape and dtype, those of rank 0."""
    layout = [[name, list(shard.shape), str(shard.dtype)] for name, shard in shards.items()]
    expected = ranks.first(lambda: layout)

    def check() -> None:
        for mine, other in zip_longest(layout, expected):
            if mine != other:
                raise CheckpointError(
                    f"rank {ranks.rank()} has the sharded tensor {mine} where rank 0 has {other}; "
                    "every rank saves the same ones in the same order"
                )

    ranks.together(check)


def _as_json(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a reader of the JSON will see: lists for tuples, strings for keys."""
    try:
        read: dict[str, Any] = json.loads(json.dumps(dict(about)))
    except (TypeError, ValueError) as error:
        raise RefusedError(f"about must be JSON, got {about!r}: {error}") from error
    return read


def _prepare(folder: Path, *, needed: int) -> None:
    """Make room for a checkpoint in a folder that may not be there yet."""
    _make(folder)
    clear_leftovers(folder)
    _check_space(folder, needed=needed)


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


def _write(path: Path, *, step: int, content: _Content) -> None:
    # Rank 0 alone makes and removes what has its process id in its name.
    written = path.with_name(ranks.first(lambda: hidden(path, state="writing").name))
    try:
        ranks.first(written.mkdir)
        files = _write_parts(written, content)
        manifest = Manifest(step, files, content.about, ranks.world_size())
        ranks.first(lambda: _finish(written, path, manifest))
    except BaseException:  # an interrupt too leaves nothing behind
        if ranks.rank() == 0:
            shutil.rmtree(written, ignore_errors=True)
        raise


def _write_parts(written: Path, content: _Content) -> dict[str, Fingerprint]:
    """Write this rank's files, and return those of all ranks."""
    mine: dict[str, Fingerprint] = {}
    if content.shards:
        # Only here: it takes long to import, and most checkpoints have no shards.
        from mars.checkpoint.shards import write_shards

        mine |= write_shards(written, content.shards)
    states = dict(content.states) if ranks.rank() == 0 else {}
    if content.own:
        states[own_name(ranks.rank())] = content.own
    mine |= ranks.together(
        lambda: {name: _write_state(written / name, state) for name, state in states.items()}
    )
    parts = ranks.gathered({name: (file.length, file.sha256) for name, file in mine.items()})
    files = {name: Fingerprint(*file) for part in parts for name, file in part.items()}
    return {MODEL: files.pop(MODEL), TRAINING: files.pop(TRAINING), **files}


def _finish(written: Path, path: Path, manifest: Manifest) -> None:
    """Seal what is written, bring it to disk, and give it its name."""
    with (written / NAME).open("wb") as file:
        file.write(manifest_bytes(manifest))
        file.flush()
        os.fsync(file.fileno())
    fsync(written)
    put_in_place(written, path)


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
    return raw.fingerprint

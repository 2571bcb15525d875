"""The folder of checkpoints: their names, which ones there are, and removing them.

A folder named ``step-00001000`` is always whole. Whatever is not, or no longer, has a hidden name
with the writing process's id and its state:

- ``writing``: not finished; worthless once its process is gone;
- ``replaced``: whole, moved aside while a new checkpoint of the same step takes its name; stands
  in for it as long as nothing has that name;
- ``removed``: being deleted.

So a process that is killed at any instant leaves nothing that looks better than it is.
"""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mars.checkpoint.errors import CheckpointError

_STEP = re.compile(r"step-(\d{8}|[1-9]\d{8,})")
_HIDDEN = re.compile(rf"\.({_STEP.pattern})\.(\d{{1,9}})\.(writing|replaced|removed)")


@dataclass(frozen=True, slots=True, order=True)
class Found:
    """A checkpoint by its name alone: nobody has looked inside."""

    step: int
    path: Path


def find(folder: Path) -> list[Found]:
    """Return the checkpoints of a folder, the oldest step first, without opening them."""
    try:
        return _find(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"checkpoints {folder} cannot be read: {error.strerror}") from error


def newest_step(folder: Path) -> int | None:
    """Return the step of the newest checkpoint by its name, unverified; None if there is none."""
    found = find(folder)
    return found[-1].step if found else None


def named_step(path: Path) -> int | None:
    """Return the step that a checkpoint's name states, if it states one."""
    match = _STEP.fullmatch(path.name)
    return int(match[1]) if match else None


def step_path(folder: Path, *, step: int) -> Path:
    """Return where the checkpoint of a step is."""
    return folder / f"step-{step:08d}"


def hidden(path: Path, *, state: Literal["writing", "replaced", "removed"]) -> Path:
    """Return this process's hidden name for a checkpoint in a state."""
    return path.with_name(f".{path.name}.{os.getpid()}.{state}")


def put_in_place(written: Path, path: Path) -> None:
    """Give a finished checkpoint its name, replacing one that has it."""
    replaced = hidden(path, state="replaced")
    if path.exists():
        path.rename(replaced)
    written.rename(path)
    fsync(path.parent)
    if replaced.exists():
        _remove(replaced, path=path)


def rotate(folder: Path, *, step: int, keep: int) -> None:
    """Remove the checkpoints before ``step`` beyond the ``keep`` newest, that of ``step`` included.

    Later ones are left alone: a run that went back to an earlier step meets and replaces them.
    """
    earlier = [found for found in _find(folder) if found.step < step]
    for found in earlier[: max(0, len(earlier) - keep + 1)]:
        _remove(found.path, path=step_path(folder, step=found.step))


def clear_leftovers(folder: Path) -> None:
    """Delete what processes that are gone left half done; a replaced one gets its name back."""
    for entry in list(folder.iterdir()):
        match = _HIDDEN.fullmatch(entry.name)
        if match is None or _is_running(int(match[3])):
            continue
        path = folder / match[1]
        if match[4] != "replaced":
            shutil.rmtree(entry, ignore_errors=True)
        elif path.exists():
            _remove(entry, path=path)
        else:
            entry.rename(path)


def fsync(path: Path) -> None:
    """Return once a file's content, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _find(folder: Path) -> list[Found]:
    entries = list(folder.iterdir())
    named = {int(m[1]): path for path in entries if (m := _STEP.fullmatch(path.name))}
    replaced = {
        int(m[2]): path
        for path in entries
        if (m := _HIDDEN.fullmatch(path.name)) and m[4] == "replaced"
    }
    return sorted(Found(step, path) for step, path in (replaced | named).items())


def _remove(entry: Path, *, path: Path) -> None:
    doomed = hidden(path, state="removed")
    entry.rename(doomed)
    # What cannot be deleted now is tried again by the next save.
    shutil.rmtree(doomed, ignore_errors=True)


def _is_running(pid: int) -> bool:
    """Whether another process has the id.

    What bears our own id is not ours, since a process saves one checkpoint at a time: containers
    give a restarted process the id of the one before it.
    """
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True

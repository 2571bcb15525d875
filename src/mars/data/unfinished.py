"""The hidden folder in which a corpus grows, and its journal: how far it is.

The journal is replaced as a whole after what it speaks of has reached the disk. Whatever a killed
preparation wrote beyond it is cut off by the next one, which goes on from there.
"""

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mars.config.errors import RefusedError
from mars.data.encoding import Tally
from mars.data.manifest import SPLITS, Shard, Split
from mars.data.shards import NOTHING, Written
from mars.data.writer import locked, sync_folder, write_file

JOURNAL = "journal.json"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Progressed:
    """How far a preparation is."""

    pieces: int = 0
    sha256: str = ""  # of the digests of all documents so far, each hashed with the one before
    tally: Tally = field(default_factory=Tally)
    splits: Mapping[Split, Written] = field(default_factory=lambda: dict.fromkeys(SPLITS, NOTHING))


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A preparation under way, held by this process alone."""

    folder: Path
    request: Mapping[str, Any]  # JSON: what must be the same to go on
    start: Progressed

    def commit(self, progressed: Progressed) -> None:
        """Record how far it is; all of that must be on the disk."""
        content = {"version": _VERSION, "request": self.request, **dataclasses.asdict(progressed)}
        fresh = self.folder / f"{JOURNAL}.fresh"
        write_file(fresh, json.dumps(content).encode())
        os.replace(fresh, self.folder / JOURNAL)
        sync_folder(self.folder)


def unfinished_folder(out: Path) -> Path:
    """Return where the corpus grows that will be at ``out``."""
    return out.parent / f".{out.name}.unfinished"


def written_bytes(out: Path) -> int:
    """Return how much of the corpus an unfinished preparation has written."""
    folder = unfinished_folder(out)
    return sum(path.stat().st_size for path in folder.glob("*.bin")) if folder.is_dir() else 0


def requested(out: Path) -> Mapping[str, Any]:
    """Return what an unfinished preparation was asked for, or nothing if there is none."""
    path = unfinished_folder(out) / JOURNAL
    if not path.exists():
        return {}
    request: Mapping[str, Any] = _read(path)["request"]
    return request


@contextlib.contextmanager
def going_on(out: Path, *, request: Mapping[str, Any]) -> Iterator[Unfinished]:
    """Yield the preparation of ``out`` from where it stopped, or from the start.

    Another process at it, or one that was asked for something else, raises `RefusedError`. Where
    the block raises that, the input is at fault and what was made from it is removed; after
    anything else it stays.
    """
    folder = unfinished_folder(out)
    folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder))
        except OSError:
            raise RefusedError(f"another process is preparing {out}; wait for it") from None
        start = _start(folder, request)
        try:
            yield Unfinished(folder, request, start)
        except RefusedError:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _start(folder: Path, request: Mapping[str, Any]) -> Progressed:
    path = folder / JOURNAL
    if not path.exists():  # killed before the first commit
        for remains in folder.iterdir():
            remains.unlink()
        return Progressed()
    content = _read(path)
    found = content["request"]
    keys = found.keys() | request.keys()
    differing = sorted(key for key in keys if found.get(key) != request.get(key))
    if differing:
        raise RefusedError(
            f"{folder} holds an unfinished preparation (its {', '.join(differing)} differ); repeat "
            "its command to go on, or remove the folder to start anew"
        )
    return _parsed(content)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
        if content["version"] == _VERSION and isinstance(content["request"], dict):
            return dict(content)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise RefusedError(f"{path} cannot be read; remove {path.parent} to start anew")


def _parsed(content: Mapping[str, Any]) -> Progressed:
    tally = content["tally"] | {"examples": tuple(content["tally"]["examples"])}
    splits: dict[Split, Written] = {}
    for split in SPLITS:
        written = content["splits"][split]
        shards = tuple(Shard(**shard) for shard in written["shards"])
        splits[split] = Written(written["tokens"], written["documents"], shards)
    return Progressed(content["pieces"], content["sha256"], Tally(**tally), splits)

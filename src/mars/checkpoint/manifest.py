"""The manifest of a checkpoint: format, versions, step, and the digest of every file.

It is written last and seals itself: its last entry is the SHA-256 of the entries before it, so an
edited manifest is noticed like an edited file. That guards against damage, not against an
adversary, who can compute a digest too; against him, loading executes nothing.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mars import __version__
from mars.checkpoint.errors import CheckpointError

FORMAT = "mars-checkpoint"
# What has no shards is written as before there were any, and readers of that time can read it.
VERSION, SHARDED_VERSION = 1, 2
NAME = "manifest.json"
MODEL, TRAINING = "model.pt", "training.pt"
_OWN = re.compile(r"own-\d{5,}\.pt")
# As torch.distributed.checkpoint names them.
_SHARD = re.compile(r"shard-\d{5,}-model-\d{5}-of-\d{5}\.safetensors")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The length and SHA-256 of a file."""

    length: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest says, once it is known to be whole."""

    step: int
    files: dict[str, Fingerprint]
    about: dict[str, Any]  # whatever JSON the caller gave
    world_size: int = 1

    @property
    def shards(self) -> list[str]:
        """The files of sharded tensors."""
        return [name for name in self.files if _SHARD.fullmatch(name)]


def own_name(rank: int) -> str:
    """Return the name of the file that holds what is a rank's alone."""
    return f"own-{rank:05d}.pt"


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return the manifest as the JSON that is written."""
    ranks = {} if manifest.world_size == 1 else {"world_size": manifest.world_size}
    return _sealed(
        {
            "format": FORMAT,
            "version": SHARDED_VERSION if manifest.shards else VERSION,
            "step": manifest.step,
            **ranks,
            "mars": __version__,
            "torch": str(torch.__version__),
            "files": {
                name: {"bytes": file.length, "sha256": file.sha256}
                for name, file in manifest.files.items()
            },
            "about": manifest.about,
        }
    )


def read_manifest(checkpoint: Path) -> Manifest:
    """Return the manifest of a checkpoint; raise `CheckpointError` for a foreign or edited one."""
    path = checkpoint / NAME
    try:
        raw = path.read_bytes()
        entries = json.loads(raw)
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: it is not JSON") from error
    _check_format(entries, path)
    if _sealed(entries) != raw:
        raise CheckpointError(
            f"checkpoint {path} is damaged or edited: its SHA-256 differs from the one it states"
        )
    try:
        return Manifest(
            step=entries["step"],
            files=_read_files(entries["files"], path),
            about=entries["about"],
            world_size=entries.get("world_size", 1),
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: entries are missing") from error


def _read_files(entries: Mapping[str, Any], path: Path) -> dict[str, Fingerprint]:
    names = [MODEL, TRAINING, *(name for name in entries if name not in (MODEL, TRAINING))]
    for name in names[2:]:
        # A name becomes part of a path: only those that a checkpoint can have are looked for.
        if not (_OWN.fullmatch(name) or _SHARD.fullmatch(name)):
            raise CheckpointError(f"checkpoint {path} is foreign: it names the file {name!r}")
    return {name: Fingerprint(entries[name]["bytes"], entries[name]["sha256"]) for name in names}


def _check_format(entries: object, path: Path) -> None:
    found = entries.get("format") if isinstance(entries, dict) else None
    if not isinstance(entries, dict) or found != FORMAT:
        raise CheckpointError(f"checkpoint {path} is foreign: format {found!r}, not {FORMAT!r}")
    version = entries.get("version")
    if not isinstance(version, int) or version > SHARDED_VERSION:
        raise CheckpointError(
            f"checkpoint {path} has format version {version!r}, this mars reads up to "
            f"{SHARDED_VERSION}; it was written by mars {entries.get('mars')}: "
            "install that or a later one"
        )


def _sealed(entries: Mapping[str, Any]) -> bytes:
    """Return the entries as JSON that ends with their own digest, replacing one they had."""
    plain = {key: value for key, value in entries.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(plain).encode()).hexdigest()
    return (json.dumps({**plain, "sha256": digest}, indent=2) + "\n").encode()

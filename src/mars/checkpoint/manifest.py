"""The manifest of a checkpoint: format, versions, step, and the digest of every file.

It is written last and seals itself: its last entry is the SHA-256 of the entries before it, so an
edited manifest is noticed like an edited file. That guards against damage, not against an
adversary, who can compute a digest too; against him, loading executes nothing.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mars import __version__
from mars.checkpoint.errors import CheckpointError

FORMAT = "mars-checkpoint"
VERSION = 1
NAME = "manifest.json"
MODEL, TRAINING = "model.pt", "training.pt"


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


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return the manifest as the JSON that is written."""
    return _sealed(
        {
            "format": FORMAT,
            "version": VERSION,
            "step": manifest.step,
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
            files={
                name: Fingerprint(entries["files"][name]["bytes"], entries["files"][name]["sha256"])
                for name in (MODEL, TRAINING)
            },
            about=entries["about"],
        )
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: entries are missing") from error


def _check_format(entries: object, path: Path) -> None:
    found = entries.get("format") if isinstance(entries, dict) else None
    if not isinstance(entries, dict) or found != FORMAT:
        raise CheckpointError(f"checkpoint {path} is foreign: format {found!r}, not {FORMAT!r}")
    version = entries.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise CheckpointError(
            f"checkpoint {path} has format version {version!r}, this mars reads up to {VERSION}; "
            f"it was written by mars {entries.get('mars')}: install that or a later one"
        )


def _sealed(entries: Mapping[str, Any]) -> bytes:
    """Return the entries as JSON that ends with their own digest, replacing one they had."""
    plain = {key: value for key, value in entries.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(plain).encode()).hexdigest()
    return (json.dumps({**plain, "sha256": digest}, indent=2) + "\n").encode()

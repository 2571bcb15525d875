"""What a prepared corpus says about itself: ``manifest.json``, written last and read first."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from mars.config.errors import RefusedError

Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = get_args(Split)

MANIFEST = "manifest.json"
_FORMAT, _VERSION = "mars-corpus", 1


@dataclass(frozen=True, slots=True)
class File:
    """A file of the corpus."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Shard(File):
    """A file of tokens."""

    tokens: int


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """The files of a split: its tokens in order, and where its documents end."""

    tokens: int
    documents: int
    shards: tuple[Shard, ...]
    ends: File  # little-endian uint64, one a document: tokens up to and with its end of text


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything known about a prepared corpus."""

    tokenizer: str
    vocab_size: int
    eot: int
    tokenizer_files: tuple[File, ...]
    splits: Mapping[Split, SplitFiles]
    source: Mapping[str, Any]  # JSON: what it was made from, and how
    skipped: Mapping[str, int]  # documents and files left out, by reason

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of tokens on disk."""
        return token_dtype(self.vocab_size)

    @property
    def digest(self) -> str:
        """The SHA-256 of the names and digests of all files, as ``sha256sum`` prints them."""
        lines = "".join(f"{file.sha256}  {file.name}\n" for file in self.files())
        return hashlib.sha256(lines.encode()).hexdigest()

    def files(self) -> Iterator[File]:
        """Yield every file but the manifest."""
        for split in SPLITS:
            yield from self.splits[split].shards
            yield self.splits[split].ends
        yield from self.tokenizer_files

    def to_json(self) -> str:
        """Return the text of ``manifest.json``."""
        head = {"format": _FORMAT, "version": _VERSION}
        derived = {"digest": self.digest, "dtype": self.dtype.name}
        return json.dumps(head | derived | dataclasses.asdict(self), indent=2) + "\n"


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the smallest dtype on disk that holds every token."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a prepared corpus, checked against itself."""
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        way_out = "prepare one there with `mars prepare`, or name another folder"
        raise RefusedError(f"{folder} holds no prepared corpus; {way_out}") from None
    except (OSError, ValueError) as error:
        raise RefusedError(f"{path} cannot be read ({error}); prepare the corpus anew") from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise RefusedError(f"{path} is not that of a prepared corpus; name another folder")
    if content.get("version") != _VERSION:
        raise RefusedError(
            f"{path} has version {content.get('version')!r} of the format, this release reads "
            f"{_VERSION}; prepare the corpus anew"
        )
    try:
        return _parsed(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RefusedError(
            f"{path} has been edited ({type(error).__name__}: {error}); prepare the corpus anew"
        ) from None


def _parsed(content: Mapping[str, Any]) -> Manifest:
    keys = [field.name for field in dataclasses.fields(Manifest)]
    values = {key: content[key] for key in keys}
    values["tokenizer_files"] = tuple(File(**file) for file in content["tokenizer_files"])
    values["splits"] = {split: _parsed_split(content["splits"][split]) for split in SPLITS}
    manifest = Manifest(**values)
    _check(all(Path(file.name).name == file.name for file in manifest.files()), "file names")
    _check(content["dtype"] == manifest.dtype.name, "dtype")
    _check(content["digest"] == manifest.digest, "digest")
    return manifest


def _parsed_split(content: Mapping[str, Any]) -> SplitFiles:
    split = SplitFiles(
        tokens=content["tokens"],
        documents=content["documents"],
        shards=tuple(Shard(**shard) for shard in content["shards"]),
        ends=File(**content["ends"]),
    )
    _check(sum(shard.tokens for shard in split.shards) == split.tokens, "number of tokens")
    _check(split.documents >= 1 and all(shard.tokens >= 1 for shard in split.shards), "counts")
    return split


def _check(is_consistent: bool, what: str) -> None:
    if not is_consistent:
        raise ValueError(f"contradictory {what}")


def sha256_of(path: Path) -> str:
    """Return the digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

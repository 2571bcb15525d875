"""The files that a corpus is read from: what they hold, told by their names, and opening them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, cast

from mars.config.errors import RefusedError
from mars.data.documents import chosen_files

Format = Literal["parquet", "jsonl", "text"]
Codec = Literal["plain", "gz", "zst"]

_FORMATS: dict[str, Format] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
_CODECS: dict[str, Codec] = {".gz": "gz", ".zst": "zst"}
# Bytes of text that a byte of a file holds, at most, in ordinary web text; for estimates.
_EXPANSION: dict[Codec, int] = {"plain": 1, "gz": 4, "zst": 4}


@dataclass(frozen=True, slots=True)
class Input:
    """A file to read, on this machine or behind an address."""

    location: str
    name: str  # what it is called, wherever it lies
    format: Format
    codec: Codec
    size: int
    changed: int = 0  # nanoseconds; 0 for what never changes under its address

    @property
    def is_remote(self) -> bool:
        """Whether it is fetched while it is read."""
        return "://" in self.location

    @property
    def text_bytes(self) -> int:
        """About how many bytes of text it holds, or a few more; the footer of parquet knows."""
        return self.size * _EXPANSION[self.codec]


def make_input(location: str, *, size: int, changed: int = 0) -> Input:
    """Return a file as an input, its format told by its name; `RefusedError` if it is empty."""
    suffixes = Path(location).suffixes
    codec = _CODECS.get(suffixes[-1].lower(), "plain") if suffixes else "plain"
    rest = suffixes if codec == "plain" else suffixes[:-1]
    format_ = _FORMATS.get(rest[-1].lower(), "text") if rest else "text"
    if format_ == "parquet" and codec != "plain":
        raise RefusedError(f"{location} is compressed from outside; decompress it")
    if size == 0 and (format_, codec) != ("text", "plain"):
        raise RefusedError(f"{location} is empty; replace it, or leave it out")
    return Input(location, location.rsplit("/", 1)[-1], format_, codec, size, changed)


def local_inputs(given: Sequence[Path], *, out: Path) -> list[Input]:
    """Return the files named, and those in folders named, in sorted order; all of one format."""
    inputs = []
    for path, _ in chosen_files(given, (), out=out):
        status = path.stat()
        inputs.append(make_input(str(path), size=status.st_size, changed=status.st_mtime_ns))
    first = inputs[0]
    other = next((each for each in inputs if each.format != first.format), None)
    if other is not None:
        raise RefusedError(
            f"{first.location} is {first.format} and {other.location} is {other.format}; name "
            "files of one format"
        )
    return inputs


def fingerprint(inputs: Sequence[Input], *, with_times: bool) -> str:
    """Return a digest of the names and sizes of files, and of when they were changed."""
    sha256 = hashlib.sha256()
    for each in inputs:
        changed = each.changed if with_times else 0
        sha256.update(f"{each.name}\t{each.size}\t{changed}\n".encode())
    return sha256.hexdigest()


def open_binary(each: Input) -> BinaryIO:
    """Return the file, open for reading."""
    if not each.is_remote:
        return Path(each.location).open("rb")
    import fsspec  # type: ignore[import-untyped]  # it has no types

    return cast("BinaryIO", fsspec.open(each.location, "rb").open())

"""Writing the files of a split: shards of tokens, and where documents end.

A writer can go on from any point that was synced before: what lies beyond it is cut off.
"""

import contextlib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mars.config.errors import RefusedError
from mars.data.manifest import SPLITS, File, Shard, Split, SplitFiles, token_dtype
from mars.data.tokenizers import Ids, Tokenizer

SHARD_TOKENS = 100_000_000
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Written:
    """How far a split is written."""

    tokens: int = 0
    documents: int = 0
    shards: tuple[Shard, ...] = ()  # the full ones


NOTHING = Written()


def ended(ids: Ids, tokenizer: Tokenizer) -> NDArray[Any]:
    """Return the tokens of a document with the end of text, in the dtype they have on disk.

    An id outside the vocabulary raises `ValueError`: it might not fit, and would wrap silently.
    """
    if len(ids) and int(ids.max()) >= tokenizer.vocab_size:
        raise ValueError(
            f"token {int(ids.max())} lies beyond the vocabulary of {tokenizer.vocab_size}"
        )
    tokens = np.empty(len(ids) + 1, dtype=token_dtype(tokenizer.vocab_size))
    tokens[:-1], tokens[-1] = ids, tokenizer.eot
    return tokens


class SplitWriter(contextlib.AbstractContextManager["SplitWriter"]):
    """Writes the documents of a split to one shard after the other, from ``start`` on."""

    def __init__(
        self,
        folder: Path,
        split: Split,
        *,
        shard_tokens: int,
        itemsize: int,
        start: Written = NOTHING,
    ) -> None:
        self._folder, self._split, self._shard_tokens = folder, split, shard_tokens
        self._shards = list(start.shards)
        self._tokens, self._documents = start.tokens, start.documents
        self._in_shard = start.tokens - sum(shard.tokens for shard in start.shards)
        self._sha256 = hashlib.sha256()
        self._file: BinaryIO | None = None
        for path in folder.glob(f"{split}-[0-9]*.bin"):
            if path.name > self._name or (path.name == self._name and not self._in_shard):
                path.unlink()
        _check_size(folder / self._name, self._in_shard * itemsize)
        _check_size(self._ends_path, start.documents * 8)
        if self._in_shard:
            self._file, self._sha256 = _continued(
                folder / self._name, size=self._in_shard * itemsize
            )
        self._ends, self._ends_sha256 = _continued(self._ends_path, size=start.documents * 8)

    def __exit__(self, *_: object) -> None:
        for file in (self._file, self._ends):
            if file is not None:
                file.close()

    def append(self, tokens: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """Write documents that follow each other, to several shards where one is too small."""
        ends = (self._tokens + np.cumsum(lengths, dtype=np.int64)).astype("<u8")
        self._ends.write(ends.data)
        self._ends_sha256.update(ends.data)
        self._tokens += len(tokens)
        self._documents += len(lengths)
        while len(tokens):
            if self._file is None:
                self._file = (self._folder / self._name).open("xb")
            part = tokens[: self._shard_tokens - self._in_shard]
            self._file.write(part.data)
            self._sha256.update(part.data)
            self._in_shard += len(part)
            if self._in_shard == self._shard_tokens:
                self._close(self._file)
            tokens = tokens[len(part) :]

    def sync(self) -> Written:
        """Return how far the split is written, all of it on the disk."""
        for file in (self._file, self._ends):
            if file is not None:
                file.flush()
                os.fsync(file.fileno())
        return Written(self._tokens, self._documents, tuple(self._shards))

    def finish(self) -> SplitFiles:
        """Return the files of the split, all of them on the disk."""
        if self._file is not None:
            self._close(self._file)
        self.sync()
        return SplitFiles(
            tokens=self._tokens,
            documents=self._documents,
            shards=tuple(self._shards),
            ends=File(self._ends_path.name, self._ends_sha256.hexdigest()),
        )

    @property
    def _name(self) -> str:
        return f"{self._split}-{len(self._shards):05}.bin"

    @property
    def _ends_path(self) -> Path:
        return self._folder / f"{self._split}-documents.bin"

    def _close(self, file: BinaryIO) -> None:
        file.flush()
        os.fsync(file.fileno())
        file.close()
        self._shards.append(Shard(self._name, self._sha256.hexdigest(), self._in_shard))
        self._file, self._sha256, self._in_shard = None, hashlib.sha256(), 0


def _check_size(path: Path, size: int) -> None:
    found = path.stat().st_size if path.is_file() else 0
    if found < size:
        raise RefusedError(
            f"{path} has {found} bytes where {size} were written; run the command again to start "
            "anew"
        )


def _continued(path: Path, *, size: int) -> tuple[BinaryIO, "hashlib._Hash"]:
    """Return a file cut to a size and open at its end, and the digest so far."""
    sha256 = hashlib.sha256()
    file = path.open("r+b" if size else "wb")
    file.truncate(size)
    while size and (block := file.read(_BLOCK)):
        sha256.update(block)
    return file, sha256


def check_both_splits(written: Mapping[Split, SplitFiles]) -> None:
    """Raise `RefusedError` where a split has no document."""
    for split in SPLITS:
        if written[split].documents == 0:
            raise RefusedError(
                f"no document is for {split}; both splits need at least one: change "
                "validation_fraction, or add documents"
            )

"""Writing a prepared corpus: all of it or nothing.

Files go to a hidden folder beside the target, reach the disk, and then the folder is renamed. The
process holds a lock on that folder, which the kernel drops however the process ends; so the next
preparation tells the remains of a killed one from the work of another and removes them.
"""

import contextlib
import errno
import fcntl
import glob
import hashlib
import os
import secrets
import shutil
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mars.config.errors import RefusedError
from mars.data.corpus import Corpus
from mars.data.manifest import (
    MANIFEST,
    SPLITS,
    File,
    Manifest,
    Shard,
    Split,
    SplitFiles,
    read_manifest,
    token_dtype,
)
from mars.data.tokenizers import Ids, Tokenizer

SHARD_TOKENS = 100_000_000


def existing_corpus(out: Path, *, source: Mapping[str, Any]) -> Corpus | None:
    """Return the corpus at ``out`` if it was made from the same source, None if nothing is there.

    Anything else there raises `RefusedError`.
    """
    if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
        return None
    way_out = "remove it or choose another folder"
    try:
        found = read_manifest(out).source
    except RefusedError:
        raise RefusedError(f"{out} exists and is not a prepared corpus; {way_out}") from None
    if found != source:
        differing = sorted(
            key for key in found.keys() | source.keys() if found.get(key) != source.get(key)
        )
        raise RefusedError(
            f"{out} holds another corpus (its {', '.join(differing)} differ); {way_out}"
        )
    return Corpus.open(out)


def write_corpus(
    documents: Iterable[tuple[Split, Ids]],
    out: Path,
    *,
    tokenizer: Tokenizer,
    source: Mapping[str, Any],
    skipped: Mapping[str, int],
    shard_tokens: int = SHARD_TOKENS,
) -> Corpus:
    """Write documents, each followed by an end of text, and return them as a corpus at ``out``.

    Args:
        documents: the ids of each document, and the split it belongs to.
        out: a folder that does not exist, or is empty.
        tokenizer: what made the ids; its files are written too.
        source: JSON that says what the corpus is made from; the same for the same corpus.
        skipped: counts of what was left out, by reason.
        shard_tokens: most tokens of a shard.
    """
    with _folder_that_becomes(out) as folder:
        manifest = Manifest(
            tokenizer=tokenizer.name,
            vocab_size=tokenizer.vocab_size,
            eot=tokenizer.eot,
            tokenizer_files=tuple(
                File(name, _write(folder / name, content))
                for name, content in tokenizer.files().items()
            ),
            splits=_write_splits(documents, folder, tokenizer=tokenizer, shard_tokens=shard_tokens),
            source=source,
            skipped=skipped,
        )
        _write(folder / MANIFEST, manifest.to_json().encode())
    corpus = existing_corpus(out, source=source)
    assert corpus is not None
    return corpus


@contextlib.contextmanager
def _folder_that_becomes(out: Path) -> Iterator[Path]:
    """Yield a folder that is renamed to ``out`` after the block, and removed if that fails.

    Where another process has made ``out`` meanwhile, its work stays.
    """
    partial = f".{out.name}.partial-"
    _remove_remains(out.parent, partial)
    folder = out.parent / f"{partial}{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        with _locked(folder):
            yield folder
            _sync(folder)
            try:
                folder.rename(out)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        _sync(out.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_remains(parent: Path, partial: str) -> None:
    for remains in parent.glob(f"{glob.escape(partial)}*"):
        with contextlib.suppress(OSError), _locked(remains):
            shutil.rmtree(remains)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; `OSError` if another process does."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, content: bytes) -> str:
    """Write a file through to the disk and return its SHA-256."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(content).hexdigest()


def _write_splits(
    documents: Iterable[tuple[Split, Ids]], folder: Path, *, tokenizer: Tokenizer, shard_tokens: int
) -> dict[Split, SplitFiles]:
    dtype = token_dtype(tokenizer.vocab_size)
    with contextlib.ExitStack() as stack:
        writers = {
            split: stack.enter_context(_SplitWriter(folder, split, shard_tokens=shard_tokens))
            for split in SPLITS
        }
        for split, ids in documents:
            tokens = np.empty(len(ids) + 1, dtype=dtype)
            tokens[:-1], tokens[-1] = ids, tokenizer.eot
            writers[split].append(tokens)
        written = {split: writer.finish() for split, writer in writers.items()}
    for split in SPLITS:
        if written[split].documents == 0:
            raise RefusedError(f"no document is for {split}; both splits need at least one")
    return written


class _SplitWriter(contextlib.AbstractContextManager["_SplitWriter"]):
    """Writes the documents of a split to one shard after the other."""

    def __init__(self, folder: Path, split: Split, *, shard_tokens: int) -> None:
        self._folder, self._split, self._shard_tokens = folder, split, shard_tokens
        self._file: BinaryIO | None = None
        self._sha256 = hashlib.sha256()
        self._written = 0  # to this shard
        self._shards: list[Shard] = []
        self._ends = array("Q", [0])

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def append(self, tokens: Ids) -> None:
        """Write a document, to several shards where one is too small."""
        self._ends.append(self._ends[-1] + len(tokens))
        while len(tokens):
            if self._file is None:
                self._file = (self._folder / self._name).open("xb")
            part = tokens[: self._shard_tokens - self._written]
            self._file.write(part.data)
            self._sha256.update(part.data)
            self._written += len(part)
            if self._written == self._shard_tokens:
                self._close(self._file)
            tokens = tokens[len(part) :]

    def finish(self) -> SplitFiles:
        """Return the files of the split, all of them on the disk."""
        if self._file is not None:
            self._close(self._file)
        ends = np.array(self._ends[1:], dtype="<u8")
        name = f"{self._split}-documents.bin"
        return SplitFiles(
            tokens=int(self._ends[-1]),
            documents=len(ends),
            shards=tuple(self._shards),
            ends=File(name, _write(self._folder / name, ends.tobytes())),
        )

    @property
    def _name(self) -> str:
        return f"{self._split}-{len(self._shards):05}.bin"

    def _close(self, file: BinaryIO) -> None:
        file.flush()
        os.fsync(file.fileno())
        file.close()
        self._shards.append(Shard(self._name, self._sha256.hexdigest(), self._written))
        self._file, self._sha256, self._written = None, hashlib.sha256(), 0

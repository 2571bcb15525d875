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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mars.config.errors import RefusedError
from mars.data.corpus import Corpus
from mars.data.manifest import (
    MANIFEST,
    SPLITS,
    File,
    Manifest,
    Split,
    SplitFiles,
    read_manifest,
    token_dtype,
)
from mars.data.shards import SHARD_TOKENS, SplitWriter, check_both_splits, ended
from mars.data.tokenizers import Ids, Tokenizer

MEASURED = "measured"  # the entry of a source that is known only once everything has been read


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
    keys = (found.keys() | source.keys()) - {MEASURED}
    differing = sorted(key for key in keys if found.get(key) != source.get(key))
    if differing:
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
    with folder_that_becomes(out) as folder:
        splits = _write_splits(documents, folder, tokenizer=tokenizer, shard_tokens=shard_tokens)
        write_manifest(folder, splits, tokenizer=tokenizer, source=source, skipped=skipped)
    corpus = existing_corpus(out, source=source)
    assert corpus is not None
    return corpus


def write_manifest(
    folder: Path,
    splits: Mapping[Split, SplitFiles],
    *,
    tokenizer: Tokenizer,
    source: Mapping[str, Any],
    skipped: Mapping[str, int],
) -> None:
    """Write the tokenizer's files, and last what makes a folder a corpus."""
    check_both_splits(splits)
    manifest = Manifest(
        tokenizer=tokenizer.name,
        vocab_size=tokenizer.vocab_size,
        eot=tokenizer.eot,
        tokenizer_files=tuple(
            File(name, write_file(folder / name, content))
            for name, content in tokenizer.files().items()
        ),
        splits=splits,
        source=source,
        skipped=skipped,
    )
    write_file(folder / MANIFEST, manifest.to_json().encode())


def publish(folder: Path, out: Path) -> None:
    """Give a finished folder its name; where another process has made ``out``, its work stays."""
    sync_folder(folder)
    try:
        folder.rename(out)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    sync_folder(out.parent)


@contextlib.contextmanager
def folder_that_becomes(out: Path) -> Iterator[Path]:
    """Yield a folder that is renamed to ``out`` after the block, and removed if that fails."""
    partial = f".{out.name}.partial-"
    _remove_remains(out.parent, partial)
    folder = out.parent / f"{partial}{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        with locked(folder):
            yield folder
            publish(folder, out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_remains(parent: Path, partial: str) -> None:
    for remains in parent.glob(f"{glob.escape(partial)}*"):
        with contextlib.suppress(OSError), locked(remains):
            shutil.rmtree(remains)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; `OSError` if another process does."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Write the names in a folder through to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, content: bytes) -> str:
    """Write a file through to the disk and return its SHA-256."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(content).hexdigest()


def _write_splits(
    documents: Iterable[tuple[Split, Ids]], folder: Path, *, tokenizer: Tokenizer, shard_tokens: int
) -> dict[Split, SplitFiles]:
    itemsize = token_dtype(tokenizer.vocab_size).itemsize
    with contextlib.ExitStack() as stack:
        writers = {
            split: stack.enter_context(
                SplitWriter(folder, split, shard_tokens=shard_tokens, itemsize=itemsize)
            )
            for split in SPLITS
        }
        for split, ids in documents:
            tokens = ended(ids, tokenizer)
            writers[split].append(tokens, np.array([len(tokens)]))
        return {split: writer.finish() for split, writer in writers.items()}

"""The documents of a corpus: which files are read, where documents begin, which split is theirs.

Without files named for validation, a document's content decides where it goes, so the split is
the same in any order and copies of a document never lie on both sides.
"""

import hashlib
import mmap
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mars.config.errors import RefusedError
from mars.data.manifest import Split

SplitFile = tuple[Path, Split | None]  # None: the content of each document decides


@dataclass(frozen=True, slots=True)
class Document:
    """A document that has not been encoded yet."""

    content: bytes
    digest: bytes
    split: Split
    path: Path
    offset: int

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing to learn from it."""
        return not self.content or self.content.isspace()


@dataclass(frozen=True, slots=True)
class Survey:
    """What reading every document once shows."""

    documents: Counter[Split]  # those that are not blank
    blank: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of files in order, one at a time in memory."""

    files: Sequence[SplitFile]
    validation_fraction: float
    separator: bytes | None = None  # between the documents of a file; None: a file is one

    def __iter__(self) -> Iterator[Document]:
        for path, given in self.files:
            for offset, content in _pieces(path, self.separator):
                digest = hashlib.sha256(content).digest()
                split = given or split_of(digest, self.validation_fraction)
                yield Document(content, digest, split, path, offset)

    def survey(self) -> Survey:
        """Return counts, size and digest of all documents."""
        counts: Counter[Split] = Counter()
        blank = size = 0
        sha256 = hashlib.sha256()
        for document in self:
            sha256.update(document.split.encode() + document.digest)
            size += len(document.content)
            if document.is_blank:
                blank += 1
            else:
                counts[document.split] += 1
        return Survey(counts, blank, size, sha256.hexdigest())


def split_of(digest: bytes, validation_fraction: float) -> Split:
    """Return the split of a document by its SHA-256."""
    place = int.from_bytes(digest[:8], "big") / 2**64
    return "validation" if place < validation_fraction else "train"


def _pieces(path: Path, separator: bytes | None) -> Iterator[tuple[int, bytes]]:
    """Yield the documents of a file with their offsets."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:  # which cannot be mapped
            yield 0, b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            start = 0
            while separator and (end := content.find(separator, start)) >= 0:
                yield start, content[start:end]
                start = end + len(separator)
            yield start, content[start:]


def chosen_files(
    inputs: Sequence[Path], validation: Sequence[Path], *, out: Path
) -> list[SplitFile]:
    """Return the files to read, each once: what is validated on is not trained on.

    A folder stands for the files in it, sorted, hidden ones left out; it must not hold ``out``.
    """
    for path in (*inputs, *validation):
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
            raise RefusedError(f"{out} lies in the input {path}; choose a folder outside it")
    trained, validated = _files_by_real_path(inputs), _files_by_real_path(validation)
    if not validated:
        return [(path, None) for path in trained.values()]
    return [
        *((path, "train") for real, path in trained.items() if real not in validated),
        *((path, "validation") for path in validated.values()),
    ]


def _files_by_real_path(given: Sequence[Path]) -> dict[Path, Path]:
    found: list[Path] = []
    for path in given:
        files = _files_below(path) if path.is_dir() else [path] if path.is_file() else []
        if not files:
            raise RefusedError(f"{path} is neither a file nor a folder with files; check the path")
        found += files
    for path in found:
        if not os.access(path, os.R_OK):
            raise RefusedError(f"{path} cannot be read; allow it, or leave the file out")
    return {path.resolve(): path for path in found}


def _files_below(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]

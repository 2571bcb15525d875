"""Reading a prepared corpus: its tokens by memory map, its tokenizer, its integrity."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mars.config.errors import RefusedError
from mars.data.manifest import SPLITS, Manifest, Split, read_manifest, sha256_of
from mars.data.tokenizers import Tokenizer, make_tokenizer

_ANEW = "remove the folder and prepare the corpus anew"


class Tokens:
    """The tokens of a split as one sequence, whatever shards they lie in."""

    def __init__(self, shards: Sequence[NDArray[Any]]) -> None:
        # As plain arrays: slicing a memmap costs several times as much.
        self._shards = [np.asarray(shard) for shard in shards if len(shard)]
        self._starts = [0, *accumulate(len(shard) for shard in self._shards)]

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return a copy of the tokens from ``start`` up to ``stop``."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"tokens {start} to {stop} of {len(self)}")
        row = np.empty(stop - start, dtype=self._shards[0].dtype)
        self._fill(row, start)
        return row

    def windows(self, starts: NDArray[np.int64], *, length: int) -> NDArray[np.int64]:
        """Return ``length`` tokens from each start as rows; the first token follows the last."""
        rows = np.empty((len(starts), length), dtype=np.int64)
        for row, start in zip(rows, (starts % len(self)).tolist(), strict=True):
            self._fill(row, start)
        return rows

    def _fill(self, row: NDArray[Any], start: int) -> None:
        filled = 0
        while filled < len(row):
            shard = bisect_right(self._starts, start) - 1
            offset = start - self._starts[shard]
            piece = self._shards[shard][offset : offset + len(row) - filled]
            row[filled : filled + len(piece)] = piece
            filled += len(piece)
            start = self._starts[shard + 1] % len(self)


class Corpus:
    """A prepared corpus, opened for reading."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.train = self._map("train")
        self.validation = self._map("validation")

    @classmethod
    def open(cls, path: str | Path) -> "Corpus":
        """Return the corpus in a folder, every file of which is there and has its size."""
        folder = Path(path)
        manifest = read_manifest(folder)
        itemsize = manifest.dtype.itemsize
        for split in SPLITS:
            files = manifest.splits[split]
            for shard in files.shards:
                _check_size(folder / shard.name, shard.tokens * itemsize)
            _check_size(folder / files.ends.name, files.documents * 8)
        for file in manifest.tokenizer_files:
            _check_exists(folder / file.name)
        return cls(folder, manifest)

    @property
    def digest(self) -> str:
        """What identifies the content: equal for equal files."""
        return self.manifest.digest

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer it was made with."""
        return load_tokenizer(self.path)

    def document_ends(self, split: Split) -> NDArray[np.uint64]:
        """Return for each document the number of tokens up to its end, end of text included."""
        return np.memmap(self.path / self.manifest.splits[split].ends.name, "<u8", mode="r")

    def verify(self) -> None:
        """Raise `RefusedError` unless every file has the digest it was written with."""
        for file in self.manifest.files():
            path = self.path / file.name
            _check_exists(path)
            if sha256_of(path) != file.sha256:
                raise RefusedError(f"{path} is damaged: its digest changed; {_ANEW}")

    def _map(self, split: Split) -> Tokens:
        names = [shard.name for shard in self.manifest.splits[split].shards]
        dtype = self.manifest.dtype
        return Tokens([np.memmap(self.path / name, dtype, mode="r") for name in names])


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Return the tokenizer of a prepared corpus from its folder alone."""
    manifest = read_manifest(Path(folder))
    return make_tokenizer(
        manifest.tokenizer, bpe=Path(folder) if manifest.tokenizer_files else None
    )


def _check_exists(path: Path) -> None:
    if not path.is_file():
        raise RefusedError(f"{path} is missing; {_ANEW}")


def _check_size(path: Path, size: int) -> None:
    _check_exists(path)
    found = path.stat().st_size
    if found != size:
        raise RefusedError(f"{path} has {found} bytes, its manifest says {size}; {_ANEW}")

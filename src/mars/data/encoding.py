"""Encoding a piece: its documents as tokens by split, and a tally of what was found."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mars.config.errors import RefusedError
from mars.data.documents import split_of
from mars.data.manifest import SPLITS, Split, token_dtype
from mars.data.pieces import Piece, Span
from mars.data.rows import Fault, rows
from mars.data.shards import ended
from mars.data.tokenizers import Tokenizer, make_tokenizer

_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Tally:
    """What some rows turned out to be."""

    rows: int = 0
    documents: int = 0
    blank: int = 0
    malformed: Mapping[str, int] = field(default_factory=dict)  # by fault
    examples: tuple[str, ...] = ()  # the first that are malformed
    text_bytes: int = 0  # of documents
    consumed: int = 0  # bytes of input files

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            rows=self.rows + other.rows,
            documents=self.documents + other.documents,
            blank=self.blank + other.blank,
            malformed=dict(Counter(self.malformed) + Counter(other.malformed)),
            examples=(*self.examples, *other.examples)[:_EXAMPLES],
            text_bytes=self.text_bytes + other.text_bytes,
            consumed=self.consumed + other.consumed,
        )


@dataclass(frozen=True, slots=True)
class Encoded:
    """The documents of a piece."""

    tokens: Mapping[Split, NDArray[Any]]  # each document with its end of text
    lengths: Mapping[Split, NDArray[np.int64]]
    digests: tuple[bytes, ...]  # SHA-256 of each document's text, in order
    tally: Tally


@dataclass(frozen=True, slots=True)
class Encoding:
    """How pieces are encoded; what a process needs to make an `Encoder` of its own."""

    tokenizer: str
    bpe: Path | None
    column: str
    separator: bytes | None
    validation_fraction: float

    def encoder(self) -> "Encoder":
        """Return what encodes so."""
        return Encoder(self, make_tokenizer(self.tokenizer, bpe=self.bpe))


class Encoder:
    """Encodes pieces."""

    def __init__(self, encoding: Encoding, tokenizer: Tokenizer) -> None:
        self._encoding, self._tokenizer = encoding, tokenizer

    def __call__(self, piece: Piece) -> Encoded:
        """Return the documents of a piece; `RefusedError` for what cannot be left out."""
        parts: dict[Split, list[NDArray[Any]]] = {split: [] for split in SPLITS}
        digests: list[bytes] = []
        tally = Tally(consumed=piece.consumed)
        for span in piece.spans:
            tally += self._encode(span, parts, digests)
        empty = np.empty(0, dtype=token_dtype(self._tokenizer.vocab_size))
        return Encoded(
            tokens={split: np.concatenate([empty, *parts[split]]) for split in SPLITS},
            lengths={split: np.array([len(p) for p in parts[split]], "<i8") for split in SPLITS},
            digests=tuple(digests),
            tally=tally,
        )

    def _encode(
        self, span: Span, parts: Mapping[Split, list[NDArray[Any]]], digests: list[bytes]
    ) -> Tally:
        found = blank = size = 0
        faults: Counter[str] = Counter()
        examples: list[str] = []
        how = self._encoding
        for number, content in rows(span, column=how.column, separator=how.separator):
            found += 1
            tokens = self._tokens(content, where=f"{span.input.location} row {number}")
            if tokens is None:
                blank += 1
            elif isinstance(content, str) or isinstance(tokens, str):
                faults[str(tokens)] += 1
                examples.append(f"{span.input.name} row {number}: {tokens}")
            else:
                digest = hashlib.sha256(content).digest()
                parts[split_of(digest, how.validation_fraction)].append(tokens)
                digests.append(digest)
                size += len(content)
        return Tally(
            rows=found,
            documents=found - blank - faults.total(),
            blank=blank,
            malformed=dict(faults),
            examples=tuple(examples[:_EXAMPLES]),
            text_bytes=size,
        )

    def _tokens(self, content: bytes | Fault, *, where: str) -> NDArray[Any] | Fault | None:
        """Return the tokens of a row, its fault, or None if there is nothing to learn from it."""
        if isinstance(content, str):
            return content
        if not content or content.isspace():
            return None
        try:
            ids = self._tokenizer.encode(content)
        except UnicodeDecodeError:
            return "not_utf8"
        try:
            return ended(ids, self._tokenizer)
        except ValueError as error:
            raise RefusedError(f"{where}: {error}; use the tokenizer's own files") from None

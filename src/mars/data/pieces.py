"""Cutting inputs into pieces, in the order of their rows.

A piece is what one process encodes at a time. Where the cuts are depends on the inputs alone, so
that a count of pieces says how far a preparation is. Rows of parquet are named, and read by who
encodes them; everything else is a stream that only one can read, and travels with the piece.
"""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

from mars.config.errors import FailedError, RefusedError
from mars.data.inputs import Input, open_binary
from mars.data.parquet import arrow, groups

PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Span:
    """Rows that follow each other in one input."""

    input: Input
    first_row: int
    content: bytes = b""
    first_group: int = 0
    last_group: int = 0  # exclusive
    weight: int = 0  # bytes of text, for parquet by its footer
    consumed: int = 0  # bytes of the file that are done with it


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows to encode at a time."""

    spans: tuple[Span, ...]

    @property
    def consumed(self) -> int:
        """How many bytes of input files are done with it."""
        return sum(span.consumed for span in self.spans)


def pieces(
    inputs: Iterable[Input], *, column: str, separator: bytes | None, piece_bytes: int = PIECE_BYTES
) -> Iterator[Piece]:
    """Yield all rows of all inputs, about ``piece_bytes`` of text at a time.

    Args:
        inputs: the files, in order.
        column: the name of the text in parquet.
        separator: what ends a document in text files; None: each file is a document.
        piece_bytes: a piece is complete when it has as many.
    """
    gathered: list[Span] = []
    weight = 0
    for each in inputs:
        spans = (
            _row_groups(each, column=column, piece_bytes=piece_bytes)
            if each.format == "parquet"
            else _stream(each, end=b"\n" if each.format == "jsonl" else separator, size=piece_bytes)
        )
        for span in spans:
            gathered.append(span)
            weight += span.weight
            if weight >= piece_bytes:
                yield Piece(tuple(gathered))
                gathered, weight = [], 0
    if gathered:
        yield Piece(tuple(gathered))


def _row_groups(each: Input, *, column: str, piece_bytes: int) -> Iterator[Span]:
    row = first_row = first = weight = consumed = 0
    found = groups(each, column=column)
    for place, group in enumerate(found, start=1):
        row, weight = row + group.rows, weight + group.text_bytes
        consumed += group.stored_bytes
        if weight >= piece_bytes or place == len(found):
            yield Span(
                each,
                first_row,
                first_group=first,
                last_group=place,
                weight=weight,
                consumed=consumed,
            )
            first_row, first, weight, consumed = row, place, 0, 0


def _stream(each: Input, *, end: bytes | None, size: int) -> Iterator[Span]:
    """Yield the content of a file, cut after ends of rows."""
    row = offset = consumed = 0
    with open_binary(each) as raw:
        stream = _decompressed(each, raw)  # closes the file once nothing refers to it
        blocks = _cut(_blocks(stream, size=size), end)
        while True:
            try:
                content = next(blocks, None)
            except (EOFError, OSError, zlib.error) as error:
                raise _broken(each, error, row=row, offset=offset) from None
            if content is None:
                return
            done, consumed = raw.tell() - consumed, raw.tell()
            yield Span(each, row, content, weight=len(content), consumed=done)
            row += content.count(end) if end else 1
            offset += len(content)


def _decompressed(each: Input, raw: BinaryIO) -> BinaryIO:
    if each.codec == "gz":
        return cast("BinaryIO", gzip.GzipFile(fileobj=raw))
    if each.codec == "zst":
        pyarrow = arrow()
        return cast("BinaryIO", pyarrow.CompressedInputStream(pyarrow.PythonFile(raw), "zstd"))
    return raw


def _broken(each: Input, error: Exception, *, row: int, offset: int) -> Exception:
    where = f"after row {row} (byte {offset} of its text): {error}"
    if each.is_remote:
        return FailedError(
            f"{each.location} could not be read {where}; run the same command again to go on"
        )
    return RefusedError(f"{each.location} is truncated or damaged {where}; replace it")


def _blocks(stream: BinaryIO, *, size: int) -> Iterator[bytes]:
    while block := stream.read(size):
        yield block


def _cut(blocks: Iterator[bytes], end: bytes | None) -> Iterator[bytes]:
    """Yield the same bytes, each time up to the last end of a row; all at once without ends.

    Ends are found from left to right, so that where some overlap the cuts are those of
    `bytes.split`.
    """
    buffer = bytearray()
    searched = 0
    is_empty = True
    for block in blocks:
        buffer += block
        is_empty = False
        if end is None:
            continue
        cut, searched = _last_end(buffer, end, start=searched)
        if cut:
            yield bytes(buffer[:cut])
            del buffer[:cut]
            searched -= cut
    if buffer or (is_empty and end is None):
        yield bytes(buffer)


def _last_end(buffer: bytearray, end: bytes, *, start: int) -> tuple[int, int]:
    """Return where the last end of a row ends, 0 for nowhere, and from where to search next."""
    cut = 0
    if any(end.startswith(end[shift:]) for shift in range(1, len(end))):
        while (found := buffer.find(end, start)) >= 0:
            cut = start = found + len(end)
    elif (found := buffer.rfind(end, start)) >= 0:
        cut = found + len(end)
    return cut, max(cut, start, len(buffer) - len(end) + 1)

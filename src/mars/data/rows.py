"""The rows of a piece: each a document's bytes, or what is wrong with it."""

import json
from collections.abc import Iterator
from typing import Literal

from mars.data.parquet import column_bytes
from mars.data.pieces import Span

# Why a row is left out, as it is called in a manifest.
Fault = Literal["bad_json", "no_column", "not_text", "not_utf8"]


def rows(
    span: Span, *, column: str, separator: bytes | None
) -> Iterator[tuple[int, bytes | Fault]]:
    """Yield the number of each row, from 1 on in its file, and its document or its fault."""
    if span.input.format == "parquet":
        values = column_bytes(
            span.input,
            column=column,
            first_group=span.first_group,
            last_group=span.last_group,
            first_row=span.first_row,
        )
        for number, value in enumerate(values, start=span.first_row + 1):
            yield number, "not_text" if value is None else value
    elif span.input.format == "jsonl":
        for number, line in enumerate(_parts(span.content, b"\n"), start=span.first_row + 1):
            yield number, _of_line(line, column)
    else:
        for number, text in enumerate(_parts(span.content, separator), start=span.first_row + 1):
            yield number, text


def _parts(content: bytes, end: bytes | None) -> list[bytes]:
    parts = content.split(end) if end else [content]
    return parts[:-1] if end and not parts[-1] else parts


def _of_line(line: bytes, column: str) -> bytes | Fault:
    if not line or line.isspace():
        return b""  # an empty line is an empty document
    try:
        row = json.loads(line)
    except UnicodeDecodeError:
        return "not_utf8"
    except (ValueError, RecursionError):
        return "bad_json"
    if not isinstance(row, dict) or column not in row:
        return "no_column"
    text = row[column]
    if not isinstance(text, str):
        return "not_text"
    try:
        return text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return "not_utf8"

"""Columns of text in parquet files, a few row groups at a time."""

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mars.config.errors import FailedError, RefusedError
from mars.data.inputs import Input, open_binary

_NEEDS = "parquet and zst need the extra 'data': pip install 'mars-optimizer[data]'"


@dataclass(frozen=True, slots=True)
class Group:
    """A row group of a file, by what its footer says."""

    rows: int
    text_bytes: int  # of the column, decompressed
    stored_bytes: int  # of the whole group


def arrow() -> Any:  # a module without types
    """Return pyarrow, or raise `RefusedError` naming the extra that brings it."""
    try:
        import pyarrow  # type: ignore[import-untyped]  # it has no types
        import pyarrow.parquet  # type: ignore[import-untyped]  # it has no types
    except ModuleNotFoundError:
        raise RefusedError(_NEEDS) from None
    return pyarrow


def groups(each: Input, *, column: str) -> list[Group]:
    """Return the row groups of a file that is whole and has the column as text."""
    metadata = _footer(each)
    _check_column(each, metadata.schema.to_arrow_schema(), column)
    return [_group(metadata.row_group(place), column) for place in range(metadata.num_row_groups)]


def column_bytes(
    each: Input, *, column: str, first_group: int, last_group: int, first_row: int
) -> list[bytes | None]:
    """Return the column in some row groups as UTF-8, or what should be; None for null."""
    footer = _footer(each)
    with _opened(each, what=f"the row group of row {first_row + 1}", footer=footer) as file:
        table = file.read_row_groups(range(first_group, last_group), columns=[column])
        text = table.column(0)
        pyarrow = arrow()
        if pyarrow.types.is_dictionary(text.type):
            text = text.cast(text.type.value_type)
        values: list[bytes | None] = text.cast(pyarrow.large_binary()).to_pylist()
        return values


@functools.lru_cache(maxsize=2)
def _footer(each: Input) -> Any:
    """Return what a file says about itself: of a large one some megabytes, so not every time."""
    with _opened(each, what="its footer") as file:
        return file.metadata


@contextlib.contextmanager
def _opened(each: Input, *, what: str, footer: Any = None) -> Iterator[Any]:
    pyarrow = arrow()
    try:
        with (
            open_binary(each) as file,
            pyarrow.parquet.ParquetFile(file, metadata=footer) as parquet,
        ):
            yield parquet
    except (OSError, pyarrow.ArrowException) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if each.is_remote:
            raise FailedError(
                f"{each.location}: {what} could not be fetched ({reason}); run the same command "
                "again to go on"
            ) from None
        raise RefusedError(
            f"{each.location} is truncated or damaged: {what} cannot be read ({reason}); replace it"
        ) from None


def _check_column(each: Input, schema: Any, column: str) -> None:
    if column not in schema.names:
        raise RefusedError(
            f"{each.location} has no column {column!r} but {', '.join(schema.names)}; name one "
            "with --column"
        )
    types, found = arrow().types, schema.field(column).type
    value = found.value_type if types.is_dictionary(found) else found
    if not (types.is_string(value) or types.is_large_string(value) or types.is_string_view(value)):
        raise RefusedError(
            f"{each.location}: column {column!r} holds {found}, not text; name another with "
            "--column"
        )


def _group(metadata: Any, column: str) -> Group:
    chunks = [metadata.column(place) for place in range(metadata.num_columns)]
    return Group(
        rows=metadata.num_rows,
        text_bytes=sum(
            chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == column
        ),
        stored_bytes=sum(chunk.total_compressed_size for chunk in chunks),
    )

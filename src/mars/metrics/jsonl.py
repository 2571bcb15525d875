"""metrics.jsonl: the record of a run that everything after training reads.

A checkpoint stores the sink's `position` after a `flush`. Opened at that position, the file loses
what came after the checkpoint, and after a resume reads as if the run had never stopped.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mars.config.errors import RefusedError
from mars.metrics.record import Record


class JsonlSink:
    """Appends one line a record.

    Args:
        path: the file; made if it is not there.
        position: bytes to keep of it, as a checkpoint recorded them; 0 starts over. By default
            all of it.
    """

    def __init__(self, path: Path, *, position: int | None = None) -> None:
        self._path = path
        self._position = _checked_position(path, position)
        # Unbuffered: each record is one write call, and is the system's once `write` returns.
        self._file = path.open("ab", buffering=0)
        if self._position < os.fstat(self._file.fileno()).st_size:
            self._file.truncate(self._position)

    @property
    def position(self) -> int:
        """Bytes of whole lines in the file."""
        return self._position

    def write(self, record: Record) -> None:
        """Append the record, or leave the file as it was and raise `OSError` naming it."""
        line = memoryview(record.as_json().encode() + b"\n")
        with self._errors_name_the_file():
            try:
                rest = line
                while rest:  # a second round only where a full disk took part of the line
                    rest = rest[self._file.write(rest) :]
            except OSError:
                with suppress(OSError):  # the first error is the one to tell
                    self._file.truncate(self._position)
                raise
        self._position += len(line)

    def flush(self) -> None:
        """Return once every record is on the disk."""
        with self._errors_name_the_file():
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flush and close the file."""
        if not self._file.closed:
            try:
                self.flush()
            finally:
                self._file.close()

    @contextmanager
    def _errors_name_the_file(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error


def read_records(path: Path) -> list[Record]:
    """Return the records of a file, without a last line that a killed process left unfinished."""
    *lines, last = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(Record.from_json(line))
        except RefusedError as refusal:
            raise RefusedError(f"{path}, line {number}: {refusal}") from refusal
    with suppress(RefusedError):  # whole but for its newline, it counts
        records.append(Record.from_json(last))
    return records


def _checked_position(path: Path, position: int | None) -> int:
    """Return where to go on writing: after ``position`` bytes, which end a line, or at the end."""
    size = path.stat().st_size if path.exists() else 0
    position = size if position is None else position
    if not 0 <= position <= size:
        raise RefusedError(
            f"{path} has {size} bytes and the run goes on after {position}: "
            "part of it is lost; put the file back, or start the run anew"
        )
    if position > 0:
        with path.open("rb") as file:
            file.seek(position - 1)
            if file.read(1) != b"\n":
                raise RefusedError(
                    f"{path} has no line that ends at byte {position}: "
                    "it was edited or cut off; put the file back, or start the run anew"
                )
    return position

"""A file that is hashed as it is written, so that nothing is read back."""

import hashlib
import io
from pathlib import Path
from typing import TYPE_CHECKING

from mars.checkpoint.manifest import Fingerprint

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class HashedFile(io.FileIO):
    """A file that knows the length and digest of what was written to it."""

    def __init__(self, path: Path, mode: str) -> None:
        super().__init__(path, mode)
        self._sha256 = hashlib.sha256()
        self._length = 0

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write what one system call takes, and return how much that was."""
        # One system call writes at most 2 GiB; the buffer above comes back with the rest.
        written = super().write(data)
        self._sha256.update(memoryview(data)[:written])
        self._length += written
        return written

    @property
    def fingerprint(self) -> Fingerprint:
        """What was written so far."""
        return Fingerprint(self._length, self._sha256.hexdigest())

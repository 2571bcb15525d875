"""What a checkpoint raises that cannot be read, may not be written, or failed to be."""

import re
from typing import Self

from mars.config.errors import FailedError, RefusedError


class CheckpointError(RefusedError):
    """A checkpoint that is not good, or a state that none can hold; the message says which."""


class SaveError(FailedError):
    """A checkpoint that could not be written; the message names the one that is still good."""


class RankLostError(FailedError):
    """A rank that does not answer any more; those that are left wait for nobody from here on."""

    @classmethod
    def noticed(cls, error: RuntimeError) -> Self:
        """Return the error for what a process group says when a rank is gone."""
        # What comes before is a place in torch's source, what comes after is general advice.
        said = re.sub(r"^\[\S+\] ", "", " ".join(str(error).split())).partition(". ")[0]
        return cls(f"a rank is gone: {said}")


def reason(error: BaseException) -> str:
    """Return what went wrong in one line, with the file that it went wrong with."""
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror or error}{where}"
    line = " ".join(str(error).split())
    is_ours = isinstance(error, FailedError | RefusedError)
    return line if is_ours else f"{type(error).__name__}: {line}"

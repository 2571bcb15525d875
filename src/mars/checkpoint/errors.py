"""What a checkpoint raises that cannot be read, may not be written, or failed to be."""

from mars.config.errors import FailedError, RefusedError


class CheckpointError(RefusedError):
    """A checkpoint that is not good, or a state that none can hold; the message says which."""


class SaveError(FailedError):
    """A checkpoint that could not be written; the message names the one that is still good."""

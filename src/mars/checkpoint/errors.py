"""What a checkpoint that cannot be written or read raises."""

from mars.config.errors import RefusedError


class CheckpointError(RefusedError):
    """A checkpoint that cannot be written or read; the message names the file and the reason."""

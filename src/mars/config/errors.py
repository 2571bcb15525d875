"""How a command ends when it cannot do what was asked: with one line, and the way out in it."""


class RefusedError(ValueError):
    """Something asked for that cannot be done; the message is one line and names the way out."""


class FailedError(RuntimeError):
    """Something that went wrong on the way; the message is one line and says what is safe."""

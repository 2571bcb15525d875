"""Where a corpus goes: a folder that can be made, on a disk with room."""

import os
import shutil
from pathlib import Path

from mars.config.errors import RefusedError


def check_target(out: Path, *, needed_bytes: int) -> None:
    """Make the folder around the target; refuse one that is full or cannot be written to."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusedError(
            f"{out.parent} cannot be made ({error.strerror}); choose another folder"
        ) from None
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise RefusedError(f"{out.parent} cannot be written to; choose another folder")
    free = shutil.disk_usage(out.parent).free
    if free < needed_bytes:
        raise RefusedError(
            f"{out} needs about {needed_bytes / 1e9:.2f} GB and {free / 1e9:.2f} GB are free; "
            "make room or choose another disk"
        )

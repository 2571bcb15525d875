"""How one process among several ends when it cannot go on: with one line, and told once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mars import checkpoint
from mars.config.errors import FailedError, RefusedError
from mars.training.run_directory import RunDirectory
from mars.training.step import NonfiniteError
from mars.training.world import World, is_lost, one_line

# Raised by every process alike.
_COMMON = (RefusedError, NonfiniteError, checkpoint.SaveError)


class LostError(FailedError):
    """Another process of the run no longer answers."""


@dataclass(slots=True)
class Reached:
    """How far a run is, for those who tell how it ended."""

    step: Callable[[], int] | None = None


@contextmanager
def failures_told(world: World, directory: RunDirectory) -> Iterator[Reached]:
    """Turn what ends this process into a line with its rank; a process alone keeps its errors.

    What all processes come to alike is for the first one to say. An error that nobody foresaw
    stays as it is.
    """
    reached = Reached()
    if world.size == 1:
        yield reached
        return
    try:
        yield reached
    except Exception as error:
        if is_lost(error):
            raise LostError(_lost(world, directory, reached, error)) from error
        if world.is_first or not isinstance(error, RefusedError | FailedError | OSError):
            raise
        if isinstance(error, _COMMON):
            raise SystemExit(2 if isinstance(error, RefusedError) else 1) from error
        raise FailedError(f"{world.launch.label}: {error}") from error


def _lost(world: World, directory: RunDirectory, reached: Reached, error: Exception) -> str:
    when = f"at step {reached.step()}" if reached.step else "before the first step"
    told = f"{world.launch.label} lost its connection to the others {when}: {one_line(error)}"
    if not directory.exists:
        return f"{told}; nothing was made yet"
    # By its name alone: what has it is whole, and this process has no time left to read it.
    found = checkpoint.find(directory.checkpoints)
    last = f"the last checkpoint is step {found[-1].step}: {found[-1].path}" if found else ""
    return f"{told}; {last or 'there is no checkpoint yet'}; resume with {directory.resume_command}"

"""Where records go: any number of sinks behind one."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol, Self

from mars.metrics.record import Record


class Sink(Protocol):
    """Something that keeps records."""

    def write(self, record: Record) -> None:
        """Take one record."""

    def flush(self) -> None:
        """Return once everything taken would survive this process."""

    def close(self) -> None:
        """Flush, and release what is held; closing twice is harmless."""


class Records(Sink, Protocol):
    """The sink that a run goes on with after a resume."""

    @property
    def position(self) -> int:
        """How much it holds, for a checkpoint."""
        ...


class Sinks:
    """Every record to every sink, in the order given: the one that must not fail comes first."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)

    def write(self, record: Record) -> None:
        """Hand the record to each sink."""
        for sink in self._sinks:
            sink.write(record)

    def flush(self) -> None:
        """Flush each sink."""
        for sink in self._sinks:
            sink.flush()

    def close(self) -> None:
        """Close every sink, also after one has failed to; its error is raised at the end."""
        with ExitStack() as stack:
            for sink in reversed(self._sinks):
                stack.callback(sink.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

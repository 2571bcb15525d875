"""What a process does with records and messages that another one of its run shows and keeps."""

from mars.metrics.display import Header, Summary
from mars.metrics.record import Record


class SilentDisplay:
    """A display that shows nothing."""

    def start(self, header: Header) -> None:
        """Do nothing."""

    def train(self, record: Record) -> None:
        """Do nothing."""

    def validation(self, record: Record) -> None:
        """Do nothing."""

    def message(self, text: str) -> None:
        """Do nothing."""

    def finish(self, summary: Summary) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class NoRecords:
    """A sink that keeps nothing."""

    position = 0

    def write(self, record: Record) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

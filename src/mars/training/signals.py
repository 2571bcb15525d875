"""Stopping politely: SIGTERM and SIGINT ask the loop to save and leave."""

import signal
import threading
from types import FrameType
from typing import Any


class StopRequest:
    """A context in which SIGTERM and SIGINT are noted; a second SIGINT interrupts at once.

    Outside the main thread, where signals cannot be caught, nothing is ever noted.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._before: dict[int, Any] = {}  # what signal.signal returns has no useful type

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.name is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.name = signal.Signals(number).name

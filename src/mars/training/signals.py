"""Stopping politely: SIGTERM, SIGINT and SIGHUP ask the loop to save and leave."""

import contextlib
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any


class StopRequest:
    """A context in which signals to stop are noted; a second SIGINT interrupts at once.

    Outside the main thread, where signals cannot be caught, nothing is ever noted. It says so on
    the error stream, unless ``is_silent``. One of several processes (``is_shared``) that leaves by
    an error is deaf to SIGTERM from then on: a launcher sends it to all who are left when one has
    died, and they have to tell how they ended.
    """

    def __init__(self, *, is_silent: bool = False, is_shared: bool = False) -> None:
        self.name: str | None = None
        self._is_silent = is_silent
        self._is_shared = is_shared
        self._before: dict[int, Any] = {}  # what signal.signal returns has no useful type

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, error: object, *_: object) -> None:
        for number, handler in self._before.items():
            is_deaf = number == signal.SIGTERM and self._is_shared and error is not None
            signal.signal(number, signal.SIG_IGN if is_deaf else handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.name is not None:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        self.name = signal.Signals(number).name
        if self._is_silent:
            return
        line = f"{self.name}: saving after this step; Ctrl-C leaves at once, without saving\n"
        with contextlib.suppress(OSError):
            # Past Python's buffers, in which this signal may have come.
            os.write(sys.stderr.fileno(), line.encode())

"""Encoding pieces in several processes, in order.

Every process has up to two pieces: one that it encodes, and one that a thread of it has received
meanwhile, so that it never waits for its parent, and its parent never for it: with the thread
always ready to receive, sending cannot block, and the two cannot wait for each other. A process
ends when its parent does, however that ends.
"""

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from mars.config.errors import FailedError, RefusedError
from mars.data.encoding import Encoded, Encoder, Encoding
from mars.data.pieces import Piece

_AHEAD = 2  # pieces that a process has at a time
_WINDOW = 4  # finished and unfinished pieces a process, at most: what bounds the memory

_Answer = tuple[int, Encoded | RefusedError | FailedError]


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def encoded_in_order(
    pieces: Iterator[Piece], encoding: Encoding, *, encoder: Encoder, processes: int
) -> Iterator[Encoded]:
    """Yield the pieces encoded, in their order: the same for any number of processes.

    Args:
        pieces: what to encode.
        encoding: how; every process makes its encoder from it.
        encoder: the encoder of this process, which does it alone where it is the only one.
        processes: how many there are.
    """
    if processes == 1:
        yield from map(encoder, pieces)
        return
    pool = _Pool(encoding, processes=processes)
    try:
        yield from pool.encoded(pieces)
    finally:
        pool.stop()


class _Pool:
    """The processes that encode, and what each has."""

    def __init__(self, encoding: Encoding, *, processes: int) -> None:
        # Not forked: a child would hold its parent's locks, and know nothing of its threads.
        context = multiprocessing.get_context("spawn")
        self._has: dict[Connection, int] = {}  # how many pieces each process has
        self._processes: list[BaseProcess] = []
        for _ in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, encoding), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._has[ours] = 0

    def encoded(self, pieces: Iterator[Piece]) -> Iterator[Encoded]:
        """Yield the pieces encoded, in their order."""
        answers: dict[int, Encoded | RefusedError | FailedError] = {}
        sent = given = 0
        while True:
            while sent - given < _WINDOW * len(self._has) and (idle := self._idle()):
                piece = next(pieces, None)
                if piece is None:
                    break
                self._send(idle, (sent, piece))
                sent += 1
            if sent == given:
                return
            while given not in answers:
                answers |= self._received()
            answer = answers.pop(given)
            if not isinstance(answer, Encoded):
                raise answer
            given += 1
            yield answer

    def _idle(self) -> Connection | None:
        connection = min(self._has, key=self._has.__getitem__)
        return connection if self._has[connection] < _AHEAD else None

    def _send(self, connection: Connection, task: tuple[int, Piece]) -> None:
        try:
            connection.send(task)
        except OSError:
            raise self._death() from None
        self._has[connection] += 1

    def _received(self) -> dict[int, Encoded | RefusedError | FailedError]:
        found = {}
        for connection in wait(list(self._has)):
            assert isinstance(connection, Connection)
            try:
                place, answer = connection.recv()
            except (EOFError, OSError):
                raise self._death() from None
            self._has[connection] -= 1
            found[place] = answer
        return found

    def _death(self) -> FailedError:
        for process in self._processes:
            process.join(timeout=1)
        codes = {process.exitcode for process in self._processes} - {None, 0}
        return FailedError(
            f"an encoding process ended (exit code {codes.pop() if codes else 'unknown'}), maybe "
            "for want of memory; run the same command again to go on, or give fewer --processes"
        )

    def stop(self) -> None:
        """End the processes, whatever they are at."""
        for connection in self._has:
            connection.close()
        for process in self._processes:
            process.terminate()
            process.join()


def _serve(connection: Connection, encoding: Encoding) -> None:
    """Encode what the parent sends until it closes the connection or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to answer
    tasks: queue.Queue[tuple[int, Piece] | None] = queue.Queue()
    threading.Thread(target=_receive, args=(connection, tasks), daemon=True).start()
    encoder = encoding.encoder()
    with contextlib.suppress(OSError):
        while (task := tasks.get()) is not None:
            place, piece = task
            connection.send((place, _answer(encoder, piece)))


def _receive(connection: Connection, tasks: "queue.Queue[tuple[int, Piece] | None]") -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            tasks.put(connection.recv())
    tasks.put(None)


def _answer(encoder: Encoder, piece: Piece) -> Encoded | RefusedError | FailedError:
    try:
        return encoder(piece)
    except (RefusedError, FailedError) as error:
        return error
    except MemoryError:
        return FailedError("a document does not fit in memory; give fewer --processes")

"""The worker processes of a comparison, and what they say, in one queue.

Each has one thread, or one GPU, and a session of its own: a Ctrl-C at the terminal reaches the
parent alone, which then asks the workers to save.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from mars.comparison.messages import Event, Job

_PROGRAM = (sys.executable, "-m", "mars.comparison.worker")
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_LEAVE_SECONDS = 10.0


class Worker:
    """A process that trains one trial at a time."""

    def __init__(
        self, device: str, *, number: int, environment: Mapping[str, str], log: Path
    ) -> None:
        self.number = number
        """Its place among the workers, which one that replaces it takes over."""
        self.is_ready = False
        self.trial: str | None = None
        """Path of the trial it was given, while that has not ended."""
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [*_PROGRAM, device],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **_ONE_THREAD, **environment},
                start_new_session=True,
            )

    def give(self, trial: str, job: Job) -> None:
        """Send the job of a trial; that the process has died meanwhile is told by its event."""
        self.trial = trial
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.write(job.as_json().encode() + b"\n")
            self.process.stdin.flush()

    def report_to(self, events: "SimpleQueue[tuple[Worker, Event]]") -> None:
        """Put every event into a queue, the last being that the process has died."""
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                if line.endswith(b"\n"):  # not cut off by the end of the process
                    events.put((self, Event.from_json(line)))
        except (OSError, ValueError, TypeError):
            self.kill()  # one that is not understood would wait for ever
        events.put((self, Event(kind="died", reason=ending(self.process.wait()))))

    def kill(self) -> None:
        """End the process, and whatever it has started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class Pool:
    """Workers that are started one by one; leaving the context ends those that are left."""

    def __init__(self, device: str, *, log: Path) -> None:
        self._device = device
        self._log = log
        self._events: SimpleQueue[tuple[Worker, Event]] = SimpleQueue()
        self._gpus: list[str] = []
        self._threads: list[threading.Thread] = []
        self.workers: list[Worker] = []

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            with suppress(OSError):
                worker.process.stdin.close()  # type: ignore[union-attr]  # it is a pipe
        for worker in self.workers:
            try:
                worker.process.wait(_LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                worker.kill()
        for thread in self._threads:
            thread.join()
        for worker in self.workers:
            worker.process.stdout.close()  # type: ignore[union-attr]  # as above
        self.workers.clear()

    def spread(self, event: Event) -> None:
        """Give later workers a GPU each, if the first that is ready says that there are some."""
        if event.device == "cuda" and ":" not in self._device:
            self._gpus = visible_gpus(event.room)

    def add(self) -> Worker:
        """Start a worker, in the lowest place that is free."""
        taken = {worker.number for worker in self.workers}
        number = next(i for i in range(len(taken) + 1) if i not in taken)
        gpus = self._gpus
        environment = {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {}
        worker = Worker(self._device, number=number, environment=environment, log=self._log)
        self.workers.append(worker)
        thread = threading.Thread(target=worker.report_to, args=(self._events,), daemon=True)
        thread.start()
        self._threads.append(thread)
        return worker

    def next(self, *, seconds: float) -> tuple[Worker, Event] | None:
        """Return the next event and its worker, or None if there is none in so much time.

        A worker that has died is none of the pool's any more.
        """
        try:
            worker, event = self._events.get(timeout=seconds)
        except Empty:
            return None
        if event.kind == "died":
            self.workers.remove(worker)
            for pipe in (worker.process.stdin, worker.process.stdout):
                with suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]  # as above
        return worker, event

    def stop(self) -> None:
        """Ask every worker to save and leave, and return once they have."""
        for worker in self.workers:
            worker.process.terminate()
        while self.workers:
            self.next(seconds=_LEAVE_SECONDS)


def visible_gpus(count: int) -> list[str]:
    """Return what `CUDA_VISIBLE_DEVICES` calls each of the GPUs that this process may use."""
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    named = [name for name in named if name]
    return named[:count] if named else [str(number) for number in range(count)]


def ending(code: int) -> str:
    """Return in words how a process ended."""
    if code >= 0:
        return f"its process ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{hint}"

"""A process that trains the trials it is given: ``python -m mars.comparison.worker DEVICE``.

Jobs come as lines on its input and events leave as lines on its output, both as in
`mars.comparison.messages`; whatever else is printed goes to its error stream. When its input ends,
because whoever started it wants no more or has died, the process ends at once: checkpoints are
good at any instant.
"""

import gc
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

import torch

from mars.comparison.messages import Emit, Event, Job, private_output
from mars.config.errors import FailedError, RefusedError
from mars.config.load import loads
from mars.config.schema import Run
from mars.metrics.display import Header, Summary
from mars.metrics.record import Record
from mars.training.assemble import Assembled, assemble
from mars.training.hardware import memory_errors_in_words, resolve_device
from mars.training.run_directory import OccupiedError, RunDirectory

# A worker of a comparison that was killed may take this long to notice.
_PATIENCE_SECONDS = 20.0
_ASK_AGAIN_SECONDS = 0.2


class Reporter:
    """A display of a run that tells its events instead of showing them."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit

    def start(self, header: Header) -> None:
        """Tell that training begins."""
        self._emit(Event(kind="started", step=header.resumed_from or 0))

    def train(self, record: Record) -> None:
        """Tell a training record."""
        told = Event(kind="train", step=record.step, loss=record.loss, seconds=record.seconds)
        self._emit(told)

    def validation(self, record: Record) -> None:
        """Tell a validation record."""
        told = Event(kind="validation", step=record.step, loss=record.loss, seconds=record.seconds)
        self._emit(told)

    def message(self, text: str) -> None:
        """Tell a line for people."""
        self._emit(Event(kind="message", reason=text))

    def finish(self, summary: Summary) -> None:
        """Do nothing: the end is told by who knows how it ended."""

    def close(self) -> None:
        """Do nothing: nothing is held."""


def main() -> None:
    """Serve jobs until the input ends, a signal comes or a trial fails."""
    emit = private_output()
    signal.signal(signal.SIGTERM, _leave)
    jobs = _jobs()
    try:
        device = resolve_device(sys.argv[1])
    except RefusedError as refusal:
        emit(Event(kind="refused", reason=str(refusal)))
        return
    if device.type == "cpu":
        torch.set_num_threads(1)
    emit(Event(kind="ready", device=device.type, room=_room(device)))
    while _serve(jobs.get(), emit):
        # What a trial leaves in cycles would be the next one's peak of memory.
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _serve(job: Job, emit: Emit) -> bool:
    """Do a job and tell how it ended; return whether this process is fit for another."""
    try:
        ended = _train(job, Reporter(emit))
        emit(ended)
        return ended.kind != "stopped"
    except RefusedError as refusal:
        emit(Event(kind="refused", reason=_one_line(str(refusal))))
    except Exception as error:  # whatever it is, the parent goes on with the other trials
        traceback.print_exc()
        is_told = isinstance(error, FailedError | OSError)
        reason = str(error) if is_told else f"{type(error).__name__}: {error}"
        emit(Event(kind="failed", reason=_one_line(reason)))
        return False
    return True


def _train(job: Job, reporter: Reporter) -> Event:
    """Train a trial to its end, and return the event that says which end it was."""
    directory = RunDirectory(Path(job.path))
    config = loads(job.config)
    with memory_errors_in_words(), ExitStack() as stack:
        trainer, header = _assembled(config, directory, reporter, stack)
        reporter.start(header)
        outcome = trainer.run()
    if outcome.stopped_by not in (None, "divergence"):
        return Event(kind="stopped", step=outcome.progress.step)
    if not job.keep_checkpoints:
        shutil.rmtree(directory.checkpoints, ignore_errors=True)
    return Event(
        kind="finished",
        step=outcome.progress.step,
        loss=outcome.progress.validation_loss,
        seconds=outcome.progress.seconds,
        is_diverged=outcome.stopped_by is not None,
    )


def _assembled(
    config: Run, directory: RunDirectory, reporter: Reporter, stack: ExitStack
) -> Assembled:
    """Return the trainer of a trial, once no other process trains it."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return stack.enter_context(
                assemble(config, directory, display=reporter, resume=True, tell=reporter.message)
            )
        except OccupiedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_ASK_AGAIN_SECONDS)


def _jobs() -> "SimpleQueue[Job]":
    """Return a queue of the jobs on the input, watched by a thread that leaves when it ends."""
    jobs: SimpleQueue[Job] = SimpleQueue()

    def read() -> None:
        for line in sys.stdin.buffer:
            jobs.put(Job.from_json(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return jobs


def _room(device: torch.device) -> int:
    """Return how many workers have a core or a GPU of their own."""
    if device.type == "cpu":
        return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if device.type == "cuda" and device.index is None:
        return torch.cuda.device_count()
    return 1


def _leave(*_: object) -> None:
    """Leave by an exception, so that what is half made is removed; while it trains, it saves."""
    raise SystemExit(0)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _run() -> None:
    """Serve, and leave without waiting for the thread that waits for input."""
    code = 1
    try:
        main()
        code = 0
    except SystemExit:
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _run()

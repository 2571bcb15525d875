"""Runs trials on workers: who trains what, and what happens when a trial or a worker fails."""

import shutil
import signal
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from mars.comparison.board import Board, State
from mars.comparison.directory import LOG, data_digest, last_validation
from mars.comparison.messages import Event, Job
from mars.comparison.plan import Failure, PlannedTrial
from mars.comparison.pool import Pool, Worker
from mars.config.errors import FailedError, RefusedError
from mars.config.load import dumps
from mars.training.signals import StopRequest

_TICK_SECONDS = 0.25
# A worker that dies may be the victim of something else; if it dies again, the trial is at fault.
_ATTEMPTS = 2


class StoppedError(Exception):
    """A signal has stopped the comparison; everything is saved."""

    def __init__(self, name: str) -> None:
        super().__init__(f"stopped by {name}")
        self.signal = signal.Signals[name]


class View(Protocol):
    """Something that shows a comparison while it goes on."""

    def update(self, board: Board) -> None:
        """Show how far it is."""

    def ended(self, board: Board, state: State) -> None:
        """Show that a trial is over."""

    def message(self, text: str) -> None:
        """Show a line in between."""

    def close(self) -> None:
        """Give the terminal back, also after an error; closing twice is harmless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where trials are run, and how many at a time: by default as many as there is room for."""

    folder: Path
    jobs: int | None
    keep_checkpoints: bool


class Runner:
    """Trains the trials of a comparison, phase by phase, on the workers of a pool."""

    def __init__(
        self, site: Site, *, pool: Pool, board: Board, view: View, stop: StopRequest
    ) -> None:
        self._site = site
        self._pool = pool
        self._board = board
        self._view = view
        self._stop = stop
        self._waiting: deque[PlannedTrial] = deque()
        self._deaths: Counter[str | None] = Counter()
        self._told: set[str] = set()
        self._digests: dict[str, str] = {}
        self._knows_room = False
        # Until a trial has started, its data open, no second one is tried: a corpus is prepared
        # once, and what is wrong with all of them is told once.
        self._has_started = False

    @property
    def failures(self) -> list[Failure]:
        """The trials that failed, and why."""
        states = self._board.states.values()
        return [Failure(s.trial.path, s.reason) for s in states if s.status == "failed"]

    def run(self, trials: Sequence[PlannedTrial]) -> None:
        """Return once every trial is finished or has failed; finished ones are not run again.

        Raises `RefusedError` if the first that is tried cannot start, and `StoppedError` after a
        signal, once every worker has saved.
        """
        self._board.plan_trials(trials)
        self._waiting.extend(trial for trial in trials if not self._is_reused(trial))
        while self._waiting or self._busy:
            if self._stop.name is not None:
                self._leave(self._stop.name)
            self._hire()
            self._assign()
            self._view.update(self._board)
            got = self._pool.next(seconds=_TICK_SECONDS)
            if got is not None:
                self._handle(*got)
        self._view.update(self._board)

    def _leave(self, name: str) -> NoReturn:
        try:
            told = f"{name}: saving what runs; Ctrl-C leaves at once, without saving"
            self._view.message(told)
        finally:  # the terminal may be gone
            self._pool.stop()
        raise StoppedError(name)

    @property
    def _busy(self) -> list[Worker]:
        return [worker for worker in self._pool.workers if worker.trial is not None]

    def _is_reused(self, trial: PlannedTrial) -> bool:
        record = last_validation(self._site.folder, trial)
        if record is None:
            return False
        self._check_data(trial)
        if not self._site.keep_checkpoints:  # one that was killed just before it removed them
            checkpoints = self._site.folder / trial.path / "checkpoints"
            shutil.rmtree(checkpoints, ignore_errors=True)
        is_diverged = "diverged" in record.extra
        told = Event(kind="finished", step=record.step, loss=record.loss, is_diverged=is_diverged)
        self._board.take(trial.path, told)
        return True

    def _hire(self) -> None:
        """Start a worker, and once it has said how many there is room for, the others."""
        wanted = min(self._board.processes, len(self._waiting) + len(self._busy))
        while len(self._pool.workers) < wanted:
            self._pool.add()

    def _assign(self) -> None:
        for worker in self._pool.workers:
            if not self._waiting or (self._busy and not self._has_started):
                return
            if worker.is_ready and worker.trial is None:
                self._give(worker, self._waiting.popleft())

    def _give(self, worker: Worker, trial: PlannedTrial) -> None:
        self._board.states[trial.path].status = "running"
        path = str(self._site.folder / trial.path)
        keep = self._site.keep_checkpoints
        job = Job(path=path, config=dumps(trial.config), keep_checkpoints=keep)
        worker.give(trial.path, job)

    def _handle(self, worker: Worker, event: Event) -> None:
        if event.kind == "ready":
            worker.is_ready = True
            if not self._knows_room:
                self._knows_room = True
                self._pool.spread(event)
                self._board.processes = self._site.jobs or event.room
        elif event.kind == "refused" and not self._has_started:
            raise RefusedError(event.reason)
        elif event.kind == "message":
            # Of what concerns all trials, such as another version of torch, once is enough.
            if event.reason not in self._told:
                self._told.add(event.reason)
                self._view.message(event.reason)
        elif event.kind == "died":
            self._bury(worker, event.reason)
        elif worker.trial is not None:
            self._take(worker, worker.trial, event)

    def _take(self, worker: Worker, path: str, event: Event) -> None:
        state = self._board.take(path, event)
        if event.kind == "started":
            self._has_started = True
            self._check_data(state.trial)
        if state.is_over:
            worker.trial = None
            self._view.ended(self._board, state)

    def _bury(self, worker: Worker, reason: str) -> None:
        """Let the trial of a worker that has died go on with another, once."""
        path = worker.trial
        if path is None and worker.is_ready:  # it had told that its trial failed, or was idle
            return
        self._deaths[path] += 1
        is_last = self._deaths[path] >= _ATTEMPTS
        if path is None:
            if is_last:
                raise FailedError(f"no worker could start: {reason}; see {self._log}")
        elif is_last:
            event = Event(kind="failed", reason=f"{reason}, twice; see {self._log}")
            self._view.ended(self._board, self._board.take(path, event))
        else:
            state = self._board.states[path]
            state.status = "waiting"
            self._waiting.appendleft(state.trial)
            self._view.message(f"{path}: {reason}; it goes on from its checkpoint")

    @property
    def _log(self) -> Path:
        return self._site.folder / LOG

    def _check_data(self, trial: PlannedTrial) -> None:
        """Refuse a trial that is trained on other data than the ones before."""
        digest = data_digest(self._site.folder, trial)
        if digest is None:
            return
        self._digests.setdefault(digest, trial.path)
        if len(self._digests) > 1:
            first, second = self._digests.values()
            raise RefusedError(
                f"{second} and {first} of {self._site.folder} are trained on different data; "
                "give the same corpus as data.path, or choose another --out"
            )

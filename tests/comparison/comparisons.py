"""Small comparisons for tests: a plan, and views and pools that keep what they are told."""

from collections.abc import Mapping
from pathlib import Path

from mars.comparison.board import Board, State
from mars.comparison.messages import Event, Job
from mars.comparison.plan import Plan, PlannedArm
from mars.config.load import assign, load_file
from training.runs import write_config

RATES = {"mars-adamw": (0.01, 0.02), "adamw": (0.01, 1000.0)}


def make_plan(
    folder: Path,
    corpus: Path,
    *,
    rates: Mapping[str, tuple[float, ...]] = RATES,
    seeds: tuple[int, ...] = (0, 1),
    search_seeds: int = 1,
    settings: Mapping[str, object] | None = None,
    **values,
) -> Plan:
    """Return the plan of a comparison of tiny runs, an arm for each optimizer."""
    config = load_file(
        write_config(folder, corpus, **{"steps": 40, "validate_every": 20, **values})
    )
    config = assign(config, {"training.stop_diverged": True, "name": "trial", **(settings or {})})
    return Plan(
        name="tiny",
        description="Two optimizers.",
        command="mars compare tiny",
        baseline="adamw",
        seeds=seeds,
        search_seeds=search_seeds,
        arms=tuple(
            PlannedArm(
                label=name,
                slug=name,
                optimizer=name,
                rates=own,
                settings={},
                config=assign(config, {"optimizer.name": name}),
            )
            for name, own in rates.items()
        ),
    )


class Recorder:
    """A view that notes what it was shown."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, str]] = []
        self.messages: list[str] = []
        self.board: Board | None = None
        self.is_closed = False

    def update(self, board: Board) -> None:
        self.board = board

    def ended(self, _: Board, state: State) -> None:
        self.ends.append((state.trial.path, state.status))

    def message(self, text: str) -> None:
        self.messages.append(text)

    def close(self) -> None:
        self.is_closed = True


class FakeWorker:
    """A worker that notes its jobs."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_ready = False
        self.trial: str | None = None
        self.jobs: list[Job] = []

    def give(self, trial: str, job: Job) -> None:
        self.trial = trial
        self.jobs.append(job)


class FakePool:
    """A pool whose events come from a script: a function of the pool that returns the next one."""

    def __init__(self, script) -> None:
        self.workers: list[FakeWorker] = []
        self.hired: list[FakeWorker] = []
        self.spreads: list[Event] = []
        self.is_stopped = False
        self._script = script(self)

    def add(self) -> FakeWorker:
        worker = FakeWorker(len(self.hired))
        self.workers.append(worker)
        self.hired.append(worker)
        return worker

    def spread(self, event: Event) -> None:
        self.spreads.append(event)

    def next(self, **_) -> tuple[FakeWorker, Event] | None:
        got = next(self._script)
        if got is not None and got[1].kind == "died":
            self.workers.remove(got[0])
        return got

    def stop(self) -> None:
        self.is_stopped = True
        self.workers.clear()

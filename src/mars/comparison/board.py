"""How far a comparison has come, trial by trial, and how long the rest will take."""

import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from mars.comparison.messages import Event
from mars.comparison.plan import Plan, PlannedArm, PlannedTrial, confirming_trials

Status = Literal["waiting", "running", "finished", "diverged", "failed"]
Clock = Callable[[], float]

# The first steps compile and fill caches: the pace is that of the later ones, where there are any.
_UNSETTLED_STEPS = 5
# A pace is known after so many steps, or so much time.
_ENOUGH_STEPS, _ENOUGH_SECONDS = 20, 5.0


@dataclass(slots=True)
class Pace:
    """Seconds a step of a run, from its records."""

    first: tuple[int, float] | None = None
    settled: tuple[int, float] | None = None
    last: tuple[int, float] | None = None

    def take(self, step: int, seconds: float) -> None:
        """Take the step and the clock of a record."""
        self.last = (step, seconds)
        if self.first is None:
            self.first = self.last
        elif self.settled is None and step >= self.first[0] + _UNSETTLED_STEPS:
            self.settled = self.last

    @property
    def is_known(self) -> bool:
        """Whether enough steps have been seen."""
        if self.first is None or self.last is None or self.step_seconds is None:
            return False
        steps, seconds = self.last[0] - self.first[0] + 1, self.last[1] - self.first[1]
        return steps >= _ENOUGH_STEPS or seconds >= _ENOUGH_SECONDS

    @property
    def step_seconds(self) -> float | None:
        """Seconds a step as far as is known."""
        for start in (self.settled, self.first):
            if start is not None and self.last is not None and self.last[0] > start[0]:
                return (self.last[1] - start[1]) / (self.last[0] - start[0])
        return None


@dataclass(slots=True)
class State:
    """What is known of a trial."""

    trial: PlannedTrial
    status: Status = "waiting"
    step: int = 0
    loss: float | None = None
    """The last loss of training."""
    validation: float | None = None
    reason: str = ""
    pace: Pace = field(default_factory=Pace)
    seconds: float | None = None
    """Time from its start to its end, of a trial that was started and has finished here."""
    began: tuple[int, float] | None = None
    """The step and the time at which it was started here."""

    @property
    def steps(self) -> int:
        """How many it has in all."""
        return self.trial.config.training.steps

    @property
    def is_over(self) -> bool:
        """Whether nothing more is going to happen to it."""
        return self.status in ("finished", "diverged", "failed")

    @property
    def step_seconds(self) -> float | None:
        """Seconds a step: of the whole trial once it has finished."""
        if self.status == "finished" and self.seconds is not None and self.began is not None:
            return self.seconds / max(1, self.steps - self.began[0])
        return None if self.status == "diverged" else self.pace.step_seconds

    def take(self, event: Event, *, now: float) -> None:
        """Take an event of the worker that trains it."""
        if event.kind == "started":
            self.step, self.pace, self.began = event.step, Pace(), (event.step, now)
        elif event.kind == "train":
            self.step, self.loss = event.step, event.loss
            self.pace.take(event.step, event.seconds)
        elif event.kind == "validation":
            self.step, self.validation = event.step, event.loss
        elif event.kind == "finished":
            self.status = "diverged" if event.is_diverged else "finished"
            self.step, self.validation = event.step, event.loss
            self.seconds = None if self.began is None else now - self.began[1]
        elif event.kind in ("failed", "refused"):
            self.status, self.reason = "failed", event.reason


class Board:
    """All trials of a comparison, those of the second phase once they are known."""

    def __init__(self, plan: Plan, *, clock: Clock = time.monotonic) -> None:
        self.plan = plan
        self.states: dict[str, State] = {}
        self.processes = 1
        self._clock = clock
        self._began = clock()
        first_rates = {arm.label: arm.rates[0] for arm in plan.arms}
        # Which rates the second phase runs is not known before it, how many runs it has is.
        self._expected = confirming_trials(plan, first_rates)

    @property
    def elapsed(self) -> float:
        """Seconds since the comparison began, or went on."""
        return self._clock() - self._began

    @property
    def total(self) -> int:
        """How many runs there are in all."""
        return len(self.states) + len(self._expected)

    @property
    def over(self) -> int:
        """How many are over."""
        return sum(state.is_over for state in self.states.values())

    @property
    def has_result(self) -> bool:
        """Whether a run has come to its end, or to divergence."""
        return any(state.status in ("finished", "diverged") for state in self.states.values())

    @property
    def reused(self) -> int:
        """How many were over before this comparison began, or went on."""
        done = (s for s in self.states.values() if s.status in ("finished", "diverged"))
        return sum(state.began is None for state in done)

    def rates_over(self, arm: PlannedArm) -> int:
        """Return how many rates of an arm have all their runs of the search behind them."""
        search = set(self.plan.seeds[: self.plan.search_seeds])
        running = {
            s.trial.lr for s in self.of(arm.label) if not s.is_over and s.trial.seed in search
        }
        return len(arm.rates) - len(running)

    def expected_of(self, arm: PlannedArm) -> int:
        """Return how many runs of an arm the second phase adds."""
        return sum(trial.arm == arm.label for trial in self._expected)

    def plan_trials(self, trials: Iterable[PlannedTrial]) -> None:
        """Take the trials of a phase."""
        for trial in trials:
            self.states.setdefault(trial.path, State(trial))

    def expect_no_more(self) -> None:
        """Note that the trials of the second phase are among those planned."""
        self._expected = ()

    def of(self, arm: str) -> list[State]:
        """Return the states of an arm's trials."""
        return [state for state in self.states.values() if state.trial.arm == arm]

    def take(self, path: str, event: Event) -> State:
        """Take an event of a trial and return what is known of it now."""
        state = self.states[path]
        state.take(event, now=self._clock())
        return state

    def seconds_left(self) -> float | None:
        """Return how long the rest takes at the pace so far, or None before there is one."""
        paces = self._paces()
        if not paces:
            return None
        mean = fmean(paces.values())

        def cost(arm: str, steps: int) -> float:
            return steps * paces.get(arm, mean)

        states = self.states.values()
        running = [cost(s.trial.arm, s.steps - s.step) for s in states if s.status == "running"]
        waiting = [cost(s.trial.arm, s.steps) for s in states if s.status == "waiting"]
        expected = [cost(t.arm, t.config.training.steps) for t in self._expected]
        present = makespan(running, waiting, processes=self.processes)
        return present + makespan([], expected, processes=self.processes)

    @property
    def is_estimable(self) -> bool:
        """Whether every running trial has shown its pace, or one has finished."""
        states = self.states.values()
        running = [state for state in states if state.status == "running"]
        has_finished = any(s.status == "finished" and s.step_seconds is not None for s in states)
        return has_finished or (bool(running) and all(state.pace.is_known for state in running))

    def _paces(self) -> dict[str, float]:
        """Return seconds a step by arm: of finished trials where there are any."""
        found: dict[str, float] = {}
        for arm in self.plan.arms:
            states = [state for state in self.of(arm.label) if state.step_seconds is not None]
            whole = [state for state in states if state.status == "finished"]
            seconds = [state.step_seconds for state in whole or states]
            if seconds:
                found[arm.label] = fmean(each for each in seconds if each is not None)
        return found


def makespan(running: Sequence[float], waiting: Iterable[float], *, processes: int) -> float:
    """Return when all is done: what waits is taken in order by whoever is free first."""
    free = [*running, *[0.0] * (processes - len(running))]
    heapq.heapify(free)
    for seconds in waiting:
        heapq.heappush(free, heapq.heappop(free) + seconds)
    return max(free, default=0.0)

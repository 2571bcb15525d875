"""How it is measured: steps timed in turn, memory held during a step, bytes of state."""

import gc
import os
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, profile

from mars.bench.memory import copy_elements, give_back_memory
from mars.bench.shapes import Size
from mars.bench.subjects import Owned, Subject

# What prepares a step, and the step.
Turn = tuple[Callable[[], object], Callable[[], object]]

COPY = "copy"
_SEED = 0
# A subject that takes longer for its first step, without compiling anything, is timed on it alone.
_SLOW_SECONDS = 60.0
# The profiler's own log, which would otherwise go to the console; read when it first starts.
_KINETO_SILENCE = "6"


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured of one subject: times of steps, memory of one step, state."""

    subject: Subject
    seconds: tuple[float, ...]
    peak_extra_bytes: int
    state_bytes: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Measurements:
    """A group of subjects measured in turn, and the copying timed among them."""

    subjects: tuple[Measurement, ...]
    copy_seconds: tuple[float, ...]
    copied_bytes: int


class Contender:
    """A subject built on shared parameters, ready to step."""

    def __init__(self, subject: Subject, owned: Owned, grads: list[Tensor]) -> None:
        self.subject = subject
        self.optimizers = subject.build(owned)
        self._params = [param for param, _ in owned]
        self._shared = grads
        self._grads = [torch.empty_like(g) for g in grads] if subject.own_gradients else grads

    def prepare(self) -> None:
        """Put the gradients where the step will look for them; not part of the step."""
        if self.subject.own_gradients:
            torch._foreach_copy_(self._grads, self._shared)
        for param, grad in zip(self._params, self._grads, strict=True):
            param.grad = grad

    def step(self) -> None:
        """Take one step."""
        for optimizer in self.optimizers:
            optimizer.step()


@dataclass(frozen=True, slots=True)
class _Warmed:
    """What the steps before the timed ones have shown of a subject.

    ``only_seconds`` is set for one so slow that its first step has to do.
    """

    peak_extra_bytes: int
    state_bytes: int
    warnings: tuple[str, ...]
    only_seconds: float | None


def measure(
    size: Size, group: Sequence[Subject], *, steps: int, rounds: int, tell: Callable[[str], None]
) -> Measurements:
    """Measure a group of subjects on shared parameters and gradients.

    Each round builds every subject anew, so that no figure hangs on where one allocation fell.
    """
    owned, grads = tensors(size)
    source, target = (torch.zeros(copy_elements(size)) for _ in range(2))
    seconds: dict[str, list[float]] = {COPY: [], **{subject.name: [] for subject in group}}
    shown: dict[str, _Warmed] = {}
    for index in range(rounds):
        give_back_memory()  # the state of the round before must be gone before there is more of it
        stage = f"{size.name}, round {index + 1} of {rounds}"
        turns: dict[str, Turn] = {COPY: (lambda: None, lambda: target.copy_(source))}
        for subject in group:
            tell(f"{stage}: warming up {subject.name}")
            turn, warmed = _warmed_up(Contender(subject, owned, grads))
            shown.setdefault(subject.name, warmed)
            if warmed.only_seconds is None:
                turns[subject.name] = turn
            else:
                seconds[subject.name].append(warmed.only_seconds)
            del turn
        tell(f"{stage}: {steps} steps of each in turn")
        for name, times in in_turn(turns, steps=steps, seed=index).items():
            seconds[name] += times
        del turns
    return Measurements(
        tuple(_measurement(subject, seconds, shown[subject.name]) for subject in group),
        tuple(seconds[COPY]),
        copied_bytes=2 * source.nbytes,
    )


def _measurement(
    subject: Subject, seconds: Mapping[str, Sequence[float]], shown: _Warmed
) -> Measurement:
    return Measurement(
        subject=subject,
        seconds=tuple(seconds[subject.name]),
        peak_extra_bytes=shown.peak_extra_bytes,
        state_bytes=shown.state_bytes,
        warnings=shown.warnings,
    )


def tensors(size: Size) -> tuple[Owned, list[Tensor]]:
    """Return parameters of a size with their roles, and gradients for them, all random."""
    generator = torch.Generator().manual_seed(_SEED)
    owned = [
        (nn.Parameter(torch.randn(s.shape, generator=generator).mul_(0.02)), s.role)
        for s in size.shapes
    ]
    grads = [torch.randn(s.shape, generator=generator).mul_(1e-3) for s in size.shapes]
    return owned, grads


def _warmed_up(contender: Contender) -> tuple[Turn, _Warmed]:
    """Take two steps: the first creates state and compiles, the second shows a step's memory.

    Return the contender's turn and what the steps have shown. A step of minutes is not taken twice:
    creating state is nothing beside it, and what the profiler sees held at its end is the state.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        contender.prepare()
        start = time.perf_counter()
        peak, left = held_bytes(contender.step)
        seconds = time.perf_counter() - start
        is_slow = seconds > _SLOW_SECONDS and not contender.subject.compiles
        if not is_slow:
            contender.prepare()
            peak, left = held_bytes(contender.step)
    # A deprecation is its package's business; a fallback to another engine is the reader's.
    lines = [
        str(warning.message).strip().splitlines()[0]
        for warning in caught
        if not issubclass(warning.category, DeprecationWarning | FutureWarning)
    ]
    shown = _Warmed(
        peak_extra_bytes=peak - max(left, 0),
        state_bytes=state_bytes(contender.optimizers),
        warnings=tuple(dict.fromkeys(lines)),
        only_seconds=seconds if is_slow else None,
    )
    return (contender.prepare, contender.step), shown


def in_turn(turns: Mapping[str, Turn], *, steps: int, seed: int) -> dict[str, list[float]]:
    """Time the second function of each turn ``steps`` times, calling the first untimed before it.

    All take their turn before any takes its next one, so that a noisy moment hits all alike; the
    order is shuffled each time, so that nobody always follows the same neighbour.
    """
    order = list(turns)
    shuffle = random.Random(seed).shuffle
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    with _no_garbage_collection():
        for _ in range(steps):
            shuffle(order)
            for name in order:
                prepare, run = turns[name]
                prepare()
                start = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - start)
    return seconds


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def held_bytes(step: Callable[[], object]) -> tuple[int, int]:
    """Return what a step holds beyond what it started with: the most at a time, and at its end."""
    os.environ.setdefault("KINETO_LOG_LEVEL", _KINETO_SILENCE)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    assert profiler.profiler is not None
    results = profiler.profiler.kineto_results
    assert results is not None
    held = peak = 0
    for event in sorted(results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak, held


def state_bytes(optimizers: Sequence[Optimizer]) -> int:
    """Return the bytes of all state, step counts left out."""
    return sum(_bytes_in(state) for o in optimizers for state in o.state.values())


def _bytes_in(value: object) -> int:
    """Return the bytes of the tensors in nested dicts; a tensor without dimensions is a count."""
    if isinstance(value, Tensor):
        return value.nbytes if value.ndim else 0
    return sum(map(_bytes_in, value.values())) if isinstance(value, Mapping) else 0


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    lower, middle, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return lower, middle, upper


def import_seconds(*, pairs: int) -> tuple[float, float]:
    """Return the median seconds of importing MARS, and torch alone, each in fresh processes."""
    # `import mars` alone imports torch only when one of its names is used.
    lines = {"mars": "from mars import MARS", "torch": "import torch"}
    turns = {name: (lambda: None, partial(_run, line)) for name, line in lines.items()}
    seconds = in_turn(turns, steps=pairs, seed=_SEED)
    return statistics.median(seconds["mars"]), statistics.median(seconds["torch"])


def _run(line: str) -> None:
    subprocess.run([sys.executable, "-c", line], check=True)

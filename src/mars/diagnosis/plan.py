"""What is asked for, checked: steps, streams, sizes. Does not import torch."""

import math
from dataclasses import dataclass

from mars.config.errors import RefusedError
from mars.config.schema import Run

# A tenth, a half and all of the way.
_DEFAULT_PARTS = (0.1, 0.5, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a person asked for; None leaves the choice to the run."""

    at: str | None = None
    streams: int = 16
    history: int | None = None
    micro_batch_size: int | None = None
    large_batch: int = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will be measured."""

    steps: tuple[int, ...]
    streams: int
    history: int
    micro_batch_size: int
    large_batch: int

    def window(self, step: int) -> int:
        """Return how many steps the averages at a step look back: no run has a past before 0."""
        return min(self.history, step)

    def sequences(self, step: int) -> int:
        """Return the sequences whose gradients are taken for a step, its replay left out."""
        # Exact mode takes two gradients a point; a large batch is needed at both ends.
        streams = 2 * self.streams * self.window(step) * self.micro_batch_size
        return streams + 2 * self.large_batch


def make_plan(asked: Asked, config: Run, *, reached: int, beta1: float) -> Plan:
    """Return what is measured of a run that has come to the step ``reached``."""
    check_numbers(asked)
    batch_size = asked.micro_batch_size or config.training.batch_size
    if asked.large_batch < 2 * batch_size:
        raise RefusedError(
            f"--large-batch {asked.large_batch} must be at least twice the micro-batch of "
            f"{batch_size}, since its own noise is found from its parts; make it larger, or lower "
            "--micro-batch-size"
        )
    steps = _steps(asked.at, reached=reached)
    history = default_history(beta1) if asked.history is None else asked.history
    return Plan(
        steps=steps,
        streams=asked.streams,
        history=min(history, max(steps)),
        micro_batch_size=batch_size,
        large_batch=asked.large_batch,
    )


def check_numbers(asked: Asked) -> None:
    """Refuse what is wrong whatever the run is."""
    if asked.streams < 2:
        raise RefusedError(
            f"--streams {asked.streams} must be at least 2: one alone shows no variance"
        )
    for option in ("history", "micro_batch_size", "large_batch"):
        value = getattr(asked, option)
        if value is not None and value < 1:
            raise RefusedError(f"--{option.replace('_', '-')} {value} must be at least 1")
    if asked.at is not None:
        _numbers(asked.at)


def default_history(beta1: float) -> int:
    """Return the steps after which an average has forgotten all but e^-2 of what came before."""
    # 2 / (1 - 0.95) is a little more than 40 in floating point.
    return math.ceil(2 / (1 - beta1) - 1e-9)


def _steps(at: str | None, *, reached: int) -> tuple[int, ...]:
    if reached < 1:
        raise RefusedError("the run has not taken a step yet; train on with --resume")
    if at is None:
        return tuple(sorted({max(1, round(part * reached)) for part in _DEFAULT_PARTS}))
    steps = _numbers(at)
    if steps[-1] > reached:
        raise RefusedError(
            f"--at {steps[-1]} lies beyond step {reached}, which is as far as the run has come"
        )
    return steps


def _numbers(at: str) -> tuple[int, ...]:
    """Return the steps that a text names, each once, in order."""
    parts = [part.strip() for part in at.split(",")]
    for part in parts:
        if not part.isdecimal() or int(part) < 1:
            raise RefusedError(
                f"--at takes steps from 1 on, separated by commas, such as 50,250; got {part!r}"
            )
    return tuple(sorted({int(part) for part in parts}))

"""Learning-rate schedules as pure functions of the step.

Each returns a factor of the peak rate, so that every parameter group keeps its own peak.
"""

import math
from collections.abc import Callable

from mars.config.schema import Schedule


def factor(schedule: Schedule, *, step: int, steps: int, lr: float) -> float:
    """Return what the peak rates are multiplied by at a step, counted from 0, of so many.

    The warm-up rises linearly and reaches the peak with its last step. After it, progress runs
    from 0 to 1, which the step after the last one would have. ``min_lr`` is a rate of those
    groups whose peak is ``lr``; the others end at the same fraction of theirs.
    """
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    progress = (step - schedule.warmup_steps) / max(1, steps - schedule.warmup_steps)
    return _SHAPES[schedule.kind](schedule, min(1.0, progress), schedule.min_lr / lr)


def _cosine(_: Schedule, progress: float, floor: float) -> float:
    return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2


def _linear(_: Schedule, progress: float, floor: float) -> float:
    return 1 - (1 - floor) * progress


def _wsd(schedule: Schedule, progress: float, floor: float) -> float:
    decayed = (progress - (1 - schedule.decay_fraction)) / schedule.decay_fraction
    return 1 - (1 - floor) * max(0.0, decayed)


def _multistep(schedule: Schedule, progress: float, _: float) -> float:
    passed = sum(progress >= milestone for milestone in schedule.milestones)
    return float(schedule.decay_factor**passed)


def _constant(_: Schedule, __: float, ___: float) -> float:
    return 1.0


_SHAPES: dict[str, Callable[[Schedule, float, float], float]] = {
    "cosine": _cosine,
    "linear": _linear,
    "wsd": _wsd,
    "multistep": _multistep,
    "constant": _constant,
}

"""What the records so far say about a run: how far, how fast, how good."""

import math
from collections import deque

from mars.metrics.record import Record

_SMOOTHING = 0.9
_RECENT_RECORDS = 100


class Progress:
    """Follows a run record by record, in constant memory and time a record."""

    def __init__(self, *, total_steps: int, first_step: int = 0) -> None:
        self.total_steps = total_steps
        self.step = first_step
        self.last_train: Record | None = None
        self.last_validation: Record | None = None
        self.best_validation: Record | None = None
        self.smoothed_loss: float | None = None
        self.curve = Curve()
        self._recent: deque[Record] = deque(maxlen=_RECENT_RECORDS)

    def train(self, record: Record) -> None:
        """Take a training record."""
        self._advance(record)
        self.last_train = record
        if math.isfinite(record.loss):
            before = record.loss if self.smoothed_loss is None else self.smoothed_loss
            self.smoothed_loss = _SMOOTHING * before + (1 - _SMOOTHING) * record.loss
            self.curve.add(record.loss)

    def validation(self, record: Record) -> None:
        """Take a validation record."""
        self._advance(record)
        self.last_validation = record
        best = self.best_validation
        if math.isfinite(record.loss) and (best is None or record.loss < best.loss):
            self.best_validation = record

    def seconds(self) -> float | None:
        """Return the time the run has taken."""
        return self._recent[-1].seconds if self._recent else None

    def seconds_left(self) -> float | None:
        """Return the time still needed at the recent pace, validations included."""
        steps, _, seconds = self._pace()
        if steps <= 0 or seconds <= 0:
            return None
        return max(self.total_steps - self.step, 0) * seconds / steps

    def per_second(self) -> float | None:
        """Return the tokens or samples a second: as measured, else at the recent pace."""
        last = self.last_train
        if last is not None and f"{last.unit}_per_second" in last.extra:
            return last.extra[f"{last.unit}_per_second"]
        _, count, seconds = self._pace()
        return count / seconds if count > 0 and seconds > 0 else None

    def _advance(self, record: Record) -> None:
        self.step = max(self.step, record.step)
        self._recent.append(record)

    def _pace(self) -> tuple[int, int, float]:
        """Return steps, tokens or samples, and seconds between the recent records."""
        if not self._recent:
            return 0, 0, 0.0
        old, new = self._recent[0], self._recent[-1]
        return new.step - old.step, new.count - old.count, new.seconds - old.seconds


class Curve:
    """A run's losses in at most ``2 * points`` means of equally many records each."""

    def __init__(self, *, points: int = 60) -> None:
        self._limit = 2 * points
        self._means: list[float] = []
        self._size = 1
        self._sum, self._filled = 0.0, 0

    def add(self, loss: float) -> None:
        """Take the next loss; where there is no room left, neighbours become one."""
        self._sum, self._filled = self._sum + loss, self._filled + 1
        if self._filled < self._size:
            return
        self._means.append(self._sum / self._size)
        self._sum, self._filled = 0.0, 0
        if len(self._means) == self._limit:
            self._means = _halved(self._means)
            self._size *= 2

    def values(self, width: int) -> list[float]:
        """Return at most ``width`` values of the whole run."""
        values = self._means
        while len(values) > max(width, 1):
            values = _halved(values)
        return values


def _halved(values: list[float]) -> list[float]:
    """Return the means of neighbours; a last one without neighbour stays."""
    pairs = (values[i : i + 2] for i in range(0, len(values), 2))
    return [sum(pair) / len(pair) for pair in pairs]

"""What the trainer knows of a problem: batches, a loss, a validation. Language modelling is one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

# One micro-batch: whatever the task's loss takes.
MicroBatch = tuple[Tensor, ...]
# A model, compiled or not; what it takes and returns is between it and its task.
Forward = Callable[..., Any]


class Batches(Protocol):
    """An endless source of steps whose position is a small state."""

    def __next__(self) -> Sequence[MicroBatch]:
        """Return the micro-batches of the next step."""
        ...

    def state_dict(self) -> Mapping[str, Any]:
        """Return the position, not counting what was read ahead."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position."""
        ...

    def close(self) -> None:
        """Stop reading ahead."""
        ...


class Goal(NamedTuple):
    """A measure of the validation, and from which value on a goal is reached."""

    measure: str
    least: float


class Task(Protocol):
    """A problem to train on."""

    @property
    def unit(self) -> Literal["tokens", "samples"]:
        """What is counted along the run."""
        ...

    @property
    def count_per_step(self) -> int:
        """How many of them a step takes."""
        ...

    @property
    def goals(self) -> Mapping[str, Goal]:
        """What the time until it is reached is recorded of, by the name of that record."""
        ...

    @property
    def batches(self) -> Batches:
        """Where the steps come from."""
        ...

    def loss(self, model: Forward, batch: MicroBatch) -> Tensor:
        """Return the mean loss of a micro-batch."""
        ...

    def validate(self, model: Forward) -> dict[str, float]:
        """Return ``loss`` and other measures over a fixed set, for a model in evaluation mode."""
        ...


@dataclass(frozen=True, slots=True)
class LanguageModeling:
    """Predicting the next token of text, by a model that returns its loss."""

    batches: Batches
    count_per_step: int
    validation: Callable[[], Iterable[MicroBatch]]
    device: torch.device
    autocast: Callable[[], AbstractContextManager[object]]
    # Sums over the processes that validate, each on its part.
    sums: Callable[..., list[float]] = lambda *values: list(values)
    unit: Literal["tokens", "samples"] = "tokens"
    goals: Mapping[str, Goal] = field(default_factory=dict)

    def loss(self, model: Forward, batch: MicroBatch) -> Tensor:
        """Return the mean loss of a micro-batch."""
        loss: Tensor = model(*(part.to(self.device, non_blocking=True) for part in batch))
        return loss

    def validate(self, model: Forward) -> dict[str, float]:
        """Return the mean loss over the validation sequences."""
        total, count = 0.0, 0
        for inputs, targets in self.validation():
            with self.autocast():
                loss = self.loss(model, (inputs, targets))
            total += float(loss) * len(inputs)
            count += len(inputs)
        total, sequences = self.sums(total, count)
        return {"loss": total / sequences}

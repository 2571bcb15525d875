"""The loop: steps, records, validations, checkpoints, and stopping at any moment.

It takes built parts and knows nothing of corpora, models or optimizers by name. Everything that
decides what comes next is in a checkpoint, so a resumed run is the run that never stopped.
"""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from mars import checkpoint
from mars.config.schema import Run
from mars.metrics.display import Display
from mars.metrics.record import Record, Split
from mars.metrics.sinks import Records, Sinks
from mars.training.hardware import PeakMemory, optimizer_bytes
from mars.training.run_directory import RunDirectory
from mars.training.signals import StopRequest
from mars.training.step import Stepper, Taken
from mars.training.task import Task
from mars.training.world import World

DIVERGED_STEPS = 20
"""Steps in a row whose loss is above that of the first step, or not finite, in a diverged run."""
# Before this part of the run a loss may still lie above its first value by chance.
_UNWATCHED_PART = 0.1


@dataclass(slots=True)
class Progress:
    """How far a run has come."""

    step: int = 0
    seconds: float = 0.0
    skipped_steps: int = 0
    validation_loss: float | None = None
    # Of `training.stop_diverged`: the loss of the first step, and how long none was below it.
    first_loss: float | None = None
    steps_above: int = 0
    # When each goal of the task was first reached.
    reached: dict[str, float] = field(default_factory=dict)

    @property
    def is_diverged(self) -> bool:
        """Whether the run ends here because its loss does not come down."""
        return self.steps_above >= DIVERGED_STEPS

    def as_state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: complete, or stopped by a signal or "divergence" with all saved."""

    progress: Progress
    stopped_by: str | None


@dataclass(frozen=True, slots=True)
class Parts:
    """What `assemble` builds for a trainer."""

    config: Run
    model: nn.Module
    stepper: Stepper
    task: Task
    # The factor of the peak learning rates at a step, counted from 0.
    rate: Callable[[int], float]
    directory: RunDirectory
    records: Records
    sinks: Sinks
    display: Display
    world: World
    # Operations a step, over what the hardware could do a second; None where that is unknown.
    ideal_seconds: float | None = None


class Trainer:
    """Runs a built run from where it is to its end."""

    def __init__(self, parts: Parts) -> None:
        self.progress = Progress()
        self._parts = parts
        self._config = parts.config
        self._peaks = [group["lr"] for group in parts.stepper.optimizer.param_groups]
        self._saved_step: int | None = None
        # Where the clock was when the last training record was written.
        self._recorded_step = self.progress.step
        self._recorded_at = time.perf_counter()
        self._ticked_at = self._recorded_at
        unwatched = math.ceil(_UNWATCHED_PART * self._config.training.steps)
        self._unwatched_steps = max(unwatched, self._config.schedule.warmup_steps)
        self._memory: PeakMemory | None = None
        # What all processes have agreed to stop for.
        self._stopped_by: str | None = None

    def run(self) -> Outcome:
        """Train to the last step, a signal or divergence; the state of the end is saved."""
        steps = self._config.training.steps
        self._parts.model.train()
        self._memory = PeakMemory(next(self._parts.model.parameters()).device)
        self._ticked_at = self._recorded_at = time.perf_counter()
        world = self._parts.world
        request = StopRequest(is_silent=not world.is_first, is_shared=world.size > 1)
        with request as stop, closing(self._parts.task.batches):
            while self.progress.step < steps and not self._is_over(stop):
                self._advance(stop)
                done = self.progress.step
                is_last = done == steps or self.progress.is_diverged
                if is_last or done % self._config.training.validate_every == 0:
                    self._validate()
                if is_last or done % self._config.checkpoint.every == 0:
                    self._save()
            if self._saved_step != self.progress.step:  # a signal came between checkpoints
                self._save()
        if self.progress.is_diverged:
            return Outcome(self.progress, "divergence")
        return Outcome(self.progress, self._stopped_by if self.progress.step < steps else None)

    def restore(self, training: dict[str, Any]) -> None:
        """Continue from the training part of a checkpoint; the model is restored already."""
        self.progress = Progress(**training["progress"])
        self._parts.stepper.load_state_dict(training["stepper"])
        self._parts.task.batches.load_state_dict(training["batches"])
        self._recorded_step = self._saved_step = self.progress.step

    def _is_over(self, stop: StopRequest) -> bool:
        if self._parts.world.size == 1:  # nobody has to agree: a validation may be the last thing
            self._stopped_by = stop.name
        return self._stopped_by is not None or self.progress.is_diverged

    def _advance(self, stop: StopRequest) -> None:
        """Take one step, and record it when one is due."""
        step = self.progress.step
        factor = self._parts.rate(step)
        optimizer = self._parts.stepper.optimizer
        for group, peak in zip(optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor
        metrics = self._config.metrics
        is_due = step == 0 or (step + 1) % metrics.log_every == 0
        is_due |= step + 1 == self._config.training.steps
        batch = next(self._parts.task.batches)
        taken = self._parts.stepper(batch, measure=is_due and metrics.measures)
        loss, self._stopped_by = self._parts.world.after_step(taken.loss, stop.name)
        taken = replace(taken, loss=loss)
        self.progress.step += 1
        self.progress.skipped_steps += taken.is_skipped
        if self._config.training.stop_diverged:
            self._watch(float(taken.loss))
        self._tick()
        if is_due:
            self._record(taken)

    def _watch(self, loss: float) -> None:
        """Count the steps in a row that look like divergence."""
        progress = self.progress
        if progress.first_loss is None and math.isfinite(loss):
            progress.first_loss = loss
        is_above = progress.first_loss is None or not loss <= progress.first_loss
        is_watched = progress.step > self._unwatched_steps
        progress.steps_above = progress.steps_above + 1 if is_above and is_watched else 0

    def _record(self, taken: Taken) -> None:
        now = time.perf_counter()
        steps, seconds = self.progress.step - self._recorded_step, now - self._recorded_at
        self._recorded_step, self._recorded_at = self.progress.step, now
        task = self._parts.task
        extra = {"grad_norm": float(taken.grad_norm), **taken.measures}
        extra[f"{task.unit}_per_second"] = steps * task.count_per_step / seconds
        if self._parts.ideal_seconds is not None:
            extra["mfu"] = steps * self._parts.ideal_seconds / seconds
        extra["skipped_steps"] = self.progress.skipped_steps
        record = self._made("train", float(taken.loss), extra)
        self._parts.sinks.write(record)
        self._parts.display.train(record)

    def _validate(self) -> None:
        model = self._parts.model
        model.eval()
        with torch.no_grad():
            found = self._parts.task.validate(model)
        model.train()
        self._tick()
        self.progress.validation_loss = found.pop("loss")
        self._note_goals(found)
        extra = {**found, **self.progress.reached, **self._held()}
        record = self._made("val", self.progress.validation_loss, extra)
        self._parts.sinks.write(record)
        self._parts.display.validation(record)
        # Validation is no training: the rate of the next record leaves it out.
        self._recorded_step, self._recorded_at = self.progress.step, time.perf_counter()

    def _note_goals(self, found: Mapping[str, float]) -> None:
        """Note when a goal of the task is reached for the first time."""
        for name, goal in self._parts.task.goals.items():
            if found[goal.measure] >= goal.least:
                self.progress.reached.setdefault(name, self.progress.seconds)

    def _held(self) -> dict[str, float]:
        """Return what a validation record says of memory, and of divergence."""
        held: dict[str, float] = {"optimizer_bytes": optimizer_bytes(self._parts.stepper.optimizer)}
        peak = self._memory.measured() if self._memory else None
        if peak is not None:
            held["peak_memory_bytes"] = peak
        if self.progress.is_diverged:
            held["diverged"] = 1.0
        return held

    def _save(self) -> None:
        self._parts.sinks.flush()
        training = {
            "progress": self.progress.as_state(),
            "stepper": self._parts.stepper.state_dict(),
            "batches": self._parts.task.batches.state_dict(),
            "metrics_position": self._parts.records.position,
        }
        streams = {"random": checkpoint.capture_random_state()}
        is_alone = self._parts.world.size == 1
        checkpoint.save(
            self._parts.directory.checkpoints,
            step=self.progress.step,
            model=self._parts.model.state_dict(),
            training=training | streams if is_alone else training,
            own=None if is_alone else streams,
            keep=self._config.checkpoint.keep,
        )
        self._saved_step = self.progress.step
        self._tick()
        self._recorded_step, self._recorded_at = self.progress.step, time.perf_counter()

    def _made(self, split: Split, loss: float, extra: dict[str, float]) -> Record:
        task = self._parts.task
        return Record(
            step=self.progress.step,
            split=split,
            loss=loss,
            unit=task.unit,
            count=self.progress.step * task.count_per_step,
            seconds=self.progress.seconds,
            lr=self._parts.stepper.optimizer.param_groups[0]["lr"],
            extra=extra,
        )

    def _tick(self) -> None:
        now = time.perf_counter()
        self.progress.seconds += now - self._ticked_at
        self._ticked_at = now

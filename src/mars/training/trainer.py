"""The loop: steps, records, validations, checkpoints, and stopping at any moment.

It takes built parts and knows nothing of corpora, models or optimizers by name. Everything that
decides what comes next is in a checkpoint, so a resumed run is the run that never stopped.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mars import checkpoint
from mars.config.schema import Run
from mars.metrics.display import Display
from mars.metrics.jsonl import JsonlSink
from mars.metrics.record import Record, Split
from mars.metrics.sinks import Sinks
from mars.training.run_directory import RunDirectory
from mars.training.signals import StopRequest
from mars.training.step import Stepper, Taken
from mars.training.task import Task


@dataclass(slots=True)
class Progress:
    """How far a run has come."""

    step: int = 0
    seconds: float = 0.0
    skipped_steps: int = 0
    validation_loss: float | None = None

    def as_state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: complete, or stopped by a signal with everything saved."""

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
    records: JsonlSink
    sinks: Sinks
    display: Display
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

    def run(self) -> Outcome:
        """Train to the last step or to a signal; either way the state of the end is saved."""
        steps = self._config.training.steps
        self._parts.model.train()
        self._ticked_at = self._recorded_at = time.perf_counter()
        with StopRequest() as stop, closing(self._parts.task.batches):
            while self.progress.step < steps and stop.name is None:
                self._advance()
                done = self.progress.step
                is_last = done == steps
                if is_last or done % self._config.training.validate_every == 0:
                    self._validate()
                if is_last or done % self._config.checkpoint.every == 0:
                    self._save()
            if self._saved_step != self.progress.step:  # a signal came between checkpoints
                self._save()
        unfinished = self.progress.step < steps
        return Outcome(self.progress, stop.name if unfinished else None)

    def restore(self, training: dict[str, Any]) -> None:
        """Continue from the training part of a checkpoint; the model is restored already."""
        self.progress = Progress(**training["progress"])
        self._parts.stepper.load_state_dict(training["stepper"])
        self._parts.task.batches.load_state_dict(training["batches"])
        checkpoint.restore_random_state_(training["random"])
        self._recorded_step = self._saved_step = self.progress.step

    def _advance(self) -> None:
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
        self.progress.step += 1
        self.progress.skipped_steps += taken.is_skipped
        self._tick()
        if is_due:
            self._record(taken)

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
        record = self._made("val", self.progress.validation_loss, found)
        self._parts.sinks.write(record)
        self._parts.display.validation(record)
        # Validation is no training: the rate of the next record leaves it out.
        self._recorded_step, self._recorded_at = self.progress.step, time.perf_counter()

    def _save(self) -> None:
        self._parts.sinks.flush()
        checkpoint.save(
            self._parts.directory.checkpoints,
            step=self.progress.step,
            model=self._parts.model.state_dict(),
            training={
                "progress": self.progress.as_state(),
                "stepper": self._parts.stepper.state_dict(),
                "batches": self._parts.task.batches.state_dict(),
                "random": checkpoint.capture_random_state(),
                "metrics_position": self._parts.records.position,
            },
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

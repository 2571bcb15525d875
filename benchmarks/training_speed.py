"""The trainer against a minimal loop, and what the trainer itself costs.

    python benchmarks/training_speed.py [--steps 40] [--rounds 7]

The minimal loop is forward, backward and `AdamW(fused=True)` on the same model and random tokens
of the same shape, without data, clipping, schedule, records or checkpoints. Both run in turn in
one process, on the quickstart's model and with its intervals. The trainer's overhead is the part
of its time outside forward, backward and optimizer step: data, clipping, records with MARS's
measures, display and checkpoints; validation is left out of both, being no training.
"""

import argparse
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from mars.config import presets
from mars.config.schema import Run
from mars.metrics.console import make_display
from mars.models.gpt2 import GPT2
from mars.training.assemble import assemble
from mars.training.run_directory import RunDirectory


def config(optimizer: str, *, steps: int, data: Path) -> Run:
    """Return the quickstart with some steps, and its one validation at the end."""
    run = presets.preset(f"quickstart-{optimizer}")
    return replace(
        run,
        data=replace(run.data, path=str(data)),
        schedule=replace(run.schedule, warmup_steps=0),
        training=replace(run.training, steps=steps, validate_every=steps, validation_sequences=16),
    )


def minimal_loop(run: Run) -> Callable[[], float]:
    """Return what runs the minimal loop and gives its tokens a second."""
    model = GPT2(run.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)
    shape = (run.training.batch_size, run.model.context_length)
    inputs = torch.randint(0, 256, shape)
    targets = torch.randint(0, 256, shape)

    def measure() -> float:
        start = time.perf_counter()
        for _ in range(run.training.steps):
            optimizer.zero_grad()
            model(inputs, targets).backward()
            optimizer.step()
        return run.training.steps * inputs.numel() / (time.perf_counter() - start)

    return measure


class Clock:
    """Adds up the time spent in what it wraps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wrap(self, function: Callable[..., object]) -> Callable[..., object]:
        """Return the function, timed."""

        def timed(*args: object, **kwargs: object) -> object:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


def trainer_run(run: Run, folder: Path) -> tuple[float, float]:
    """Return the trainer's tokens a second, and the part of its time that is its own."""
    display = make_display(Console(file=io.StringIO(), force_terminal=True, width=100))
    directory = RunDirectory(folder)
    compute, validation = Clock(), Clock()
    backward = torch.Tensor.backward
    with assemble(run, directory, display=display, resume=False, tell=display.message) as (
        trainer,
        header,
    ):
        stepper = trainer._parts.stepper
        stepper._model = compute.wrap(stepper._model)
        stepper.optimizer.step = compute.wrap(stepper.optimizer.step)
        trainer._validate = validation.wrap(trainer._validate)
        torch.Tensor.backward = compute.wrap(backward)
        display.start(header)
        start = time.perf_counter()
        try:
            trainer.run()
        finally:
            torch.Tensor.backward = backward
        seconds = time.perf_counter() - start - validation.seconds
    display.close()
    steps, tokens = run.training.steps, run.training.batch_size * run.model.context_length
    own = 1 - compute.seconds / seconds
    return steps * tokens / seconds, own


def main() -> None:
    """Measure and print a table; write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--optimizers", nargs="+", default=["adamw", "mars-adamw"])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        runs = {
            name: config(name, steps=arguments.steps, data=root / "stdlib")
            for name in arguments.optimizers
        }
        minimal = minimal_loop(runs[arguments.optimizers[0]])
        minimal()
        speeds: dict[str, list[tuple[float, float, float]]] = {name: [] for name in runs}
        for index in range(arguments.rounds):
            for name, run in runs.items():
                bare = minimal()
                speed, own = trainer_run(run, root / f"{name}-{index}")
                speeds[name].append((speed, speed / bare, own))
    for name, rows in speeds.items():
        speed, ratio, own = (statistics.median(column) for column in zip(*rows, strict=True))
        found[name] = {"tokens_per_second": speed, "over_minimal_loop": ratio, "overhead": own}
        print(f"{name:12} {speed:8.0f} tokens/s  {ratio:.3f} of the minimal loop  own {own:.1%}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

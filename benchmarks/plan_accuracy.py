"""How near `mars plan` is: the peak memory of training steps of GPT-2 small, measured.

Usage: python benchmarks/plan_accuracy.py [--model gpt2-small] [--optimizer mars-adamw] ...

One process on the CPU takes steps as `mars train` does. Its state is compared with the plan to the
byte. The peak of a step is measured twice: as the memory that torch's allocator hands out, and as
the resident memory of the process beyond what it had before the model was made.
"""

import argparse
import gc
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

from mars.bench.measure import held_bytes
from mars.models.gpt2 import GPT2
from mars.planning.estimate import estimate, inventory_of
from mars.planning.gpus import gpu_of
from mars.planning.request import Request, make_request
from mars.training.hardware import PeakMemory, optimizer_bytes
from mars.training.optimizers import build_optimizer
from mars.training.step import Stepper
from mars.training.task import LanguageModeling

CPU = torch.device("cpu")


def resident_bytes() -> int:
    """Return the memory of this process that is in use now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Steps:
    """Training steps of a request's run on random tokens."""

    def __init__(self, request: Request) -> None:
        run = request.run
        self.model = GPT2(run.model, activation_checkpointing=run.training.activation_checkpointing)
        self.optimizer = build_optimizer(run.optimizer, self.model)
        task = LanguageModeling(None, 1, None, CPU, None)  # type: ignore[arg-type]  # the loss alone
        self.stepper = Stepper(self.model, self.optimizer, task, config=run.training)
        self.shape = (request.micro_batch_size, run.model.context_length)
        self.vocabulary, self.micro_batches = run.model.vocab_size, request.micro_batches

    def step(self) -> None:
        """Take one step."""
        batch = [
            tuple(torch.randint(self.vocabulary, self.shape) for _ in range(2))
            for _ in range(self.micro_batches)
        ]
        self.stepper(batch, measure=False)


def resident_after_warming_up(request: Request) -> int:
    """Return the memory in use once a small model has imported and compiled all there is."""
    small = {"layers": 1, "heads": 1, "width": 32, "context_length": 8, "vocab_size": 64}
    run = request.run
    steps = Steps(replace(request, run=replace(run, model=replace(run.model, **small))))
    for _ in range(2):
        steps.step()
    del steps
    gc.collect()
    return resident_bytes()


def main() -> None:
    """Print what was predicted beside what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt2-small")
    parser.add_argument("--optimizer", default="mars-adamw")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--micro-batch-size", type=int, default=1)
    parser.add_argument("--context-length", type=int, default=1024)
    parser.add_argument("--set", nargs="*", default=[])
    asked = parser.parse_args()
    request = make_request(
        asked.model,
        gpus=1,
        gpu=gpu_of("h100"),
        optimizer=asked.optimizer,
        settings=asked.set,
        options={
            "training.precision": asked.precision,
            "training.micro_batch_size": asked.micro_batch_size,
            "model.context_length": asked.context_length,
        },
    )
    plan = estimate(request, request.layouts[0], inventory_of(request)).memory
    before = resident_after_warming_up(request)
    steps = Steps(request)
    for _ in range(2):
        steps.step()
    state = optimizer_bytes(steps.optimizer)
    memory = PeakMemory(CPU)
    steps.step()
    resident = (memory.measured() or 0) - before
    # The profiler does not see memory freed that it has not seen allocated.
    steps.optimizer.zero_grad()
    parameters = sum(param.nbytes for param in steps.model.parameters())
    allocated = parameters + state + held_bytes(steps.step)[0]
    rows = {
        "optimizer state": (plan.optimizer_state, state),
        "peak, allocated": (plan.peak, allocated),
        "peak, resident": (plan.peak, resident),
    }
    print(f"{' '.join(sys.argv)}: the peak is reached in {plan.peak_moment}")
    for name, (expected, measured) in rows.items():
        print(f"{name:16} {expected:15,} predicted {measured:15,} measured", end="")
        print(f" {100 * (expected / measured - 1):+6.2f} %")


if __name__ == "__main__":
    main()

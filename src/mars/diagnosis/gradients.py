"""Gradients of a model at any point of a path, on samples drawn for the purpose."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mars.training.task import MicroBatch

# The trainable parameters of a model in its order, at one step of a run.
Point = list[Tensor]
# Samples by number; any range of them is a micro-batch.
Samples = Callable[[Sequence[int]], MicroBatch]
# Takes the number of sequences just worked on.
Tick = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Gradients:
    """Evaluates gradients on a model of its own, which no one else may use meanwhile.

    Args:
        model: its parameters are overwritten; it stays in its mode, training or evaluation.
        loss: the mean loss of a model on a micro-batch.
        samples: an independent order of the data for each seed.
        part_size: most samples in memory at a time.
        context: what the loss is computed in, such as autocast.
    """

    model: nn.Module
    loss: Callable[[nn.Module, MicroBatch], Tensor]
    samples: Callable[[int], Samples]
    part_size: int
    context: Callable[[], AbstractContextManager[object]] = nullcontext

    def at(self, point: Point, batch: MicroBatch, *, seed: int) -> list[Tensor]:
        """Return the gradient of a batch's mean loss at a point.

        ``seed`` decides what is random in the model: the same one gives the same dropout.
        """
        params: list[Tensor] = [p for p in self.model.parameters() if p.requires_grad]
        with torch.no_grad():
            torch._foreach_copy_(params, point)
        torch.manual_seed(seed)
        total: list[Tensor] = []
        for part in zip(*(torch.split(each, self.part_size) for each in batch), strict=True):
            with self.context():
                loss = self.loss(self.model, part) * (len(part[0]) / len(batch[0]))
            made = torch.autograd.grad(loss, params, materialize_grads=True, allow_unused=True)
            total = list(torch._foreach_add(total, made)) if total else list(made)
        return total


def make_seed(*origin: int) -> int:
    """Return a seed that is unlike any other origin's, nor like the small ones of runs."""
    made = np.random.SeedSequence(origin).generate_state(1, np.uint64)
    return int(made[0]) >> 1  # torch and NumPy both take 63 bits

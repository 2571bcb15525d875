"""What is asked of a plan: a run, its GPUs, and how the batch divides over them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mars.config import presets
from mars.config.check import check
from mars.config.errors import RefusedError
from mars.config.keys import Value
from mars.config.load import assign, override
from mars.config.schema import OptimizerName, Run
from mars.config.vision import require_text
from mars.planning.gpus import Gpu
from mars.planning.layout import Layout, Mode, layout_of, layouts
from mars.planning.shapes import is_shape, run_of


@dataclass(frozen=True, slots=True)
class Request:
    """A checked run on a number of GPUs."""

    run: Run
    gpus: int
    gpu: Gpu
    mode: Mode | None
    """The only one asked for, or None for all that are possible."""
    replicas: int | None
    batch_follows: bool = False
    """Whether the batch is one micro-batch a GPU, however many there are."""

    @property
    def layouts(self) -> list[Layout]:
        """What is asked for; a mode that so many GPUs do not allow is refused."""
        if self.mode is None:
            return layouts(gpus=self.gpus, replicas=self.replicas)
        return [layout_of(self.mode, gpus=self.gpus, replicas=self.replicas)]

    @property
    def micro_batch_size(self) -> int:
        """Sequences at a time on one GPU."""
        return self.run.training.micro_batch_size or self.run.training.batch_size // self.gpus

    @property
    def micro_batches(self) -> int:
        """How many of them a GPU takes in a step."""
        return self.run.training.batch_size // self.gpus // self.micro_batch_size

    @property
    def evaluations(self) -> int:
        """How often a step evaluates its batch: exact mode does so at two points."""
        return 2 if self.run.optimizer.exact else 1


def make_request(
    model: str,
    *,
    gpus: int,
    gpu: Gpu,
    mode: Mode | None = None,
    replicas: int | None = None,
    optimizer: OptimizerName | None = None,
    settings: Sequence[str] = (),
    options: Mapping[str, Value] | None = None,
) -> Request:
    """Return the request for a model by name, preset or file; what no run can be is refused.

    ``settings`` are those of ``--set`` and ``options`` other keys, which have the last word. A
    shape's name says nothing about batches: there each GPU takes one micro-batch a step.
    """
    if gpus < 1:
        raise RefusedError(f"--gpus must be at least 1, got {gpus}")
    run = run_of(model)
    if optimizer is not None and optimizer != run.optimizer.name:
        run = replace(run, optimizer=presets.constants(optimizer))
    if is_shape(model):
        # No setting can say None here, so it shows that none was given.
        run = assign(run, {"training.batch_size": None})
    run = assign(override(run, settings), options or {})
    follows = run.training.batch_size is None
    if follows:
        run = assign(run, {"training.batch_size": gpus * (run.training.micro_batch_size or 1)})
    check(run)
    require_text(run, what="mars plan")
    _check_batch(run, gpus)
    training = run.training
    return Request(
        run,
        gpus,
        gpu,
        mode=mode or training.parallel,
        replicas=training.replicas if replicas is None else replicas,
        batch_follows=follows,
    )


def _check_batch(run: Run, gpus: int) -> None:
    """Refuse a batch that does not divide evenly."""
    batch_size, micro = run.training.batch_size, run.training.micro_batch_size
    if batch_size % gpus:
        near = math.ceil(batch_size / gpus) * gpus
        raise RefusedError(
            f"training.batch_size = {batch_size} is not divisible by --gpus {gpus}; "
            f"use --set batch_size={near}"
        )
    share = batch_size // gpus
    if micro is not None and share % micro:
        raise RefusedError(
            f"training.micro_batch_size = {micro} does not divide the {share} sequences of each "
            f"of {gpus} GPUs (training.batch_size = {batch_size}); "
            f"use --micro-batch-size {math.gcd(share, micro)}"
        )

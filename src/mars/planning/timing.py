"""How long a step's parts take at the hardware's own rates, which no program quite reaches."""

from dataclasses import dataclass

from mars.optim.orthogonalize import STEPS
from mars.planning.gpus import GIGA, Gpu
from mars.planning.inventory import Entry, Inventory
from mars.planning.layout import Layout

# The backward pass of a checkpointed block computes its forward pass again: 8 for 6.
_RECOMPUTED = 4 / 3


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a step on one GPU, each as if it were alone."""

    model: float
    """Forward and backward passes."""
    optimizer_memory: float
    """What the optimizer's step moves."""
    newton_schulz: float
    link: float


def model_seconds(
    inventory: Inventory, *, tokens: int, precision: str, is_checkpointed: bool, gpu: Gpu
) -> float:
    """Return the seconds of forward and backward passes of a GPU's tokens at its peak."""
    peak = gpu.float32_flops if precision == "float32" else gpu.half_flops
    return inventory.flops_per_token * tokens * (_RECOMPUTED if is_checkpointed else 1) / peak


def moved_seconds(inventory: Inventory, *, layout: Layout, gpu: Gpu) -> float:
    """Return the seconds of reading and writing what the optimizer's step has to."""
    moved = sum(
        entry.moved_bytes * layout.elements(entry.shape) / entry.elements for entry in inventory
    )
    return moved / (GIGA * gpu.bandwidth)


def newton_schulz_seconds(inventory: Inventory, *, layout: Layout, gpu: Gpu) -> float:
    """Return the seconds of orthogonalising on the GPU that has most to do.

    Each matrix is given to one GPU, and one matrix is never divided.
    """
    flops = [newton_schulz_flops(entry) for entry in inventory if entry.is_orthogonalized]
    return max([sum(flops) / layout.gpus, *flops], default=0.0) / gpu.half_flops


def newton_schulz_flops(entry: Entry) -> int:
    """Return the operations of orthogonalising one matrix: two products with it, one square."""
    short = min(entry.shape[0], entry.elements // entry.shape[0])
    return STEPS * (4 * short * entry.elements + 2 * short**3)

"""What an optimizer's step holds beside parameters, gradients and state, on a GPU."""

from mars.config.schema import Optimizer
from mars.planning.inventory import Entry, Inventory
from mars.planning.layout import Layout

_FLOAT32 = 4
# Elements of a chunk of the eager engine on a GPU, and of a batch of matrices (docs/engines.md).
_CHUNK = 2**24
_MATRIX_CHUNK = 2**21
# Elements of directions that replicas have under way (docs/distributed.md).
_BROADCAST = 2**24


def scratch_bytes(inventory: Inventory, optimizer: Optimizer, layout: Layout) -> int:
    """Return the most that a step of an optimizer holds at a time."""
    local = sum(layout.elements(entry.shape) for entry in inventory)
    orthogonalized = [entry for entry in inventory if entry.is_orthogonalized]
    matrices = max(
        (
            _matrix_bytes(entry, batch) + _wave_bytes(entry, batch, layout)
            for entry in orthogonalized
            for batch in [_batch(entry, orthogonalized, layout)]
        ),
        default=0,
    )
    match optimizer.name:
        case "adamw" | "muon":
            # torch's foreach form holds one tensor for each parameter at a time.
            own = 0 if optimizer.fused else _FLOAT32 * local
        case "nadamw":
            own = _FLOAT32 * local
        case "lion":
            own = 2 * _FLOAT32 * max(layout.elements(entry.shape) for entry in inventory)
        case _:
            own = 0 if optimizer.fused else _chunks(optimizer) * _FLOAT32 * min(_CHUNK, local)
    return max(own, matrices)


def _chunks(optimizer: Optimizer) -> int:
    """Return how many chunks the eager engine holds at a time.

    The corrected gradients or directions, torch's kernel doing the rest; roots and denominators
    where the second moment is of another gradient than the first; a stored gradient made float32.
    Lean MARS-AdamW is torch's kernel on the gradient itself.
    """
    if optimizer.name == "mars-adamw" and optimizer.lean:
        return 0
    has_roots = optimizer.name == "mars-adamw" and optimizer.second_moment == "gradient"
    return (3 if has_roots else 1) + (optimizer.last_grad_dtype == "bfloat16")


def _batch(entry: Entry, others: list[Entry], layout: Layout) -> int:
    """Return how many matrices of one shape a GPU orthogonalises at a time."""
    equal = sum(other.shape == entry.shape for other in others)
    return min(-(-equal // layout.gpus), max(1, _MATRIX_CHUNK // entry.elements))


def _matrix_bytes(entry: Entry, batch: int) -> int:
    """Return what orthogonalising a batch of equal matrices holds.

    Two copies and two squares of the short side in float32; products in bfloat16 take less, as do
    matrices that are worked through in blocks of columns.
    """
    short = min(entry.shape[0], entry.elements // entry.shape[0])
    return 2 * _FLOAT32 * batch * (entry.elements + short * short)


def _wave_bytes(entry: Entry, batch: int, layout: Layout) -> int:
    """Return what travels at a time where GPUs divide the matrices: a batch of each owner.

    Shards of the momenta are sent, received and assembled, those of directions computed, sent and
    received, and two waves are under way. Replicas broadcast their directions, some at a time;
    under DDP that is all, beside the momenta and directions of a batch.
    """
    if layout.gpus == 1:
        return 0
    whole = batch * entry.elements
    # One batch more: the parameters move along it while others are under way.
    told = min(layout.replicas * whole, max(_BROADCAST, whole) + whole)
    told = told if layout.replicas > 1 else 0
    return _FLOAT32 * (told + (8 if layout.is_sharded else 2) * whole)

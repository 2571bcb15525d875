"""What each GPU sends in a step, by ring algorithms: the least that any algorithm can.

Of n GPUs each sends (n-1)/n of the bytes in an all-gather or a reduce-scatter, and twice that in an
all-reduce.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mars.planning.activations import compute_bytes
from mars.planning.gpus import GIGA, GPUS_A_NODE, Gpu
from mars.planning.inventory import Inventory
from mars.planning.layout import Layout

_FLOAT32, _FLOAT64 = 4, 8


@dataclass(frozen=True, slots=True)
class Transfer:
    """One kind of communication: what is sent, by which operation, how many bytes a GPU sends."""

    what: str
    operation: str
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What decides how much is sent."""

    inventory: Inventory
    layout: Layout
    precision: str
    micro_batches: int
    evaluations: int
    """How often a step computes gradients: twice in exact mode."""
    gpu: Gpu


def transfers(traffic: Traffic) -> tuple[Transfer, ...]:
    """Return all communication of a step, and its time if nothing overlaps."""
    layout = traffic.layout
    if layout.mode == "none":
        return ()
    if layout.mode == "ddp":
        return tuple(_replicated(traffic))
    return tuple(_sharded(traffic))


def _replicated(traffic: Traffic) -> Iterator[Transfer]:
    gpus = traffic.layout.gpus
    whole = traffic.evaluations * _FLOAT32 * traffic.inventory.elements
    yield _transfer(traffic, "gradients", "all-reduce", 2 * whole, gpus)
    yield from _matrices(traffic)


def _sharded(traffic: Traffic) -> Iterator[Transfer]:
    layout, inventory = traffic.layout, traffic.inventory
    outside = sum(entry.elements for entry in inventory.outside)
    blocks = inventory.elements - outside
    # Blocks are gathered for the forward pass and again for the backward pass; the rest, which is
    # float32 in any precision, stays.
    gathered = 2 * compute_bytes(traffic.precision) * blocks + _FLOAT32 * outside
    sent = traffic.evaluations * traffic.micro_batches * gathered
    yield _transfer(traffic, "parameters", "all-gather", sent, layout.shards)
    whole = traffic.evaluations * _FLOAT32 * inventory.elements
    yield _transfer(traffic, "gradients", "reduce-scatter", whole, layout.shards)
    if layout.replicas > 1:
        own = sum(layout.elements(entry.shape) for entry in inventory)
        part = traffic.evaluations * _FLOAT32 * own
        yield _transfer(
            traffic, "gradients of replicas", "all-reduce", 2 * part, layout.replicas, strided=True
        )
    yield from _matrices(traffic)
    norms = 2 * _FLOAT64 * len(inventory.entries)
    yield _transfer(traffic, "norms", "all-reduce", norms, layout.shards)


def _matrices(traffic: Traffic) -> Iterator[Transfer]:
    """Yield what the matrix rules send: owners orthogonalise for all, those of Muon too.

    Each GPU owns an equal part of the matrices. The shards of a matrix go to its owner and come
    back as directions inside one replica, which tells the others.
    """
    layout = traffic.layout
    owned = _FLOAT32 * sum(e.elements for e in traffic.inventory if e.is_orthogonalized)
    if owned and layout.is_sharded:
        yield _transfer(traffic, "matrices", "all-to-all", 2 * owned // layout.gpus, layout.shards)
    if owned and layout.replicas > 1:
        own = owned // layout.shards
        yield _transfer(traffic, "matrices", "broadcasts", own, layout.replicas, strided=True)


def _transfer(
    traffic: Traffic, what: str, operation: str, count: int, group: int, *, strided: bool = False
) -> Transfer:
    """Return a transfer in a group of GPUs, which share a node unless they are many or strided."""
    sent = count * (group - 1) // group
    spans = group > GPUS_A_NODE or (strided and traffic.layout.gpus > GPUS_A_NODE)
    rate = GIGA * (traffic.gpu.link if spans else traffic.gpu.node_link)
    return Transfer(what, operation, sent, sent / rate)

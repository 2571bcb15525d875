"""Dividing the matrix rules over ranks: every matrix is orthogonalised once, by one owner.

Each rank holds its parts of the momenta. The owner of a matrix collects them, computes the
direction, and every rank gets its part of that. Owners are chosen so that all have about equally
much to compute. Matrices travel in waves, one batch of every owner at a time: while a wave is
computed, the next one is on its way, and two waves are all the memory this takes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from mars.optim.sharding import Holding


@dataclass(frozen=True, slots=True)
class Item:
    """A matrix: its place among the caller's, its momentum here, and who holds what of it."""

    bucket: int
    index: int
    momentum: Tensor
    holding: Holding


# The items of one wave: of each owner, a batch of equal shapes from one bucket.
Wave = list[list[Item]]
# From a bucket and whole momenta to whole directions.
Rule = Callable[[int, list[Tensor]], list[Tensor]]


def directions(
    items: Sequence[Item], rule: Rule, *, at_once: Callable[[int], int]
) -> Iterator[list[tuple[Item, Tensor]]]:
    """Yield, wave by wave, the parts of the directions that belong to this rank.

    Every rank of the group calls it with the same matrices in the same order. ``at_once`` says how
    many matrices of a bucket an owner works on in one batch.
    """
    group = items[0].holding.group
    rank = dist.get_rank(group)
    waves = _waves(items, ranks=dist.get_world_size(group), at_once=at_once)
    arriving = _collect(waves[0], rank)
    leaving: tuple[Wave, _Transfer] | None = None
    for number, wave in enumerate(waves):
        momenta = arriving()
        if number + 1 < len(waves):
            arriving = _collect(waves[number + 1], rank)
        computed = rule(wave[rank][0].bucket, momenta) if wave[rank] else []
        if leaving is not None:
            yield _received(*leaving, rank=rank)
        leaving = wave, _send_back(wave, computed, rank)
    assert leaving is not None
    yield _received(*leaving, rank=rank)


def owners(costs: Sequence[float], *, ranks: int) -> list[int]:
    """Return an owner for each cost: the dearest first, each to whoever has the least so far."""
    load = [0.0] * ranks
    chosen = [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        chosen[i] = min(range(ranks), key=lambda rank: (load[rank], rank))
        load[chosen[i]] += costs[i]
    return chosen


def cost(shape: Sequence[int]) -> float:
    """Return what a matrix costs to orthogonalise, in multiplications of one Newton-Schulz step."""
    rows, cols = shape[0], prod(shape[1:])
    short, long = min(rows, cols), max(rows, cols)
    return float(short * short * (2 * long + short))


def _waves(items: Sequence[Item], *, ranks: int, at_once: Callable[[int], int]) -> list[Wave]:
    """Return batches of each owner, wave by wave; an owner without any has an empty one."""
    batches: list[list[list[Item]]] = [[] for _ in range(ranks)]
    chosen = owners([cost(item.holding.shape) for item in items], ranks=ranks)
    for item, owner in zip(items, chosen, strict=True):
        own = batches[owner]
        last = own[-1] if own else []
        if last and last[0].bucket == item.bucket and len(last) < at_once(item.bucket):
            last.append(item)
        else:
            own.append([item])
    for own in batches:  # heavy batches meet heavy ones: a wave takes as long as its heaviest
        own.sort(key=lambda batch: -len(batch) * cost(batch[0].holding.shape))
    return [
        [own[number] if number < len(own) else [] for own in batches]
        for number in range(max(len(own) for own in batches))
    ]


class _Transfer:
    """An exchange between all ranks of a group that is under way; what was sent stays alive."""

    def __init__(self, sent: list[list[Tensor]], received: list[list[int]], *, like: Item) -> None:
        flat = [torch.cat([t.reshape(-1) for t in own]) for own in sent if own]
        self._sent = torch.cat(flat) if flat else like.momentum.new_empty(0)
        self._sizes = received
        counts = [sum(own) for own in received]
        self._received = self._sent.new_empty(sum(counts))
        self._work = dist.all_to_all_single(
            self._received,
            self._sent,
            counts,
            [sum(t.numel() for t in own) for own in sent],
            group=like.holding.group,
            async_op=True,
        )

    def wait(self) -> list[list[Tensor]]:
        """Return what came from each rank, cut into the pieces that were announced."""
        if self._work is not None:
            self._work.wait()
        pieces = iter(torch.split(self._received, [size for own in self._sizes for size in own]))
        return [[next(pieces) for _ in own] for own in self._sizes]


def _collect(wave: Wave, rank: int) -> Callable[[], list[Tensor]]:
    """Start to collect this rank's matrices of a wave; the call returned gives them whole."""
    mine = wave[rank]
    first = next(item for own in wave for item in own)
    if all(item.holding.is_replicated for own in wave for item in own):
        return lambda: [item.momentum for item in mine]
    replicas = first.holding.replicas
    sent = [
        [item.momentum for item in own if _sends(item, rank, owner)]
        for owner, own in enumerate(wave)
    ]
    ranks = range(len(replicas))
    received = [
        [item.holding.parts[sender].numel for item in mine if _sends(item, sender, rank)]
        for sender in ranks
    ]
    transfer = _Transfer(sent, received, like=first)

    def whole() -> list[Tensor]:
        arrived = [iter(own) for own in transfer.wait()]
        return [_assembled(item, rank, arrived) for item in mine]

    return whole


def _sends(item: Item, sender: int, owner: int) -> bool:
    """Whether a rank's part of a matrix is the copy that goes to its owner."""
    return item.holding.replicas[sender] == item.holding.replicas[owner]


def _assembled(item: Item, rank: int, arrived: list[Iterator[Tensor]]) -> Tensor:
    whole = item.momentum.new_empty(item.holding.shape)
    for sender, part in enumerate(item.holding.parts):
        if _sends(item, sender, rank):
            whole[part.index] = next(arrived[sender]).view(part.shape)
    return whole


def _send_back(wave: Wave, computed: list[Tensor], rank: int) -> _Transfer:
    """Start to send every rank its parts of the directions."""
    first = next(item for own in wave for item in own)
    mine = list(zip(wave[rank], computed, strict=True))
    sent = [
        [direction[item.holding.parts[receiver].index] for item, direction in mine]
        for receiver in range(len(wave))
    ]
    received = [[item.holding.parts[rank].numel for item in own] for own in wave]
    return _Transfer(sent, received, like=first)


def _received(wave: Wave, transfer: _Transfer, *, rank: int) -> list[tuple[Item, Tensor]]:
    return [
        (item, piece.view(item.holding.parts[rank].shape))
        for own, pieces in zip(wave, transfer.wait(), strict=True)
        for item, piece in zip(own, pieces, strict=True)
    ]

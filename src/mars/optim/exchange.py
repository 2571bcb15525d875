"""Dividing the matrix rules over ranks: every matrix is orthogonalised once, by one owner.

Each rank holds its parts of the momenta. The owner of a matrix collects them, computes the
direction, and every rank gets its part of that. Owners are chosen so that all have about equally
much to compute. Matrices travel in waves, one batch of every owner at a time: while a wave is
computed, the next one is on its way, and two waves, times the replicas of shards, are all the
memory this takes; of matrices that every rank holds whole, some batches.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from mars.optim.sharding import Holding

# Elements of whole directions under way at a time, unless one batch has more.
_BROADCAST_ELEMENTS = 2**24


@dataclass(frozen=True, slots=True)
class Item:
    """A matrix: its place among the caller's, its momentum here, and who holds what of it."""

    bucket: int
    index: int
    momentum: Tensor
    holding: Holding


# The items of one wave: of each owner, a batch of equal shapes from one bucket.
Wave = list[list[Item]]
# A matrix and the part of its direction that is for this rank.
Directed = tuple[Item, Tensor]
# From a bucket and whole momenta to whole directions.
Rule = Callable[[int, list[Tensor]], list[Tensor]]


def directions(
    items: Sequence[Item], rule: Rule, *, at_once: Callable[[int], int]
) -> Iterator[list[Directed]]:
    """Yield, a batch or a wave at a time, the parts of the directions that belong to this rank.

    Every rank of the group calls it with the same matrices in the same order. ``at_once`` says how
    many matrices of a bucket an owner works on in one batch.
    """
    group = items[0].holding.group
    rank = dist.get_rank(group)
    waves = _waves(items, ranks=dist.get_world_size(group), at_once=at_once)
    arriving = _collect(waves[0], rank)
    leaving: Iterator[list[Directed]] = iter(())
    for number, wave in enumerate(waves):
        momenta = arriving()
        if number + 1 < len(waves):
            arriving = _collect(waves[number + 1], rank)
        computed = rule(wave[rank][0].bucket, momenta) if wave[rank] else []
        yield from leaving
        leaving = _return(wave, computed, rank)
    yield from leaving


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


def _return(wave: Wave, computed: list[Tensor], rank: int) -> Iterator[list[Directed]]:
    """Start to send every rank its parts of the directions; the iterator waits for them."""
    replicated = all(item.holding.is_replicated for own in wave for item in own)
    return (_broadcast if replicated else _scatter)(wave, computed, rank)


def _scatter(wave: Wave, computed: list[Tensor], rank: int) -> Iterator[list[Directed]]:
    first = next(item for own in wave for item in own)
    mine = list(zip(wave[rank], computed, strict=True))
    sent = [
        [direction[item.holding.parts[receiver].index] for item, direction in mine]
        for receiver in range(len(wave))
    ]
    received = [[item.holding.parts[rank].numel for item in own] for own in wave]
    transfer = _Transfer(sent, received, like=first)

    def arrived() -> Iterator[list[Directed]]:
        yield [
            (item, piece.view(item.holding.parts[rank].shape))
            for own, pieces in zip(wave, transfer.wait(), strict=True)
            for item, piece in zip(own, pieces, strict=True)
        ]

    return arrived()


def _broadcast(wave: Wave, computed: list[Tensor], rank: int) -> Iterator[list[Directed]]:
    """Send whole directions from each owner in turn, as many batches at a time as memory allows.

    An all-to-all would hold a copy for every rank.
    """
    waiting = deque((owner, own) for owner, own in enumerate(wave) if own)
    under_way: deque[tuple[list[Item], Tensor, dist.Work | None]] = deque()

    def start() -> None:
        while waiting:
            owner, own = waiting[0]
            size = sum(item.momentum.numel() for item in own)
            held = sum(batch.numel() for _, batch, _ in under_way)
            if under_way and held + size > _BROADCAST_ELEMENTS:
                return
            batch = own[0].momentum.new_empty(size)
            if owner == rank:
                torch.cat([direction.reshape(-1) for direction in computed], out=batch)
            group = own[0].holding.group
            work = dist.broadcast(batch, group=group, group_src=owner, async_op=True)
            under_way.append((own, batch, work))
            waiting.popleft()

    def arrived() -> Iterator[list[Directed]]:
        while under_way:
            own, batch, work = under_way.popleft()
            if work is not None:
                work.wait()
            pieces = torch.split(batch, [item.momentum.numel() for item in own])
            yield [(i, piece.view(i.holding.shape)) for i, piece in zip(own, pieces, strict=True)]
            start()

    start()
    return arrived()

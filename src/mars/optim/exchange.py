"""Dividing the matrix rules over ranks: every matrix is orthogonalised once, by one owner.

Each rank holds its parts of the momenta. The owner of a matrix collects them, computes the
direction, and every rank gets its part of that: the ranks that hold the matrix together with the
owner from the owner, those that hold copies of the same parts from them. Owners are chosen so that
all have about equally much to compute. Matrices travel in waves, one batch of every owner at a
time: while a wave is computed, the next one is on its way. What copies are told goes a batch at a
time, so the memory this takes does not grow with the ranks.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from mars.optim.sharding import Axis, Holding

# Elements of directions under way between copies at a time, unless one batch has more.
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

    Every rank of the group calls it with the same matrices in the same order, which all lie along
    the same axes. ``at_once`` says how many matrices of a bucket an owner works on in one batch.
    """
    group = items[0].holding.group
    rank = dist.get_rank(group)
    waves = _waves(items, ranks=dist.get_world_size(group), at_once=at_once)
    arriving = _collect(waves[0], rank)
    leaving: _Leaving | None = None
    for number, wave in enumerate(waves):
        momenta = arriving()
        if number + 1 < len(waves):
            arriving = _collect(waves[number + 1], rank)
        if leaving is not None:
            leaving.start()
        computed = rule(wave[rank][0].bucket, momenta) if wave[rank] else []
        if leaving is not None:
            yield from leaving.arrived()
        leaving = _Leaving(wave, computed, rank)
    if leaving is not None:
        yield from leaving.arrived()


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
        pieces = [piece.reshape(-1) for own in sent for piece in own]
        self._sent = torch.cat(pieces) if pieces else like.momentum.new_empty(0)
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

    def flat(self) -> Tensor:
        """Return what came, from one rank after the other."""
        if self._work is not None:
            self._work.wait()
        return self._received

    def pieces(self) -> list[list[Tensor]]:
        """Return what came from each rank, cut into the pieces that were announced."""
        pieces = iter(torch.split(self.flat(), [size for own in self._sizes for size in own]))
        return [[next(pieces) for _ in own] for own in self._sizes]


def _collect(wave: Wave, rank: int) -> Callable[[], list[Tensor]]:
    """Start to collect this rank's matrices of a wave; the call returned gives them whole."""
    mine = wave[rank]
    first = next(item for own in wave for item in own)
    if first.holding.is_replicated:
        return lambda: [item.momentum for item in mine]
    sent = [
        [item.momentum for item in own if _sends(item, rank, owner)]
        for owner, own in enumerate(wave)
    ]
    received = [
        [item.holding.parts[sender].numel for item in mine if _sends(item, sender, rank)]
        for sender in range(len(wave))
    ]
    transfer = _Transfer(sent, received, like=first)

    def whole() -> list[Tensor]:
        arrived = [iter(own) for own in transfer.pieces()]
        return [_assembled(item, rank, arrived) for item in mine]

    return whole


def _sends(item: Item, rank: int, owner: int) -> bool:
    """Whether a rank's part of a matrix is of the copy that its owner works on."""
    return item.holding.replicas[rank] == item.holding.replicas[owner]


def _assembled(item: Item, rank: int, arrived: list[Iterator[Tensor]]) -> Tensor:
    whole = item.momentum.new_empty(item.holding.shape)
    for sender, part in enumerate(item.holding.parts):
        if _sends(item, sender, rank):
            whole[part.index] = next(arrived[sender]).view(part.shape)
    return whole


class _Leaving:
    """Directions of a wave on their way to the ranks.

    What a replica's own ranks have computed is divided among them first. Then the replicas tell
    each other, in turn: an all-to-all would hold a copy for every replica.
    """

    def __init__(self, wave: Wave, computed: list[Tensor], rank: int) -> None:
        self._holding = next(item for own in wave for item in own).holding
        self._rank = rank
        self._own_parts = _scatter(wave, computed, rank)
        by_replica: dict[tuple[int, ...], list[Item]] = {}
        for replica, own in zip(self._holding.replicas, wave, strict=True):
            by_replica.setdefault(replica, []).extend(own)
        self._waiting = deque((replica, own) for replica, own in by_replica.items() if own)
        self._under_way: deque[tuple[list[Item], Tensor, dist.Work | None]] = deque()
        if self._holding.is_replicated:  # else it would wait for what was just sent
            self.start()

    def start(self) -> None:
        """Start to tell the other replicas, as much at a time as memory allows."""
        here = self._holding.replicas[self._rank]
        while self._waiting:
            replica, own = self._waiting[0]
            size = sum(item.holding.parts[self._rank].numel for item in own)
            held = sum(parts.numel() for _, parts, _ in self._under_way)
            if self._under_way and held + size > _BROADCAST_ELEMENTS:
                return
            parts = self._own_parts() if replica == here else own[0].momentum.new_empty(size)
            work = _tell(parts, self._holding.axes, source=replica, here=here)
            self._under_way.append((own, parts, work))
            self._waiting.popleft()

    def arrived(self) -> Iterator[list[Directed]]:
        """Yield this rank's parts of the directions, a replica's at a time."""
        self.start()
        while self._under_way:
            own, parts, work = self._under_way.popleft()
            if work is not None:
                work.wait()
            shapes = [item.holding.parts[self._rank].shape for item in own]
            pieces = torch.split(parts, [prod(shape) for shape in shapes])
            yield [
                (item, piece.view(shape))
                for item, piece, shape in zip(own, pieces, shapes, strict=True)
            ]
            self.start()


def _scatter(wave: Wave, computed: list[Tensor], rank: int) -> Callable[[], Tensor]:
    """Start to divide what a replica's own ranks have computed.

    The call returned gives this rank's parts, one after the other in the order of the owners.
    """
    first = next(item for own in wave for item in own)
    if first.holding.is_replicated:
        return lambda: torch.cat([direction.reshape(-1) for direction in computed])
    mine = list(zip(wave[rank], computed, strict=True))
    sent = [
        [d[item.holding.parts[receiver].index] for item, d in mine if _sends(item, receiver, rank)]
        for receiver in range(len(wave))
    ]
    received = [
        [item.holding.parts[rank].numel for item in own if _sends(item, rank, owner)]
        for owner, own in enumerate(wave)
    ]
    return _Transfer(sent, received, like=first).flat


def _tell(
    parts: Tensor, axes: Sequence[Axis], *, source: tuple[int, ...], here: tuple[int, ...]
) -> dist.Work | None:
    """Start to give the other replicas what one of them has, along one axis after the other."""
    work: dist.Work | None = None
    for number, axis in enumerate(axes):
        if here[number + 1 :] != source[number + 1 :]:
            continue  # a later axis brings it here
        if work is not None:
            work.wait()
        place = axis.ranks[source[number]]
        work = dist.broadcast(parts, group=axis.group, group_src=place, async_op=True)
    return work

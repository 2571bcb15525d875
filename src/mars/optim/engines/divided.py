"""Matrix rules on several ranks: each works on what it holds, and on the matrices it owns.

Momentum and parameters are local, by the eager engine; what travels in between, and who owns what,
is the business of `exchange`.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from torch import Tensor

from mars.optim.buckets import Bucket, Tensors
from mars.optim.engines import eager
from mars.optim.exchange import Item, directions
from mars.optim.rules import RULES


def run_(buckets: Sequence[tuple[Bucket, Tensor | None]]) -> None:
    """Take one step on buckets of matrices that several ranks hold; every rank calls it alike.

    Each comes with its clip scales if those are not this rank's to find.
    """
    for bucket, scales in buckets:
        eager.momentum_(bucket, scales)
    together: dict[object, list[Item]] = {}
    for number, (bucket, _) in enumerate(buckets):
        holding = bucket.holding
        assert holding is not None
        for index, momentum in enumerate(bucket.tensors.exp_avgs):
            # What travels in one message has one way to go and one dtype.
            key = holding.group, holding.axes, momentum.dtype, momentum.device
            together.setdefault(key, []).append(Item(number, index, momentum, holding))
    every = [bucket for bucket, _ in buckets]
    for items in together.values():
        _exchange_(items, every)


def _exchange_(items: list[Item], buckets: list[Bucket]) -> None:
    """Let owners compute the directions of some matrices, and move the parameters along them."""
    rows = {}
    for number in {item.bucket for item in items}:
        rows[number] = list(buckets[number].tensors.rows())

    def rule(number: int, momenta: list[Tensor]) -> list[Tensor]:
        recipe = buckets[number].recipe
        return RULES[recipe.rule](Tensors(exp_avgs=momenta), [], recipe)

    def at_once(number: int) -> int:
        holding = buckets[number].holding
        assert holding is not None
        fit = eager.matrices_at_once(prod(holding.shape))
        return fit if buckets[number].batched else 1

    for wave in directions(items, rule, at_once=at_once):
        moved: dict[int, list[Tensors]] = {}
        for item, direction in wave:
            if direction.numel():
                row = replace(rows[item.bucket][item.index], directions=[direction])
                moved.setdefault(item.bucket, []).append(row)
        for number, own in moved.items():
            eager.finish_(replace(buckets[number], tensors=Tensors.of(own)))

"""What all ranks must know of a step before any of them takes it, in one collective.

The clip needs norms of whole tensors where ranks hold parts, and a step is skipped by all or none.
Before the first step ranks also compare what they are about to do: tensors are matched by their
order alone.
"""

import hashlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from mars.optim.buckets import Bucket
from mars.optim.nonfinite import Finite, parameter_name
from mars.optim.options import Group
from mars.optim.routing import route
from mars.optim.sharding import everywhere, group_of, sum_over_shards


def agree(
    buckets: Sequence[Bucket], norms: Sequence[Tensor | None], finite: Finite
) -> tuple[list[Tensor | None], Finite]:
    """Return the norms of whole tensors, and whether gradients are finite on every rank.

    ``norms`` has those of the parts here, None for a bucket that wants none. Without sharded
    tensors both are returned as they are.
    """
    layouts = [bucket.layout for bucket in buckets]
    wanted = [i for i, norm in enumerate(norms) if norm is not None and layouts[i] is not None]
    squares = [_square(norms[i]) for i in wanted]
    flags = everywhere(layouts) if finite else []
    if flags:
        device = buckets[0].tensors.params[0].device
        each = [torch.as_tensor(f, dtype=torch.float64, device=device) for f in finite.values()]
        squares += [1 - torch.stack(each)] * len(flags)
    sums = sum_over_shards([*(layouts[i] for i in wanted), *flags], squares)
    agreed = list(norms)
    for i, total in zip(wanted, sums, strict=False):
        norm = norms[i]
        assert norm is not None
        agreed[i] = total.sqrt().to(norm.dtype)
    if flags:
        fine = torch.stack(sums[len(wanted) :]).sum(0) == 0
        finite = {
            policy: own if isinstance(finite[policy], Tensor) else bool(own)
            for policy, own in zip(finite, fine.unbind(), strict=True)
        }
    if any(bucket.holding for bucket in buckets):
        # Ranks that exchange matrices must know on the host whether they will.
        finite = {policy: bool(flag) for policy, flag in finite.items()}
    return agreed, finite


def _square(norm: Tensor | None) -> Tensor:
    assert norm is not None
    return norm.double().square()


def check_alike(groups: list[Group]) -> None:
    """Refuse a first step in which ranks would take different tensors for the same one.

    They must have the same trainable parameters in the same order, with gradients of the same
    ones. Every rank that shares one calls it.
    """
    shared: dict[dist.ProcessGroup, list[tuple[str, Tensor]]] = {}
    for index, group in enumerate(groups):
        for position, param in enumerate(group["params"]):
            ranks = group_of(param, group["process_group"]) if param.requires_grad else None
            if ranks is not None:
                has = "a" if param.grad is not None else "no"
                rule = route(param, group).label
                name = parameter_name(groups, index, position)
                text = f"{name}, {param.dtype}, moved by {rule}, with {has} gradient"
                shared.setdefault(ranks, []).append((text, param))
    for ranks, described in shared.items():
        _compare([text for text, _ in described], ranks, device=described[0][1].device)


def _compare(texts: list[str], ranks: dist.ProcessGroup, *, device: torch.device) -> None:
    if not _is_common(torch.tensor([len(texts)], device=device), ranks)[0]:
        raise RuntimeError(
            f"ranks give the optimizer different numbers of trainable parameters, here {len(texts)}"
        )
    digests = [hashlib.sha256(text.encode()).digest()[:7] for text in texts]
    numbers = torch.tensor([int.from_bytes(digest) for digest in digests], device=device)
    for text, is_common in zip(texts, _is_common(numbers, ranks), strict=True):
        if not is_common:
            raise RuntimeError(
                f"ranks differ in a tensor of the optimizer, here {text}; give all ranks the same "
                "parameters in the same order, and gradients of the same ones"
            )


def _is_common(numbers: Tensor, ranks: dist.ProcessGroup) -> list[bool]:
    """Return of each number whether all ranks have the same."""
    extremes = torch.stack([numbers, -numbers])
    dist.all_reduce(extremes, dist.ReduceOp.MAX, group=ranks)
    largest, negated = extremes
    common: list[bool] = (largest == -negated).tolist()
    return common

"""What all ranks must know of a step before any of them takes it, in one collective.

The clip needs norms of whole tensors where ranks hold parts, and a step is skipped by all or none.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mars.optim.buckets import Bucket
from mars.optim.sharding import everywhere, sum_over_shards


def agree(
    buckets: Sequence[Bucket], norms: Sequence[Tensor | None], finite: bool | Tensor | None
) -> tuple[list[Tensor | None], bool | Tensor | None]:
    """Return the norms of whole tensors, and whether gradients are finite on every rank.

    ``norms`` has those of the parts here, None for a bucket that wants none; ``finite`` is None
    where nobody asks. Without sharded tensors both are returned as they are.
    """
    layouts = [bucket.layout for bucket in buckets]
    wanted = [i for i, norm in enumerate(norms) if norm is not None and layouts[i] is not None]
    squares = [_square(norms[i]) for i in wanted]
    flags = everywhere(layouts) if finite is not None else []
    if flags:
        device = buckets[0].tensors.params[0].device
        bad = 1 - torch.as_tensor(finite, dtype=torch.float64, device=device)
        squares += [bad] * len(flags)
    sums = sum_over_shards([*(layouts[i] for i in wanted), *flags], squares)
    agreed = list(norms)
    for i, total in zip(wanted, sums, strict=False):
        norm = norms[i]
        assert norm is not None
        agreed[i] = total.sqrt().to(norm.dtype)
    if flags:
        fine = torch.stack(sums[len(wanted) :]).sum() == 0
        finite = fine if isinstance(finite, Tensor) else bool(fine)
    if isinstance(finite, Tensor) and any(bucket.holding for bucket in buckets):
        finite = bool(finite)  # ranks that exchange matrices are told by the host
    return agreed, finite


def _square(norm: Tensor | None) -> Tensor:
    assert norm is not None
    return norm.double().square()

"""What the correction does to the gradients of the step about to be taken.

    correction ratio   |c - g| / |g|, over all corrected tensors together
    gradient cosine    <g, g_prev> / (|g| |g_prev|), likewise
    clip rate          the part of tensors whose |c| exceeds max_norm

All three follow from |g|^2, |g_prev|^2 and <g, g_prev> of each tensor, so c is never formed.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mars.optim.buckets import Bucket, gather
from mars.optim.sharding import local_gradients, sum_over_shards

if TYPE_CHECKING:
    from mars.optim.optimizer import MARS


def correction_measures(optimizer: "MARS") -> dict[str, float]:
    """Return the measures from the gradients at hand, or nothing where there is nothing to say.

    There is nothing before the second step, nor in the lean and exact forms, which store no
    previous gradient. Call it between ``backward`` and ``step``, on every rank if parameters are
    sharded; it reads values back from the device.
    """
    gradients = local_gradients(p for group in optimizer.param_groups for p in group["params"])
    buckets = [
        bucket
        for group in optimizer.param_groups
        if all(p in optimizer.state for p in group["params"] if p.grad is not None)
        for bucket in gather(group, optimizer.state, gradients=gradients, evaluated={})
        if bucket.recipe.previous == "stored"
    ]
    if not buckets:
        return {}
    with torch.no_grad():
        products = [_products(bucket) for bucket in buckets]
        whole = sum_over_shards([bucket.layout for bucket in buckets], products)
        rows = torch.cat([each.cpu() for each in whole])
        weights = torch.tensor(
            [b.recipe.correction_weight for b in buckets for _ in b.tensors.params],
            dtype=rows.dtype,
            device=rows.device,
        )
        return _measures(rows, weights, _limits(buckets, like=weights))


def _products(bucket: Bucket) -> Tensor:
    """Return |g|^2, |g_prev|^2 and <g, g_prev> of what is here of each tensor, in float64."""
    made = []
    for grad, last in zip(bucket.tensors.grads, bucket.tensors.last_grads, strict=True):
        g, previous = grad.reshape(-1), last.reshape(-1).to(grad.dtype)
        made.append(
            torch.stack([torch.dot(g, g), torch.dot(previous, previous), torch.dot(g, previous)])
        )
    return torch.stack(made).double()


def _limits(buckets: list[Bucket], *, like: Tensor) -> Tensor:
    """Return max_norm of each tensor, infinite where a tensor has no clip of its own."""
    limits = [
        b.recipe.max_norm if b.recipe.clip == "tensor" else float("inf")
        for b in buckets
        for _ in b.tensors.params
    ]
    return torch.tensor(limits, dtype=like.dtype, device=like.device)


def _measures(rows: Tensor, k: Tensor, limits: Tensor) -> dict[str, float]:
    squares, last_squares, inner = rows.unbind(1)
    total, last_total = float(squares.sum()), float(last_squares.sum())
    if not total or not last_total:
        return {}
    difference = (k * k * (squares - 2 * inner + last_squares).clamp(min=0)).sum()
    corrected = (1 + k) ** 2 * squares - 2 * k * (1 + k) * inner + k * k * last_squares
    found = {
        "correction_ratio": float(difference / total) ** 0.5,
        "gradient_cosine": float(inner.sum()) / (total * last_total) ** 0.5,
    }
    if limits.isfinite().any():
        clipped = corrected.clamp(min=0).sqrt() > limits
        found["clip_rate"] = float(clipped.double().mean())
    return found

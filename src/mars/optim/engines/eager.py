"""The eager engine: foreach operations on bounded chunks.

A step makes two passes: the norms of the corrected gradients, then everything else. Each pass
works through chunks, so that scratch memory is bounded by one chunk (by one tensor for the matrix
rules) and on a CPU stays in cache. Nothing here reads a value back from a device.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mars.optim.buckets import Bucket, Tensors
from mars.optim.correction import (
    accumulate_,
    accumulate_lean_,
    clip_scales,
    corrected_gradients,
    norms,
)
from mars.optim.previous import copy_, hand_over_, remember_, take_back_
from mars.optim.routing import MATRIX_RULES, Recipe
from mars.optim.rules import RULES
from mars.optim.rules.adamw import step_tensor, torch_step_, torch_step_applies

# Elements of a chunk. On a CPU: the six streams of 2.5 MB that one chunk of MARS-AdamW touches stay
# in the last-level cache. Elsewhere: enough work to fill the device, 64 MB of float32 at a time.
_CHUNK_ELEMENTS = {"cpu": 5 * 2**17}
_CHUNK_ELEMENTS_ELSEWHERE = 2**24
_MATRIX_CHUNK_ELEMENTS = 2**21


@dataclass(frozen=True, slots=True)
class Cut:
    """How tensors are cut into chunks: at most so many elements, several tensors, slices of one."""

    elements: int
    batched: bool
    sliced: bool


@dataclass(slots=True)
class Chunk:
    """Tensors or slices of tensors worked on together, and which tensor each belongs to."""

    tensors: Tensors = field(default_factory=Tensors)
    owners: list[int] = field(default_factory=list)
    elements: int = 0


def run_(bucket: Bucket, scales: Tensor | None = None) -> None:
    """Take one step on a bucket; ``scales`` are those of a clip that is not this bucket's alone."""
    bucket, scales = _run_large_(bucket, scales)
    if not bucket.tensors.params:
        return
    scales = _own_scales(bucket, scales)
    cut = _cut(bucket)
    whole = Cut(_MATRIX_CHUNK_ELEMENTS, batched=bucket.batched, sliced=False)
    matrices = bucket.recipe.rule in MATRIX_RULES
    for chunk in _chunks(bucket.tensors, whole if matrices else cut):
        keep = bucket.keep_flag
        before = [] if keep is None else [t.clone() for t in chunk.tensors.written()]
        own_scales = [] if scales is None else [scales[owner] for owner in chunk.owners]
        if matrices:
            _update_matrices_(chunk.tensors, own_scales, recipe=bucket.recipe, cut=cut)
        else:
            _update_(chunk.tensors, own_scales, recipe=bucket.recipe)
        if keep is not None:
            _undo_unless_(keep, chunk.tensors.written(), before)


def _run_large_(bucket: Bucket, scales: Tensor | None) -> tuple[Bucket, Tensor | None]:
    """Take one step on the large tensors that go block by block, and return the others."""
    cut = _cut(bucket)
    if not _has_blocks(bucket, cut):
        return bucket, scales
    # All views are made before the first tensor's entries push what Python needs out of the cache.
    blocks: dict[int, list[Tensors]] = {}
    for i, row in enumerate(bucket.tensors.rows()):
        flat = row.flat() if _goes_by_blocks(row, bucket.recipe, cut) else None
        if flat is not None:
            blocks[i] = list(_split(flat, cut.elements))
    step = step_tensor(bucket.recipe, like=bucket.tensors.params[0])
    for i, own in blocks.items():
        divisor = None if scales is None else scales[i].reciprocal()
        _update_blocks_(own, divisor, recipe=replace(bucket.recipe, step=step))
    rest = [i for i in range(len(bucket.tensors.params)) if i not in blocks]
    others = replace(bucket, tensors=bucket.tensors.take(rest))
    return others, None if scales is None else scales[rest]


def _has_blocks(bucket: Bucket, cut: Cut) -> bool:
    """Whether any tensor may go by blocks: MARS-AdamW on a CPU, and a tensor large enough.

    Exact mode's gradients at the previous point are not ours to overwrite.
    """
    recipe, params = bucket.recipe, bucket.tensors.params
    return (
        cut.sliced
        and recipe.rule == "adamw"
        and recipe.previous == "stored"
        and not recipe.maximize
        and bucket.keep_flag is None
        and params[0].device.type == "cpu"
        and any(param.numel() > cut.elements // 4 for param in params)
    )


def _goes_by_blocks(row: Tensors, recipe: Recipe, cut: Cut) -> bool:
    """Whether `_update_blocks_` takes this tensor: a large one, all in float32."""
    return (
        row.params[0].numel() > cut.elements // 4
        and {t.dtype for t in (*row.grads, *row.last_grads, *row.exp_avgs)} == {torch.float32}
        and torch_step_applies(row, recipe)
    )


def _update_blocks_(blocks: list[Tensors], divisor: Tensor | None, *, recipe: Recipe) -> None:
    """Take one step on the blocks of one large tensor, as `_clipped` and `_update_` do on many.

    No memory is taken: c stands where the previous gradient stood until this gradient takes its
    place, so a step that is interrupted here has lost the previous gradient. c~ is c over
    ``divisor``, which is found here if the clip is this tensor's own.
    """

    def correct_(block: Tensors) -> Tensor:
        (grad,), (last_grad,) = block.grads, block.last_grads
        return last_grad.lerp_(grad, 1 + recipe.correction_weight)

    by_tensor = recipe.clip == "tensor"
    if by_tensor:
        # A product takes half the time of a norm.
        squares = torch.stack([torch.dot(c, c) for c in map(correct_, blocks)])
        divisor = squares.sum().sqrt_().clamp_(min=recipe.max_norm).div_(recipe.max_norm)
    for block in blocks:
        c = block.last_grads[0] if by_tensor else correct_(block)
        torch_step_(block, [c], recipe, divisor=divisor)
        remember_(block.last_grads, block.grads)


def matrices_at_once(elements: int) -> int:
    """Return how many matrices of so many elements are orthogonalised in one batch."""
    return max(1, _MATRIX_CHUNK_ELEMENTS // elements)


def momentum_(bucket: Bucket, scales: Tensor | None) -> None:
    """Do the first part of a matrix rule's step: turn every momentum into m_t."""
    scales = _own_scales(bucket, scales)
    for piece in _chunks(bucket.tensors, _cut(bucket)):
        own = [] if scales is None else [scales[owner] for owner in piece.owners]
        grads = _gradients(piece.tensors, recipe=bucket.recipe)
        _momentum_(piece.tensors, grads, own, recipe=bucket.recipe)


def finish_(bucket: Bucket) -> None:
    """Do the last part of a matrix rule's step, on tensors that have their directions."""
    for piece in _chunks(bucket.tensors, _cut(bucket)):
        _finish_(
            piece.tensors, _gradients(piece.tensors, recipe=bucket.recipe), recipe=bucket.recipe
        )


def _own_scales(bucket: Bucket, given: Tensor | None) -> Tensor | None:
    """Return the clip scales of a bucket's tensors: those given, or by a pass of its own."""
    if given is not None or bucket.recipe.clip != "tensor":
        return given
    return clip_scales(corrected_norms(bucket), max_norm=bucket.recipe.max_norm)


def _update_(tensors: Tensors, scales: list[Tensor], *, recipe: Recipe) -> None:
    """Take one step by an elementwise rule: momentum, direction, parameter, memory."""
    grads = _gradients(tensors, recipe=recipe)
    if recipe.rule == "adamw" and torch_step_applies(tensors, recipe):
        if recipe.previous == "folded":
            corrected = grads
            take_back_(tensors.exp_avgs, grads, gamma=recipe.gamma)
        else:
            corrected = _clipped(tensors, grads, scales, recipe=recipe)
        torch_step_(tensors, corrected, recipe)
        _keep_gradients_(tensors, grads, recipe=recipe)
        return
    squared = _momentum_(tensors, grads, scales, recipe=recipe)
    directions = RULES[recipe.rule](_readable(tensors, recipe=recipe), squared, recipe)
    _finish_(replace(tensors, directions=directions), grads, recipe=recipe)


def _update_matrices_(tensors: Tensors, scales: list[Tensor], *, recipe: Recipe, cut: Cut) -> None:
    """Take one step by a matrix rule, which alone needs its tensors whole."""
    for piece in _chunks(tensors, cut):
        grads = _gradients(piece.tensors, recipe=recipe)
        own_scales = [scales[owner] for owner in piece.owners] if scales else []
        _momentum_(piece.tensors, grads, own_scales, recipe=recipe)
    directions = RULES[recipe.rule](_readable(tensors, recipe=recipe), [], recipe)
    for piece in _chunks(replace(tensors, directions=directions), cut):
        _finish_(piece.tensors, _gradients(piece.tensors, recipe=recipe), recipe=recipe)


def _readable(tensors: Tensors, *, recipe: Recipe) -> Tensors:
    """Return tensors for a rule to read, safe from what follows under autograd."""
    if recipe.previous == "folded" and torch.is_grad_enabled():
        # Autograd keeps the m_t that the rule reads, and hand_over_ is about to overwrite m_t.
        return replace(tensors, exp_avgs=[m.clone() for m in tensors.exp_avgs])
    return tensors


def _finish_(tensors: Tensors, grads: list[Tensor], *, recipe: Recipe) -> None:
    """Write the parameters, and keep what the next step needs of this one's gradients."""
    _move_(tensors.params, tensors.directions, lr=recipe.lr, weight_decay=recipe.weight_decay)
    _keep_gradients_(tensors, grads, recipe=recipe)


def _keep_gradients_(tensors: Tensors, grads: list[Tensor], *, recipe: Recipe) -> None:
    if recipe.previous == "folded":
        hand_over_(tensors.exp_avgs, grads, next_gamma=recipe.next_gamma)
    elif recipe.previous == "stored":
        remember_(tensors.last_grads, grads)


def _momentum_(
    tensors: Tensors, grads: list[Tensor], scales: list[Tensor], *, recipe: Recipe
) -> list[Tensor]:
    """Turn ``exp_avgs`` into m_t and return what the second moment is built from."""
    if recipe.previous == "folded":
        accumulate_lean_(tensors.exp_avgs, grads, beta1=recipe.beta1, gamma=recipe.gamma)
        return grads
    corrected = _clipped(tensors, grads, scales, recipe=recipe)
    accumulate_(tensors.exp_avgs, corrected, beta1=recipe.beta1)
    wanted = recipe.rule == "adamw" and recipe.second_moment == "corrected"
    return corrected if wanted else grads


def _move_(
    params: list[Tensor], directions: list[Tensor], *, lr: float | Tensor, weight_decay: float
) -> None:
    """Write x <- x - lr * (direction + weight_decay * x), rounded once to x's dtype."""
    targets = [p.to(d.dtype) for p, d in zip(params, directions, strict=True)]
    if weight_decay:
        torch._foreach_mul_(targets, 1 - lr * weight_decay)
    torch._foreach_mul_(directions, -lr)
    torch._foreach_add_(targets, directions)
    if targets[0] is not params[0]:
        copy_(params, targets)


def _gradients(tensors: Tensors, *, recipe: Recipe) -> list[Tensor]:
    """Return the gradients to descend along, in the dtype of the moments; never written to."""
    dtype = tensors.exp_avgs[0].dtype
    grads = [g.to(dtype) for g in tensors.grads]
    return list(torch._foreach_neg(grads)) if recipe.maximize else grads


def _clipped(
    tensors: Tensors, grads: list[Tensor], scales: list[Tensor], *, recipe: Recipe
) -> list[Tensor]:
    """Return the corrected gradients c~."""
    corrected = _corrected(tensors, grads, recipe=recipe)
    if scales:
        torch._foreach_mul_(corrected, scales)
    return corrected


def _corrected(tensors: Tensors, grads: list[Tensor], *, recipe: Recipe) -> list[Tensor]:
    last_grads = [last.to(g.dtype) for last, g in zip(tensors.last_grads, grads, strict=True)]
    return corrected_gradients(grads, last_grads, weight=recipe.correction_weight)


def _undo_unless_(keep: Tensor, after: list[Tensor], before: list[Tensor]) -> None:
    for new, old in zip(after, before, strict=True):
        new.copy_(torch.where(keep.to(new.device), new, old))


def clip_scales_from(
    norms: Sequence[Tensor | None], buckets: Sequence[Bucket]
) -> list[Tensor | None]:
    """Return the clip scales of each bucket's tensors from the norms, None where there are none."""
    pairs = list(zip(norms, buckets, strict=True))
    total = total_norm([n for n, b in pairs if n is not None and b.recipe.clip == "global"])
    scales: list[Tensor | None] = []
    for own, bucket in pairs:
        if own is not None and bucket.recipe.clip == "global" and total is not None:
            own = total.to(own.device, own.dtype).expand_as(own)
        scales.append(own if own is None else clip_scales(own, max_norm=bucket.recipe.max_norm))
    return scales


def total_norm(everyone: list[Tensor]) -> Tensor | None:
    """Return the norm of all tensors from vectors of their norms, in the widest dtype."""
    if not everyone:
        return None
    device = everyone[0].device
    wide = torch.float64 if any(n.dtype == torch.float64 for n in everyone) else torch.float32
    total: Tensor = torch.linalg.vector_norm(torch.cat([n.to(device, wide) for n in everyone]))
    return total


def corrected_norms(bucket: Bucket) -> Tensor:
    """Return the norms of a bucket's corrected gradients, without keeping the gradients."""
    slices: list[Tensor] = []
    slices_per_tensor = [0] * len(bucket.tensors.params)
    for chunk in _chunks(bucket.tensors, _cut(bucket)):
        grads = _gradients(chunk.tensors, recipe=bucket.recipe)
        slices += torch._foreach_norm(_corrected(chunk.tensors, grads, recipe=bucket.recipe))
        for owner in chunk.owners:
            slices_per_tensor[owner] += 1
    return norms(slices, slices_per_tensor=slices_per_tensor)


def _cut(bucket: Bucket) -> Cut:
    device = bucket.tensors.params[0].device.type
    elements = _CHUNK_ELEMENTS.get(device, _CHUNK_ELEMENTS_ELSEWHERE)
    return Cut(elements, batched=bucket.batched, sliced=bucket.sliceable)


def _chunks(tensors: Tensors, cut: Cut) -> Iterator[Chunk]:
    """Cut tensors into chunks of bounded size, in order; a tensor may span several chunks."""
    chunk = Chunk()
    for owner, row in enumerate(tensors.rows()):
        for piece in _slices(row, cut.elements) if cut.sliced else [row]:
            size = piece.params[0].numel()
            if chunk.owners and (not cut.batched or chunk.elements + size > cut.elements):
                yield chunk
                chunk = Chunk()
            chunk.tensors.extend(piece)
            chunk.owners.append(owner)
            chunk.elements += size
    yield chunk


def _slices(row: Tensors, limit: int) -> Iterator[Tensors]:
    """Cut one large parameter's tensors into flat slices, if they share one dense layout."""
    param = row.params[0]
    if param.numel() <= limit:
        yield row
        return
    flat = row.flat()
    if flat is None:
        yield row
        return
    yield from _split(flat, limit)


def _split(flat: Tensors, limit: int) -> Iterator[Tensors]:
    """Cut one parameter's flat tensors into slices."""
    pieces = [[torch.split(t, limit) for t in tensors] for tensors in flat.lists()]
    for i in range(-(-flat.params[0].numel() // limit)):
        yield Tensors(*[[own[i] for own in each] for each in pieces])

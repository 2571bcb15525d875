"""Engines: how a step runs. Every engine does the same arithmetic on the same buckets."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from mars.optim.buckets import Bucket
from mars.optim.engines import divided, eager


def shared_norms(buckets: Sequence[Bucket]) -> list[Tensor | None]:
    """Return the norms here of corrected gradients whose clip is not one engine's to decide.

    Those are the norms of a global clip, which all engines share, and of tensors that this rank
    holds a part of. `run_` wants them back as the norms of whole tensors.
    """
    return [
        eager.corrected_norms(bucket)
        if bucket.recipe.clip == "global" or (bucket.recipe.clip and bucket.layout)
        else None
        for bucket in buckets
    ]


def run_(buckets: Sequence[Bucket], norms: Sequence[Tensor | None]) -> None:
    """Take one step on every bucket, each by its engine; ``norms`` are those of `shared_norms`."""
    scales = eager.clip_scales_from(norms, buckets)
    given = [_given(*pair) for pair in zip(buckets, scales, strict=True)]
    ready = [(bucket, own) for bucket, own in given if bucket.tensors.params]
    alone = [(bucket, own) for bucket, own in ready if bucket.holding is None]
    # Ranks that hold nothing of a matrix take part in its exchange.
    divided.run_([pair for pair in zip(buckets, scales, strict=True) if pair[0].holding])
    multi_tensor = [(bucket, own) for bucket, own in alone if bucket.engine == "triton"]
    if multi_tensor:
        from mars.optim.engines import triton_engine

        triton_engine.run_(*(list(each) for each in zip(*multi_tensor, strict=True)))
    for bucket, own in alone:
        if bucket.engine == "compiled":
            # Imported where it is used: the compiler takes as long to import as torch itself.
            from mars.optim.engines import compiled

            compiled.run_(bucket, own)
        elif bucket.engine == "eager":
            eager.run_(bucket, own)


def _given(bucket: Bucket, scales: Tensor | None) -> tuple[Bucket, Tensor | None]:
    """Return a bucket for an engine: only tensors with entries, only clips of its own to take."""
    bucket, scales = bucket.without_empty(scales)
    if scales is not None:
        # To an engine, "global" is a clip whose scales come from outside.
        bucket = replace(bucket, recipe=replace(bucket.recipe, clip="global"))
    return bucket, scales

"""Engines: how a step runs. Every engine does the same arithmetic on the same buckets."""

from mars.optim.buckets import Bucket
from mars.optim.engines import eager


def run_(buckets: list[Bucket]) -> None:
    """Take one step on every bucket, each by its engine."""
    # A global norm is one over all engines.
    shared = [bucket for bucket in buckets if bucket.recipe.clip == "global"]
    scales = dict(zip(map(id, shared), eager.clip(shared), strict=True))
    multi_tensor = [bucket for bucket in buckets if bucket.engine == "triton"]
    if multi_tensor:
        from mars.optim.engines import triton_engine

        triton_engine.run_(multi_tensor, [scales.get(id(bucket)) for bucket in multi_tensor])
    for bucket in buckets:
        if bucket.engine == "compiled":
            # Imported where it is used: the compiler takes as long to import as torch itself.
            from mars.optim.engines import compiled

            compiled.run_(bucket, scales.get(id(bucket)))
        elif bucket.engine == "eager":
            eager.run_(bucket, scales.get(id(bucket)))

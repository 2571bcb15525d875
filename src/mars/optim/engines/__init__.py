"""Engines: how a step runs. Every engine does the same arithmetic on the same buckets."""

from mars.optim.buckets import Bucket
from mars.optim.engines import eager


def run_(buckets: list[Bucket]) -> None:
    """Take one step on every bucket, each by its engine."""
    # A global norm is one over all engines.
    shared = [bucket for bucket in buckets if bucket.recipe.clip == "global"]
    scales = dict(zip(map(id, shared), eager.clip(shared), strict=True))
    for bucket in buckets:
        if bucket.engine == "compiled":
            # Imported where it is used: the compiler takes as long to import as torch itself.
            from mars.optim.engines import compiled

            compiled.run_(bucket, scales.get(id(bucket)))
        else:
            eager.run_(bucket, scales.get(id(bucket)))

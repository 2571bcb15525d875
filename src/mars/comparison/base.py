"""What the runs of a comparison start from: the presets of one stem, or a run of someone's own."""

from dataclasses import dataclass, replace

from mars.config import presets
from mars.config.check import OPTIONS
from mars.config.schema import OptimizerName, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A run for every optimizer: a preset of the stem ``name`` unless there is a ``run``.

    A run of someone's own is taken as it is for its own optimizer. Any other gets the constants
    that all presets share, and no learning rate: nobody has said one.
    """

    name: str
    run: Run | None = None

    def member(self, optimizer: OptimizerName) -> Run:
        """Return the run with an optimizer."""
        if self.run is None:
            return presets.sibling(self.name, optimizer=optimizer)
        own = self.run.optimizer
        if optimizer == own.name:
            return self.run
        # Vectors are trained by the same AdamW under every rule that leaves them to one.
        beside = own.lr_1d if "lr_1d" in OPTIONS[optimizer] else None
        section = replace(presets.constants(optimizer), fused=own.fused, lr_1d=beside)
        return replace(self.run, optimizer=section)

    def rate(self, optimizer: OptimizerName) -> float | None:
        """Return the learning rate of an optimizer, or None where the base has none."""
        if self.run is None or self.run.optimizer.name == optimizer:
            return self.member(optimizer).optimizer.lr
        return None

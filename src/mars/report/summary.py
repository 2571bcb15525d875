"""What is known of one arm: figures, and what they allow to be said against the baseline."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from mars.report.results import Arm
from mars.report.statistics import Estimate, Paired
from mars.report.wording import called

Call = Literal[
    "baseline",
    "lower",  # a lower loss than the baseline's, beyond chance
    "higher",
    "undecided",
    "two seeds",  # too few for a claim
    "one seed",
    "diverged",  # on at least one seed at its best rate, or at every rate
    "unfinished",  # no finished run at all
    "not compared",  # no baseline, a baseline that diverged or is unfinished, no common seed
]


class AtLr(NamedTuple):
    """An arm's final loss at one rate; None where a seed diverged or none has finished."""

    lr: float
    loss: Estimate | None
    diverged: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArmSummary:
    """What is known of an arm, at its best learning rate unless it says otherwise."""

    arm: Arm
    best_lr: float | None
    """None where no run has finished with a loss."""
    is_at_edge: bool
    """Whether a rate beyond the grid might be better still."""
    loss: Estimate | None
    """Final validation loss over the seeds; None where one of them diverged."""
    losses: Mapping[int, float]
    """Final validation loss by seed, of finished runs: infinite where the run diverged."""
    paired: Paired | None
    adjusted_p: float | None
    """The p-value after Holm, over all arms with the three seeds that a claim needs."""
    call: Call
    tokens_to_baseline: Estimate | None
    """Tokens (or samples) until the baseline's final loss of the same seed, as a fraction of the
    baseline's own; None unless every seed reached it."""
    seconds_to_baseline: Estimate | None
    """The same in seconds."""
    reached: tuple[int, int] | None
    """Seeds that reached the baseline's final loss, and seeds that were compared."""
    step_seconds: Estimate | None
    optimizer_bytes: float | None
    peak_memory_bytes: float | None
    diverged: int
    """Runs that diverged at the best rate; of all runs where there is no best rate."""
    sensitivity: tuple[AtLr, ...]

    @property
    def label(self) -> str:
        """The arm's label."""
        return self.arm.label

    @property
    def name(self) -> str:
        """The arm as a sentence has it: ``mars-adamw (gamma 0.05)``."""
        return called(self.arm.label)

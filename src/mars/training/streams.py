"""The random numbers of a run, dropout's above all: a stream of its own for each process.

A checkpoint has every process's stream. For as many processes as saved it they go on where they
were; for any other number they begin anew, from the seed, the step and the process's rank.
"""

import numpy as np
import torch

from mars import checkpoint
from mars.training.world import World


def seed_streams_(seed: int, *, step: int, world: World) -> None:
    """Begin the stream of this process at a step."""
    is_start_alone = world.size == 1 and step == 0
    torch.manual_seed(seed if is_start_alone else _mixed(seed, step, world.rank))


def restore_streams_(loaded: checkpoint.Loaded, *, seed: int, world: World) -> None:
    """Go on with the stream of a checkpoint, or begin anew where it has none for this process."""
    saved = loaded.training if world.size == 1 else loaded.own or {}
    if "random" in saved:
        checkpoint.restore_random_state_(saved["random"])
    else:
        seed_streams_(seed, step=loaded.step, world=world)


def _mixed(seed: int, step: int, rank: int) -> int:
    # Sums would let neighbouring seeds, steps and ranks meet.
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0])

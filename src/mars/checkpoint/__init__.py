"""What a resume needs: written atomically, verified when read, rotated.

A checkpoint is a folder of two torch files and a manifest with their digests; ranks that hold
parts of tensors add a safetensors file each, and any number of ranks can read them. Loading
executes nothing from a file. What goes into a checkpoint, and when, is for training to say.
"""

from mars.checkpoint.errors import CheckpointError, RankLostError, SaveError
from mars.checkpoint.folder import Found, find, newest_step
from mars.checkpoint.leaves import Place
from mars.checkpoint.random_state import capture_random_state, restore_random_state_
from mars.checkpoint.reading import Loaded, load, load_newest
from mars.checkpoint.writing import save

__all__ = [
    "CheckpointError",
    "Found",
    "Loaded",
    "Place",
    "RankLostError",
    "SaveError",
    "capture_random_state",
    "find",
    "load",
    "load_newest",
    "newest_step",
    "restore_random_state_",
    "save",
]

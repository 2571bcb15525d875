"""What the parent of a comparison and its workers say to each other: one JSON object a line."""

import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

Kind = Literal[
    "ready",  # the worker is there and can take a job
    "started",  # the trial is built, the corpus is open
    "message",  # a line for people
    "train",
    "validation",
    "finished",
    "stopped",  # by a signal, with everything saved
    "refused",  # before training, in one line
    "failed",  # on the way, in one line
    "died",  # said of a worker, by who reads its output
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A trial to train, from its beginning or from its newest checkpoint."""

    path: str
    config: str
    """The run's config as TOML."""
    keep_checkpoints: bool

    def as_json(self) -> str:
        """Return the job as one line, without its end."""
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> "Job":
        """Return the job a line holds."""
        return cls(**json.loads(line))


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened in a worker; what has no meaning for its kind has its default."""

    kind: Kind
    step: int = 0
    loss: float | None = None
    """None where it is not finite."""
    seconds: float = 0.0
    """Time the trial has taken so far."""
    is_diverged: bool = False
    reason: str = ""
    """Why it ended so; of "message", the line."""
    device: str = ""
    """Of "ready": the kind of device it trains on."""
    room: int = 0
    """Of "ready": how many workers can train at a time without sharing a core or a GPU."""

    def as_json(self) -> str:
        """Return the event as one line, without its end; a loss that is not finite as null."""
        fields = asdict(self)
        if self.loss is not None and not math.isfinite(self.loss):
            fields["loss"] = None
        return json.dumps(fields, allow_nan=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> "Event":
        """Return the event a line holds."""
        return cls(**json.loads(line))


Emit = Callable[[Event], None]


def private_output() -> Emit:
    """Return what writes events to the output, which from now on nothing else can write to."""
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def emit(event: Event) -> None:
        try:
            channel.write(event.as_json().encode() + b"\n")
            channel.flush()
        except OSError:  # nobody reads any more
            os._exit(1)

    return emit

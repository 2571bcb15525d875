"""What a run is about: its data, task and model, whether they are text or images."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from mars.models.classifier import Classifier
from mars.models.gpt2 import GPT2
from mars.training.task import Task

Tell = Callable[[str], None]
Model = GPT2 | Classifier

Make = Callable[[torch.Generator | None], Model]
"""Makes the model of a problem with initial weights from a generator."""


class Dataset(Protocol):
    """What a resumed run knows its data by."""

    @property
    def path(self) -> Path:
        """The prepared folder."""
        ...

    @property
    def digest(self) -> str:
        """What identifies its content."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A config's problem, before any process trains on it."""

    data: Dataset
    task: Task
    make: Make
    # What the manifest of a run says of it: tokenizer and data.
    about: Mapping[str, Any]
    # Contents by name, of a model that reads text.
    tokenizer_files: Mapping[str, bytes]
    # Operations of a step for one of what the task counts, where that is known.
    flops_per_count: int | None = None

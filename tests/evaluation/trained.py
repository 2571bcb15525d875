"""Models to evaluate: tiny ones with known weights, and a small run on GPT-2's tokens."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from mars.config.schema import Model
from mars.data.tokenizers import ByteTokenizer
from mars.evaluation.subject import Subject
from mars.models.gpt2 import GPT2
from training.runs import run

DATA = Path(os.environ.get("MARS_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
TASKS = ("hellaswag", "piqa", "arc_easy", "sciq")
TINY = Model(layers=2, heads=2, width=16, context_length=24, vocab_size=257)

_CONFIG = """
name = "english"
description = "A small model of English."
seed = 1
[data]
path = "{corpus}"
[model]
layers = 2
heads = 2
width = 32
context_length = 96
[optimizer]
lr = 0.02
fused = false
[training]
steps = 24
batch_size = 4
validate_every = 12
validation_sequences = 16
[checkpoint]
every = 12
"""


def need_data() -> None:
    """Skip a test where the data is not."""
    if not DATA.exists():
        pytest.skip("needs the shared data")


def byte_model(config: Model = TINY, *, seed: int = 0) -> GPT2:
    """Return a model whose weights are large enough for its answers to differ."""
    generator = torch.Generator().manual_seed(seed)
    model = GPT2(config, generator=generator)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(torch.randn(param.shape, generator=generator), alpha=0.3)
    return model.train(False)


def byte_subject(config: Model = TINY, *, seed: int = 0) -> Subject:
    """Return a model of bytes, as if from a folder."""
    model = byte_model(config, seed=seed)
    return Subject(source="tiny", kind="folder", model=model, tokenizer=ByteTokenizer())


def english_run(folder: Path) -> Path:
    """Train a small model on a part of WikiText-2 and return its run directory."""
    from mars.data.prepare import prepare_text

    for name, source, size in (("train", "train", 400_000), ("valid", "valid", 40_000)):
        text = (DATA / "wikitext-2" / f"{source}.txt").read_text()[:size]
        (folder / f"{name}.txt").write_text(text)
    prepare_text(
        [folder / "train.txt"],
        folder / "corpus",
        tokenizer="gpt2",
        validation=[folder / "valid.txt"],
        bpe=DATA / "gpt2-bpe" / "gpt2.tiktoken",
        tell=lambda _: None,
    )
    (folder / "english.toml").write_text(_CONFIG.format(corpus=folder / "corpus"))
    run(folder / "english.toml", folder / "run")
    return folder / "run"


@contextmanager
def no_network() -> Iterator[list[object]]:
    """Let no socket reach out; give what was tried."""
    tried: list[object] = []

    def refuse(*arguments: object, **_: object) -> None:
        tried.append(arguments)
        raise OSError("the network is off")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        yield tried

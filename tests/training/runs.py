"""Small runs for tests: a corpus, a config, and what a run left behind."""

import io
import json
from pathlib import Path

import torch
from rich.console import Console

from mars import checkpoint
from mars.commands.options import TrainOptions
from mars.commands.train import train
from mars.data.prepare import prepare_text

CONFIG = """
name = "tiny"
seed = 3
[data]
path = "{data}"
workers = {workers}
[model]
layers = 1
heads = 2
width = 16
context_length = 16
vocab_size = 257
dropout = 0.1
[optimizer]
name = "{optimizer}"
lr = 0.01
fused = false
[schedule]
warmup_steps = 4
[training]
steps = {steps}
batch_size = 4
micro_batch_size = 2
validate_every = {validate_every}
validation_sequences = 8
[checkpoint]
every = {every}
keep = 2
[metrics]
log_every = 3
"""


def make_corpus(folder: Path) -> Path:
    """Prepare a corpus of a few kilobytes and return its path."""
    text = folder / "text"
    text.mkdir(parents=True)
    for i in range(20):
        words = " ".join(str((i * 7 + j * j) % 97) for j in range(120))
        (text / f"{i:02}.txt").write_text(words)
    out = folder / "corpus"
    prepare_text([text], out, tokenizer="bytes", validation_fraction=0.2, tell=lambda _: None)
    return out


def write_config(folder: Path, corpus: Path, **values) -> Path:
    """Write a config file with some values and return its path."""
    defaults = {
        "optimizer": "mars-adamw",
        "workers": 1,
        "steps": 12,
        "every": 4,
        "validate_every": 5,
    }
    path = folder / "tiny.toml"
    path.write_text(CONFIG.format(data=corpus, **{**defaults, **values}))
    return path


def run(config: Path, out: Path, *settings: str, resume: bool = False) -> str:
    """Train in this process and return what was shown."""
    console = Console(file=io.StringIO(), width=100)
    train(TrainOptions(str(config), set=settings, out=out, resume=resume), console)
    return console.file.getvalue()


def weights(out: Path) -> dict[str, torch.Tensor]:
    """Return the parameters of the newest checkpoint."""
    return checkpoint.load_newest(out / "checkpoints").model


def records(out: Path) -> list[dict]:
    """Return the records without what a clock or the machine decided."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    measured = ("seconds", "tokens_per_second", "peak_memory_bytes")
    return [{k: v for k, v in line.items() if k not in measured} for line in lines]


def assert_same_run(left: Path, right: Path) -> None:
    """Assert that two runs have the same parameters, bit for bit, and the same records."""
    ours, theirs = weights(left), weights(right)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name
    assert records(left) == records(right)

"""Small runs on images for tests: patterns, a config, and what a run left behind."""

import json
from pathlib import Path

import numpy as np

from mars.data.images import Labelled, write_images
from training.runs import weights

CONFIG = """
name = "patterns"
seed = 3
[data]
path = "{data}"
[vision]
network = "{network}"
{vision}
crop_padding = 1
[optimizer]
name = "{optimizer}"
lr = 0.01
fused = false
[schedule]
kind = "multistep"
[training]
steps = {steps}
batch_size = 8
validate_every = {validate_every}
validation_sequences = 24
[checkpoint]
every = {every}
keep = 2
[metrics]
log_every = 3
"""
NETWORKS = {
    "resnet18": "channels = 4",
    "vit": "channels = 8\nblocks = 1\nattention_heads = 2",
}


def patterns(count: int, *, seed: int) -> Labelled:
    """Return images whose class is the quadrant that is bright, with noise."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 4, count).astype(np.uint8)
    images = generator.integers(0, 100, (count, 3, 8, 8), np.uint8)
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = 4 * (label // 2), 4 * (label % 2)
        image[:, row : row + 4, column : column + 4] += 150
    return Labelled(images, labels)


def make_images(folder: Path) -> Path:
    """Prepare 20 training images, which eight do not divide, and 30 to validate on."""
    out = folder / "images"
    write_images(
        out,
        name="patterns",
        train=patterns(20, seed=0),
        validation=patterns(30, seed=1),
        classes=("a", "b", "c", "d"),
        source={"kind": "test"},
    )
    return out


def write_config(folder: Path, images: Path, *, network: str = "resnet18", **values) -> Path:
    """Write a config file with some values and return its path."""
    defaults = {"optimizer": "mars-adamw", "steps": 12, "every": 4, "validate_every": 5}
    vision = NETWORKS[network]
    path = folder / f"{network}.toml"
    text = CONFIG.format(data=images, network=network, vision=vision, **{**defaults, **values})
    path.write_text(text)
    return path


def records(out: Path) -> list[dict]:
    """Return the records without what a clock or the machine decided."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    measured = ("seconds", "samples_per_second", "peak_memory_bytes")
    return [
        {k: v for k, v in line.items() if k not in measured and not k.startswith("seconds_to")}
        for line in lines
    ]


def assert_same_run(left: Path, right: Path) -> None:
    """Assert that two runs have the same weights and statistics, bit for bit, and records."""
    ours, theirs = weights(left), weights(right)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value.equal(theirs[name]), name
    assert records(left) == records(right)

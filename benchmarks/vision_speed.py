"""What training on images costs beyond the network: input, loop and memory format.

Three figures of processor time, each a median over rounds that take turns, so that a busy machine
disturbs all alike:

input       time to choose, gather, crop, flip and normalise a batch, over that of a whole step
loop        a step of the trainer, over one of a plain loop on a batch that is ready: the same
            network, loss and AdamW
last        forward and backward in the channels-last format, over those in the plain one

Run with `python benchmarks/vision_speed.py`; the images are random, since speed does not see them.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from mars.config.load import override
from mars.config.presets import preset
from mars.data.images import Labelled, write_images
from mars.models.resnet import ResNet18
from mars.training.build import Built, build


def random_images(folder: Path, count: int = 2048) -> Path:
    """Write random images as a prepared folder of CIFAR-10's shape."""
    chance = np.random.default_rng(0)
    images = chance.integers(0, 256, (count, 3, 32, 32), np.uint8)
    labelled = Labelled(images, chance.integers(0, 10, count).astype(np.uint8))
    classes = tuple(map(str, range(10)))
    write_images(
        folder, name="random", train=labelled, validation=labelled, classes=classes, source={}
    )
    return folder


def seconds_of(call: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def built_run(data: Path, *, width: int, batch_size: int, channels_last: bool | None) -> Built:
    """Return the parts of a run with AdamW."""
    settings = [
        f"data.path={data}",
        f"vision.channels={width}",
        f"training.batch_size={batch_size}",
    ]
    if channels_last is not None:
        settings.append(f"vision.channels_last={str(channels_last).lower()}")
    run = override(preset("cifar10-resnet18-adamw"), settings)
    return build(run, tell=lambda _: None)


def input_only(built: Built) -> Callable[[], object]:
    """Return what makes the next batch, and computes nothing on it."""
    task = built.task

    def make() -> object:
        return [task.loss(lambda images, _: images, micro) for micro in next(task.batches)]

    return make


def trainer_step(built: Built) -> Callable[[], object]:
    """Return what takes the next step as the trainer does."""
    built.model.train()
    return lambda: built.stepper(next(built.task.batches), measure=False)


def plain_step(*, width: int, batch_size: int, channels_last: bool) -> Callable[[], object]:
    """Return what takes a step as anyone would write it, on a batch that is ready."""
    format_ = torch.channels_last if channels_last else torch.contiguous_format
    model = ResNet18(classes=10, width=width).to(memory_format=format_).train()
    images = torch.randn(batch_size, 3, 32, 32).to(memory_format=format_)
    labels = torch.randint(0, 10, (batch_size,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step() -> object:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        return optimizer.step()

    return step


def main() -> None:
    """Measure and print; write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sizes = {"width": arguments.width, "batch_size": arguments.batch_size}
    with tempfile.TemporaryDirectory() as folder:
        built = built_run(random_images(Path(folder) / "images"), **sizes, channels_last=None)
        is_last = built.model.prefers_channels_last
        calls = {
            "input": input_only(built),
            "trainer": trainer_step(built),
            "plain": plain_step(**sizes, channels_last=is_last),
            "last": plain_step(**sizes, channels_last=True),
            "contiguous": plain_step(**sizes, channels_last=False),
        }
        for call in calls.values():
            call()
        rows = [
            {name: seconds_of(call) for name, call in calls.items()}
            for _ in range(arguments.rounds)
        ]
    ratios = {
        "input": ("input", "trainer"),
        "loop": ("trainer", "plain"),
        "last": ("last", "contiguous"),
    }
    found = {name: statistics.median(row[name] for row in rows) for name in calls}
    found |= {
        f"{name}_ratio": statistics.median(row[above] / row[below] for row in rows)
        for name, (above, below) in ratios.items()
    }
    for name, value in found.items():
        print(f"{name:12} {value:.3f}" if "ratio" in name else f"{name:12} {1000 * value:.1f} ms")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Classifying images: the task of a run with ``vision.network``, and what it is built from.

All images are where the model is, as bytes; a batch is their places and what happens to each, so
that nothing but a few numbers is sent.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mars.config.errors import RefusedError
from mars.config.schema import Data, Run
from mars.data.images import ImageSet
from mars.data.images_augment import crop_and_flip, flipped
from mars.data.images_order import ImageBatches, ImageOrder
from mars.data.images_prepare import prepare_digits
from mars.data.manifest import Split
from mars.models.classifier import Classifier
from mars.models.resnet import ResNet18
from mars.models.vit import ViT
from mars.training.problem import Problem, Tell
from mars.training.step import autocast
from mars.training.task import Batches, Forward, Goal, MicroBatch
from mars.training.world import World


class Pictures:
    """The images of a split on a device, and how a model wants to see them."""

    def __init__(
        self,
        data: ImageSet,
        split: Split,
        *,
        device: torch.device,
        memory_format: torch.memory_format,
    ) -> None:
        images, labels = data.tensors(split)
        self.images, self.labels = images.to(device), labels.long().to(device)
        self._memory_format = memory_format
        mean, std = (
            torch.tensor(each, device=device).view(1, -1, 1, 1)
            for each in (data.manifest.mean, data.manifest.std)
        )
        self._scale, self._shift = 1 / (255 * std), -mean / std

    def seen(self, images: Tensor) -> Tensor:
        """Return bytes as numbers of mean 0 and deviation 1 in every channel."""
        numbers = images.to(torch.float32, memory_format=self._memory_format)
        return numbers.mul_(self._scale).add_(self._shift)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageClassification:
    """Naming the class of an image, by a model that returns logits or their mean loss."""

    batches: Batches
    count_per_step: int
    train: Pictures
    validation: Pictures
    # Places of the images that this process validates on, a tensor for each time.
    validated: list[Tensor]
    padding: int
    is_flip_tested: bool
    device: torch.device
    autocast: Callable[[], AbstractContextManager[object]]
    goals: Mapping[str, Goal]
    # Sums over the processes that validate, each on its part.
    sums: Callable[..., list[float]]
    unit: Literal["tokens", "samples"] = "samples"

    def loss(self, model: Forward, batch: MicroBatch) -> Tensor:
        """Return the mean loss of a micro-batch: places of images, and draws for each."""
        places, draws = (part.to(self.device, non_blocking=True) for part in batch)
        cropped = crop_and_flip(self.train.images[places], draws, padding=self.padding)
        loss: Tensor = model(self.train.seen(cropped), self.train.labels[places])
        return loss

    def validate(self, model: Forward) -> dict[str, float]:
        """Return mean loss and accuracy; ``accuracy_flip`` is that of two views, if asked for."""
        totals = torch.zeros(3, dtype=torch.float64)
        count = 0
        for places in self.validated:
            images = self.validation.seen(self.validation.images[places])
            labels = self.validation.labels[places]
            with self.autocast():
                logits = model(images).float()
                mirrored = model(flipped(images)).float() if self.is_flip_tested else logits
            right = (logits.argmax(1) == labels).sum()
            right_flip = ((logits + mirrored).argmax(1) == labels).sum()
            lost = F.cross_entropy(logits, labels, reduction="sum")
            totals += torch.stack([lost, right, right_flip]).cpu()
            count += len(places)
        *sums, images_seen = self.sums(*totals.tolist(), count)
        loss, accuracy, accuracy_flip = (each / images_seen for each in sums)
        found = {"loss": loss, "accuracy": accuracy}
        return found | {"accuracy_flip": accuracy_flip} if self.is_flip_tested else found


def image_problem(config: Run, device: torch.device, world: World, *, tell: Tell) -> Problem:
    """Return the problem of a config about images."""
    data = world.in_turn(lambda: open_images(config.data, tell=tell))
    make = partial(_made, config, data)
    with world.agreed():
        with torch.device("meta"):
            model = make(None)  # refuses an impossible shape before anything else is done
        format_ = _memory_format(config, model)
        task = _classification(config, data, device, world, memory_format=format_)
    return Problem(
        data=data,
        task=task,
        # torch's annotations of `Module.to` leave this argument out.
        make=lambda generator: make(generator).to(memory_format=format_),  # type: ignore[call-overload]
        about={
            "tokenizer": None,
            "data": {"digest": data.digest, "train_images": len(data.train.labels)},
        },
        tokenizer_files={},
    )


def open_images(data: Data, *, tell: Tell) -> ImageSet:
    """Return the images of a config, preparing the embedded ones if they are not there yet."""
    path = Path(data.path)
    if path.exists():
        return ImageSet.open(path)
    if data.prepare == "digits":
        return prepare_digits(path, tell=tell)
    raise RefusedError(
        f"data.path = {data.path!r} does not exist; make it with mars prepare, such as "
        f"mars prepare cifar10 --input FOLDER --out {data.path}"
    )


def _made(config: Run, data: ImageSet, generator: torch.Generator | None) -> Classifier:
    vision, manifest = config.vision, data.manifest
    channels, height, width = manifest.shape
    if vision.network == "resnet18":
        return ResNet18(
            classes=len(manifest.classes),
            image_channels=channels,
            width=vision.channels or 64,
            generator=generator,
        )
    if height != width:
        raise RefusedError(f"vision.network = 'vit' needs square images, not {height} by {width}")
    return ViT(
        classes=len(manifest.classes),
        image_channels=channels,
        image_size=height,
        patch_size=vision.patch_size or 4,
        width=vision.channels or 192,
        layers=vision.blocks or 6,
        heads=vision.attention_heads or 3,
        generator=generator,
    )


def _memory_format(config: Run, model: Classifier) -> torch.memory_format:
    chosen = config.vision.channels_last
    is_last = model.prefers_channels_last if chosen is None else chosen
    return torch.channels_last if is_last else torch.contiguous_format


def _classification(
    config: Run,
    data: ImageSet,
    device: torch.device,
    world: World,
    *,
    memory_format: torch.memory_format,
) -> ImageClassification:
    training, vision = config.training, config.vision
    micro_batch_size = training.micro_batch_size or training.batch_size // world.size
    order = ImageOrder(
        len(data.train.labels),
        seed=config.seed,
        padding=vision.crop_padding,
        flip=vision.flip,
    )
    available = len(data.validation.labels)
    count = min(training.validation_sequences, available)
    own = (torch.arange(count) * available // count)[world.rank :: world.size].to(device)
    pictures = partial(Pictures, data, device=device, memory_format=memory_format)
    target = vision.target_accuracy
    return ImageClassification(
        batches=ImageBatches(
            order,
            batch_size=training.batch_size,
            micro_batch_size=micro_batch_size,
            rank=world.rank,
            world_size=world.size,
        ),
        count_per_step=training.batch_size,
        train=pictures("train"),
        validation=pictures("validation"),
        validated=list(torch.split(own, micro_batch_size)),
        padding=vision.crop_padding,
        is_flip_tested=vision.test_flip,
        device=device,
        autocast=partial(autocast, device, precision=training.precision),
        goals={f"seconds_to_{100 * target:g}": Goal("accuracy", target)},
        sums=world.sums,
    )

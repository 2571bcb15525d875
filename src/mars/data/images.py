"""A prepared folder of labelled images: bytes by memory map, and a manifest with their digests.

train-images.bin  train-labels.bin  validation-images.bin  validation-labels.bin  manifest.json
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mars.config.errors import RefusedError
from mars.data.manifest import MANIFEST, SPLITS, File, Split, sha256_of
from mars.data.target import check_target
from mars.data.writer import folder_that_becomes, write_file

_FORMAT, _VERSION = "mars-images", 1
_ANEW = "remove the folder and prepare the images anew"


class Labelled(NamedTuple):
    """Images (count, channels, height, width) and their classes, both as bytes."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class SplitImages:
    """The files of a split."""

    count: int
    images: File
    labels: File


@dataclass(frozen=True, slots=True)
class ImageManifest:
    """Everything known about prepared images."""

    name: str
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    # Of the training images' channels, for pixels from 0 to 1.
    mean: tuple[float, ...]
    std: tuple[float, ...]
    splits: Mapping[Split, SplitImages]
    source: Mapping[str, Any]  # JSON: what they were made from

    @property
    def digest(self) -> str:
        """The SHA-256 of the names and digests of all files, as ``sha256sum`` prints them."""
        lines = "".join(f"{file.sha256}  {file.name}\n" for file in self.files())
        return hashlib.sha256(lines.encode()).hexdigest()

    def files(self) -> Iterator[File]:
        """Yield every file but the manifest."""
        for split in SPLITS:
            yield self.splits[split].images
            yield self.splits[split].labels

    def to_json(self) -> str:
        """Return the text of ``manifest.json``."""
        head = {"format": _FORMAT, "version": _VERSION, "digest": self.digest}
        return json.dumps(head | dataclasses.asdict(self), indent=2) + "\n"


class ImageSet:
    """Prepared images, opened for reading."""

    def __init__(self, path: Path, manifest: ImageManifest) -> None:
        self.path = path
        self.manifest = manifest
        self.train = self._map("train")
        self.validation = self._map("validation")

    @classmethod
    def open(cls, path: str | Path) -> "ImageSet":
        """Return the images in a folder, every file of which is there and has its size."""
        folder = Path(path)
        manifest = _read_manifest(folder)
        for split in SPLITS:
            files = manifest.splits[split]
            _check_size(folder / files.images.name, files.count * prod(manifest.shape))
            _check_size(folder / files.labels.name, files.count)
        return cls(folder, manifest)

    @property
    def digest(self) -> str:
        """What identifies the content: equal for equal files."""
        return self.manifest.digest

    def tensors(self, split: Split) -> tuple[Tensor, Tensor]:
        """Return images and labels as tensors of bytes that lie in the mapped files."""
        files, shape = self.manifest.splits[split], self.manifest.shape
        images, labels = (
            torch.from_file(str(self.path / name), size=size, dtype=torch.uint8)
            for name, size in (
                (files.images.name, files.count * prod(shape)),
                (files.labels.name, files.count),
            )
        )
        return images.view(-1, *shape), labels

    def verify(self) -> None:
        """Raise `RefusedError` unless every file has the digest it was written with."""
        for file in self.manifest.files():
            if sha256_of(self.path / file.name) != file.sha256:
                path = self.path / file.name
                raise RefusedError(f"{path} is damaged: its digest changed; {_ANEW}")

    def _map(self, split: Split) -> Labelled:
        files, shape = self.manifest.splits[split], self.manifest.shape
        images = np.memmap(self.path / files.images.name, np.uint8, mode="r")
        labels = np.memmap(self.path / files.labels.name, np.uint8, mode="r")
        return Labelled(images.reshape(-1, *shape), labels)


def existing_images(out: Path, *, source: Mapping[str, Any]) -> ImageSet | None:
    """Return the images at ``out`` if they have the same source, None if nothing is there.

    Anything else there raises `RefusedError`.
    """
    if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
        return None
    way_out = "remove it or choose another folder"
    try:
        found = _read_manifest(out).source
    except RefusedError:
        raise RefusedError(f"{out} exists and holds no prepared images; {way_out}") from None
    if found != source:
        raise RefusedError(f"{out} holds images from another source; {way_out}")
    return ImageSet.open(out)


def write_images(
    out: Path,
    *,
    name: str,
    train: Labelled,
    validation: Labelled,
    classes: tuple[str, ...],
    source: Mapping[str, Any],
) -> ImageSet:
    """Write images to a folder that appears as a whole, and return them as they were written."""
    existing = existing_images(out, source=source)
    if existing is not None:
        return existing
    needed = sum(each.images.nbytes + each.labels.nbytes for each in (train, validation))
    check_target(out, needed_bytes=needed)
    mean, std = _statistics(train.images)
    with folder_that_becomes(out) as folder:
        manifest = ImageManifest(
            name=name,
            shape=train.images.shape[1:],
            classes=classes,
            mean=mean,
            std=std,
            splits={
                "train": _written(folder, "train", train),
                "validation": _written(folder, "validation", validation),
            },
            source=source,
        )
        write_file(folder / MANIFEST, manifest.to_json().encode())
    return ImageSet.open(out)


def _written(folder: Path, split: Split, content: Labelled) -> SplitImages:
    names = (f"{split}-images.bin", f"{split}-labels.bin")
    images, labels = (
        File(name, write_file(folder / name, np.ascontiguousarray(part).tobytes()))
        for name, part in zip(names, content, strict=True)
    )
    return SplitImages(len(content.labels), images, labels)


def _statistics(images: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel, from exact counts of its values."""
    counts = np.stack(
        [np.bincount(images[:, c].ravel(), minlength=256) for c in range(images.shape[1])]
    )
    parts = counts / counts.sum(1, keepdims=True)
    values = np.arange(256) / 255
    mean = parts @ values
    std = np.sqrt(parts @ values**2 - mean**2)
    # A channel without variation is left as it is rather than divided by zero.
    std = np.where(std > 0, std, 1.0)
    return tuple(map(float, mean)), tuple(map(float, std))


def _read_manifest(folder: Path) -> ImageManifest:
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RefusedError(
            f"{folder} holds no prepared images; make them with `mars prepare cifar10`"
        ) from None
    except (OSError, ValueError) as error:
        raise RefusedError(f"{path} cannot be read ({error}); {_ANEW}") from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise RefusedError(f"{path} is not that of prepared images; name another folder")
    if content.get("version") != _VERSION:
        raise RefusedError(
            f"{path} has version {content.get('version')!r} of the format, this release reads "
            f"{_VERSION}; {_ANEW}"
        )
    try:
        return _parsed(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise RefusedError(f"{path} has been edited ({reason}); {_ANEW}") from None


def _parsed(content: Mapping[str, Any]) -> ImageManifest:
    channels, height, width = map(int, content["shape"])
    splits: dict[Split, SplitImages] = {
        split: SplitImages(
            int(content["splits"][split]["count"]),
            File(**content["splits"][split]["images"]),
            File(**content["splits"][split]["labels"]),
        )
        for split in SPLITS
    }
    manifest = ImageManifest(
        name=str(content["name"]),
        shape=(channels, height, width),
        classes=tuple(map(str, content["classes"])),
        mean=tuple(map(float, content["mean"])),
        std=tuple(map(float, content["std"])),
        splits=splits,
        source=content["source"],
    )
    is_plain = all(Path(file.name).name == file.name for file in manifest.files())
    is_consistent = len(manifest.mean) == len(manifest.std) == channels
    has_images = all(split.count > 0 for split in splits.values())
    if not (is_plain and is_consistent and has_images and content["digest"] == manifest.digest):
        raise ValueError("contradictory counts, names or digest")
    return manifest


def _check_size(path: Path, size: int) -> None:
    found = path.stat().st_size if path.is_file() else None
    if found != size:
        has = "is missing" if found is None else f"has {found} bytes, its manifest says {size}"
        raise RefusedError(f"{path} {has}; {_ANEW}")

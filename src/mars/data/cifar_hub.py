"""CIFAR through Hugging Face `datasets`: from the hub, or from a local copy of its files."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mars.config.errors import RefusedError
from mars.data.cifar import SHAPE, Found, Published
from mars.data.images import Labelled

_REPOSITORY = {"cifar10": "uoft-cs/cifar10", "cifar100": "uoft-cs/cifar100"}
# Columns of images and labels on the hub.
_COLUMNS = {"cifar10": ("img", "label"), "cifar100": ("img", "fine_label")}


def read_hub(published: Published, *, folder: Path | None = None) -> Found:
    """Return the data set of the hub, or of a folder with the hub's parquet files.

    The hub has its own digests, which `datasets` checks; the number of images is checked here.
    """
    name = published.name
    parts = _load(published, folder)
    image, label = _COLUMNS[name]
    for split, part in parts.items():
        if not {image, label} <= set(part.column_names):
            raise RefusedError(
                f"{split} of {folder or _REPOSITORY[name]} has the columns "
                f"{', '.join(part.column_names)}, {name} has {image} and {label}"
            )
    classes = getattr(parts["train"].features[label], "names", None)
    if classes is None or len(classes) != published.classes:
        classes = [str(number) for number in range(published.classes)]
    return Found(
        train=_labelled(parts["train"], image, label),
        validation=_labelled(parts["test"], image, label),
        classes=tuple(classes),
        digests={},
    )


def parquet_files(folder: Path) -> dict[str, list[str]]:
    """Return the parquet files of a folder by split, if it has both."""
    found = {
        split: [str(path) for path in sorted(folder.rglob(f"{split}*.parquet"))]
        for split in ("train", "test")
    }
    return found if all(found.values()) else {}


# Any here and below: the types of an optional package.
def _load(published: Published, folder: Path | None) -> dict[str, Any]:
    try:
        from datasets import load_dataset  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise RefusedError(
            f"{published.name} without --input comes from the Hugging Face hub, which needs "
            "datasets: pip install 'mars-optimizer[data]', or name downloaded files with --input"
        ) from error
    where = str(folder) if folder else _REPOSITORY[published.name]
    try:
        if folder is None:
            loaded = load_dataset(where)
        else:
            loaded = load_dataset("parquet", data_files=parquet_files(folder))
        return {split: loaded[split] for split in ("train", "test")}
    # datasets and its reading of files, disks and networks raise errors of many families.
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise RefusedError(
            f"{where} cannot be loaded ({type(error).__name__}: {reason}); download the data set "
            "elsewhere and name its files with --input"
        ) from error


def _labelled(part: Any, image: str, label: str) -> Labelled:
    images = np.stack([_pixels(each) for each in part[image]])
    return Labelled(images, np.array(part[label], np.uint8))


def _pixels(image: Any) -> NDArray[np.uint8]:
    pixels: NDArray[np.uint8] = np.asarray(image.convert("RGB"), np.uint8).transpose(2, 0, 1)
    if pixels.shape != SHAPE:
        raise RefusedError(f"an image has {pixels.shape}, CIFAR's have {SHAPE}")
    return pixels

"""Making folders of images: CIFAR from its files or the hub, and the embedded digits."""

from collections.abc import Callable
from pathlib import Path

from mars.data.cifar import CIFAR, CifarName, Found, read_cifar
from mars.data.cifar_hub import parquet_files, read_hub
from mars.data.digits import read_digits
from mars.data.images import ImageSet, existing_images, write_images

Tell = Callable[[str], None]


def prepare_cifar(
    name: CifarName, out: str | Path, *, source: Path | None = None, tell: Tell
) -> ImageSet:
    """Return CIFAR as a prepared folder at ``out``; the same again if it is there already.

    ``source`` is a folder of the published files, pickled or binary, one of the published archives,
    or a folder of the hub's parquet files. Without it they come from the hub. A part of the
    training files will do, and is told.
    """
    published = CIFAR[name]
    if source is None:
        found = read_hub(published)
        kind = "hub"
    elif source.is_dir() and parquet_files(source):
        found = read_hub(published, folder=source)
        kind = "parquet"
    else:
        found = read_cifar(source, published)
        kind = "files"
    if found.missing:
        tell(
            f"{len(found.train.labels):,} training images: a part of {name}, "
            f"{', '.join(found.missing)} are not there"
        )
    images = write_images(
        Path(out),
        name=name,
        train=found.train,
        validation=found.validation,
        classes=found.classes,
        source={"kind": kind, "md5": dict(found.digests), "missing": list(found.missing)},
    )
    tell(_held(out, found))
    return images


def prepare_digits(out: str | Path, *, tell: Tell) -> ImageSet:
    """Return scikit-learn's digits as a prepared folder at ``out``."""
    train, validation = read_digits()
    source = {"kind": "digits"}
    existing = existing_images(Path(out), source=source)
    if existing is not None:
        return existing
    tell(f"{len(train.labels):,} digits for training and {len(validation.labels):,} for validation")
    return write_images(
        Path(out),
        name="digits",
        train=train,
        validation=validation,
        classes=tuple(map(str, range(10))),
        source=source,
    )


def _held(out: str | Path, found: Found) -> str:
    return (
        f"{out} holds {len(found.train.labels):,} images for training and "
        f"{len(found.validation.labels):,} for validation"
    )

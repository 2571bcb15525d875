"""``mars prepare digits|cifar10|cifar100``: images, from their files to a folder."""

from collections.abc import Callable

from mars.commands.options import PrepareOptions
from mars.config.errors import RefusedError
from mars.data.images import ImageSet
from mars.data.images_prepare import prepare_cifar, prepare_digits

CIFAR = ("cifar10", "cifar100")
IMAGES = ("digits", *CIFAR)


def prepare_images(options: PrepareOptions, *, tell: Callable[[str], None]) -> None:
    """Make the folder and say what it holds."""
    name = options.corpus
    if name == "cifar10" or name == "cifar100":
        if len(options.input) > 1:
            raise RefusedError(f"mars prepare {name} takes one --input: a folder or an archive")
        source = options.input[0] if options.input else None
        images = prepare_cifar(name, options.out, source=source, tell=tell)
        preset = f"{name}-resnet18-mars-adamw"
    else:
        images = prepare_digits(options.out, tell=tell)
        preset = "digits"
    _show(images, preset=preset, tell=tell)


def _show(images: ImageSet, *, preset: str, tell: Callable[[str], None]) -> None:
    manifest = images.manifest
    channels, height, width = manifest.shape
    rows = {"images": f"{height} by {width}, {channels} channels, {len(manifest.classes)} classes"}
    for split, files in manifest.splits.items():
        rows[split] = f"{files.count:,} images"
    rows["digest"] = images.digest
    tell(str(images.path))
    for label, value in rows.items():
        tell(f"  {label:10}  {value}")
    tell(f"Next: mars train {preset} --set data.path={images.path}")

"""The embedded images: scikit-learn's handwritten digits, 8 by 8 pixels, without any download."""

import numpy as np

from mars.config.errors import RefusedError
from mars.data.images import Labelled

# The writers of the last images are not those of the first: they are for validation.
_TRAIN = 1500
# Pixels are from 0 to 16.
_SCALE = 15


def read_digits() -> tuple[Labelled, Labelled]:
    """Return training and validation images."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise RefusedError(
            "the digits come with scikit-learn, which is not installed: "
            "pip install 'mars-optimizer[vision]'"
        ) from error
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels * _SCALE).astype(np.uint8).reshape(-1, 1, 8, 8)
    classes = labels.astype(np.uint8)
    return (
        Labelled(images[:_TRAIN], classes[:_TRAIN]),
        Labelled(images[_TRAIN:], classes[_TRAIN:]),
    )

"""A prepared folder of images: what was written is read, and what changed since is named."""

import json
import sys

import numpy as np
import pytest

from mars.config.errors import RefusedError
from mars.data.images import ImageSet, Labelled, existing_images, write_images
from mars.data.images_prepare import prepare_digits


def labelled(count, seed=0, shape=(3, 4, 4)):
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, *shape), np.uint8)
    return Labelled(images, generator.integers(0, 5, count).astype(np.uint8))


def written(out, source=None):
    return write_images(
        out,
        name="some",
        train=labelled(10),
        validation=labelled(4, seed=1),
        classes=("a", "b", "c", "d", "e"),
        source=source or {"kind": "test"},
    )


def test_what_was_written_is_read(tmp_path):
    written(tmp_path / "out")
    found = ImageSet.open(tmp_path / "out")
    found.verify()
    for split, expected in ((found.train, labelled(10)), (found.validation, labelled(4, seed=1))):
        assert np.array_equal(split.images, expected.images)
        assert np.array_equal(split.labels, expected.labels)
    assert isinstance(found.train.images, np.memmap)
    assert found.manifest.classes == ("a", "b", "c", "d", "e")
    assert found.manifest.shape == (3, 4, 4)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "manifest.json",
        "train-images.bin",
        "train-labels.bin",
        "validation-images.bin",
        "validation-labels.bin",
    ]


def test_mean_and_deviation_are_those_of_the_training_images(tmp_path):
    manifest = written(tmp_path / "out").manifest
    pixels = labelled(10).images / 255
    assert manifest.mean == pytest.approx(pixels.mean((0, 2, 3)), rel=1e-12)
    assert manifest.std == pytest.approx(pixels.std((0, 2, 3)), rel=1e-9)


def test_a_channel_without_variation_is_not_divided_by_zero(tmp_path):
    flat = Labelled(np.full((3, 1, 2, 2), 7, np.uint8), np.zeros(3, np.uint8))
    made = write_images(
        tmp_path / "out", name="flat", train=flat, validation=flat, classes=("a",), source={}
    )
    assert made.manifest.std == (1.0,)


def test_the_same_images_are_taken_as_they_are_and_others_refused(tmp_path):
    first = written(tmp_path / "out")
    stamp = (tmp_path / "out" / "train-images.bin").stat().st_mtime_ns
    assert written(tmp_path / "out").digest == first.digest
    assert (tmp_path / "out" / "train-images.bin").stat().st_mtime_ns == stamp
    with pytest.raises(RefusedError, match="holds images from another source"):
        written(tmp_path / "out", source={"kind": "other"})
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "file").write_text("")
    with pytest.raises(RefusedError, match="exists and holds no prepared images"):
        written(tmp_path / "text")
    assert existing_images(tmp_path / "none", source={}) is None


@pytest.mark.parametrize("name", ["train-images.bin", "validation-labels.bin"])
def test_a_file_that_changed_is_named(name, tmp_path):
    written(tmp_path / "out")
    path = tmp_path / "out" / name
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(RefusedError, match=f"{name} is damaged"):
        ImageSet.open(tmp_path / "out").verify()
    path.write_bytes(content[:-1])
    with pytest.raises(
        RefusedError, match=rf"{name} has {len(content) - 1} bytes, .* {len(content)}"
    ):
        ImageSet.open(tmp_path / "out")
    path.unlink()
    with pytest.raises(RefusedError, match=f"{name} is missing"):
        ImageSet.open(tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "mars-corpus"}, "is not that of prepared images"),
        ({"version": 2}, "has version 2 of the format"),
        ({"digest": "0"}, r"has been edited \(ValueError: contradictory"),
        ({"mean": [0.5]}, "has been edited"),
        ({"shape": [3, 4]}, "has been edited"),
        ({"splits": {}}, r"has been edited \(KeyError"),
        ({"classes": None}, r"has been edited \(TypeError"),
    ],
)
def test_an_edited_manifest_is_refused(change, message, tmp_path):
    written(tmp_path / "out")
    path = tmp_path / "out" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RefusedError, match=message):
        ImageSet.open(tmp_path / "out")


def test_a_folder_without_images_is_refused(tmp_path):
    with pytest.raises(RefusedError, match="holds no prepared images; make them with"):
        ImageSet.open(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(RefusedError, match="cannot be read"):
        ImageSet.open(tmp_path)


def test_the_digits_are_scikit_learns(tmp_path):
    from sklearn.datasets import load_digits

    lines = []
    made = prepare_digits(tmp_path / "digits", tell=lines.append)
    data = load_digits()
    images = np.concatenate([made.train.images, made.validation.images])
    assert np.array_equal(images[:, 0], data.images * 15)
    labels = np.concatenate([made.train.labels, made.validation.labels])
    assert np.array_equal(labels, data.target)
    assert (len(made.train.labels), len(made.validation.labels)) == (1500, 297)
    assert prepare_digits(tmp_path / "digits", tell=lines.append).digest == made.digest
    assert len(lines) == 1


def test_digits_without_scikit_learn_name_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(RefusedError, match=r"pip install 'mars-optimizer\[vision\]'"):
        prepare_digits(tmp_path / "digits", tell=lambda _: None)
    assert not (tmp_path / "digits").exists()

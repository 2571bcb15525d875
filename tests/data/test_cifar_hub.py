"""CIFAR in the hub's form: parquet files with encoded images, read through `datasets`."""

import io
import sys

import numpy as np
import pytest
from PIL import Image

from mars.config.errors import RefusedError
from mars.data.cifar import CIFAR
from mars.data.cifar_hub import parquet_files, read_hub
from mars.data.images_prepare import prepare_cifar

pytest.importorskip("datasets", reason="the extra data is not installed")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    import datasets.config

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(file, "png")
    return {"bytes": file.getvalue(), "path": None}


def write_parquet(folder, *, counts, label="label", size=32):
    """Write images as the hub has them, and return their pixels and labels by split."""
    from datasets import ClassLabel, Dataset, Features
    from datasets import Image as ImageColumn

    (folder / "plain_text").mkdir(parents=True)
    written = {}
    features = Features({"img": ImageColumn(), label: ClassLabel(num_classes=10)})
    for seed, (split, count) in enumerate(counts.items()):
        chance = np.random.default_rng(seed)
        pixels = chance.integers(0, 256, (count, 3, size, size), np.uint8)
        labels = chance.integers(0, 10, count)
        rows = {"img": [png(each) for each in pixels], label: labels.tolist()}
        path = folder / "plain_text" / f"{split}-00000-of-00001.parquet"
        Dataset.from_dict(rows, features=features).to_parquet(path)
        written[split] = (pixels, labels)
    return written


def test_parquet_files_hold_the_pixels_and_labels_that_were_written(tmp_path):
    written = write_parquet(tmp_path / "hub", counts={"train": 7, "test": 3})
    made = prepare_cifar("cifar10", tmp_path / "out", source=tmp_path / "hub", tell=lambda _: None)
    for split, found in (("train", made.train), ("test", made.validation)):
        pixels, labels = written[split]
        assert np.array_equal(found.images, pixels)
        assert found.labels.tolist() == labels.tolist()
    assert made.manifest.source["kind"] == "parquet"
    assert len(made.manifest.classes) == 10


def test_a_folder_needs_both_splits(tmp_path):
    write_parquet(tmp_path / "hub", counts={"train": 2})
    assert parquet_files(tmp_path / "hub") == {}
    with pytest.raises(RefusedError, match="holds no training file of cifar10"):
        prepare_cifar("cifar10", tmp_path / "out", source=tmp_path / "hub", tell=lambda _: None)


def test_other_columns_are_refused_with_those_that_are_there(tmp_path):
    write_parquet(tmp_path / "hub", counts={"train": 2, "test": 2}, label="digit")
    with pytest.raises(RefusedError, match="has the columns img, digit, cifar10 has img and label"):
        read_hub(CIFAR["cifar10"], folder=tmp_path / "hub")


def test_images_of_another_size_are_refused(tmp_path):
    write_parquet(tmp_path / "hub", counts={"train": 2, "test": 2}, size=16)
    with pytest.raises(RefusedError, match=r"an image has \(3, 16, 16\), CIFAR's have"):
        read_hub(CIFAR["cifar10"], folder=tmp_path / "hub")


def test_without_a_network_one_line_says_what_to_do(tmp_path, monkeypatch):
    import datasets.config
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(RefusedError, match="uoft-cs/cifar100 cannot be loaded") as refusal:
        prepare_cifar("cifar100", tmp_path / "out", tell=lambda _: None)
    assert "name its files with --input" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "out").exists()


def test_without_datasets_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(RefusedError, match=r"pip install 'mars-optimizer\[data\]'"):
        prepare_cifar("cifar10", tmp_path / "out", tell=lambda _: None)

"""CIFAR from its published files: pixels and labels in order, damage named, parts told."""

import hashlib
import os
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mars.config.errors import RefusedError
from mars.data import images_prepare
from mars.data.cifar import CIFAR, read_cifar
from mars.data.images import ImageSet
from mars.data.images_prepare import prepare_cifar

REAL = Path(__file__).parents[3] / "shared" / "data" / "cifar-10-batches-py"
needs_cifar = pytest.mark.skipif(not REAL.exists(), reason="no CIFAR-10 beside the project")
NAMES = {"cifar10": [f"class{i}" for i in range(10)], "cifar100": [f"fine{i}" for i in range(100)]}


def images(count, seed):
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (count, 3072), np.uint8), generator.integers(0, 10, count)


def write_pickles(folder, name, *, train=None):
    """Write a small data set as pickles, and return its description with their digests."""
    files = CIFAR[name].pickled
    folder.mkdir(parents=True, exist_ok=True)
    for seed, file in enumerate([*(train or files.train), files.test]):
        pixels, labels = images(6, seed)
        content = {b"data": pixels, files.labels.encode(): labels.tolist()}
        (folder / file).write_bytes(pickle.dumps(content, 3))
    (folder / files.classes).write_bytes(pickle.dumps({files.names: NAMES[name]}, 2))
    return described(folder, name)


def write_binary(folder, name):
    files = CIFAR[name].binary
    folder.mkdir(parents=True, exist_ok=True)
    for seed, file in enumerate([*files.train, files.test]):
        pixels, labels = images(6, seed)
        coarse = np.full((6, files.label_bytes - 1), 3, np.uint8)
        records = np.concatenate([coarse, labels[:, None].astype(np.uint8), pixels], axis=1)
        (folder / file).write_bytes(records.tobytes())
    (folder / files.classes).write_text("\n".join(NAMES[name]) + "\n")
    return replace(CIFAR[name], digests={})


def described(folder, name):
    digests = {
        path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())
    }
    return replace(CIFAR[name], digests=digests)


@pytest.mark.parametrize("write", [write_pickles, write_binary])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_both_forms_hold_pixels_labels_and_names_in_order(name, write, tmp_path):
    published = write(tmp_path, name)
    found = read_cifar(tmp_path, published)
    count = len(published.pickled.train)
    expected = [images(6, seed) for seed in range(count + 1)]
    pixels = np.concatenate([each[0] for each in expected[:count]])
    assert np.array_equal(found.train.images.reshape(-1, 3072), pixels)
    assert found.train.images.shape == (6 * count, 3, 32, 32)
    assert found.train.labels.tolist() == [int(v) for e in expected[:count] for v in e[1]]
    assert found.validation.labels.tolist() == expected[-1][1].tolist()
    assert found.classes == tuple(NAMES[name])
    assert found.missing == ()
    assert len(found.digests) == count + 2


def test_files_are_found_in_the_folder_of_the_unpacked_archive(tmp_path):
    published = write_pickles(tmp_path / "cifar-10-batches-py", "cifar10")
    assert len(read_cifar(tmp_path, published).train.labels) == 30


def test_an_archive_is_read_without_being_unpacked(tmp_path):
    published = write_pickles(tmp_path / "cifar-10-batches-py", "cifar10")
    path = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "cifar-10-batches-py", "cifar-10-batches-py")
    digest = hashlib.md5(path.read_bytes()).hexdigest()
    published = replace(published, digests={**published.digests, path.name: digest})
    before = sorted(tmp_path.rglob("*"))
    found = read_cifar(path, published)
    assert sorted(tmp_path.rglob("*")) == before
    assert found.digests[path.name] == digest
    unpacked = read_cifar(tmp_path / "cifar-10-batches-py", published)
    assert np.array_equal(found.train.images, unpacked.train.images)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(RefusedError, match=r"cifar-10-python.tar.gz has \d+ bytes and MD5"):
        read_cifar(path, published)


def test_a_part_of_the_training_files_is_read_and_told(tmp_path):
    published = write_pickles(tmp_path, "cifar10", train=["data_batch_1", "data_batch_4"])
    found = read_cifar(tmp_path, published)
    assert len(found.train.labels) == 12
    assert found.missing == ("data_batch_2", "data_batch_3", "data_batch_5")


@pytest.mark.parametrize("victim", ["data_batch_3", "test_batch", "batches.meta"])
@pytest.mark.parametrize("damage", ["short", "flipped"])
def test_a_damaged_file_is_named(victim, damage, tmp_path):
    published = write_pickles(tmp_path, "cifar10")
    content = bytearray((tmp_path / victim).read_bytes())
    if damage == "short":
        content = content[:-100]
    else:
        content[len(content) // 2] ^= 1
    (tmp_path / victim).write_bytes(content)
    expected = published.digests[victim]
    with pytest.raises(RefusedError, match=rf"{victim} has .*, published is {expected}; .* anew"):
        read_cifar(tmp_path, published)


@pytest.mark.parametrize("victim", ["test_batch", "batches.meta"])
def test_a_missing_file_is_named(victim, tmp_path):
    published = write_pickles(tmp_path, "cifar10")
    (tmp_path / victim).unlink()
    with pytest.raises(RefusedError, match=f"{victim} is missing"):
        read_cifar(tmp_path, published)


def test_a_short_binary_file_is_named(tmp_path):
    published = write_binary(tmp_path, "cifar10")
    path = tmp_path / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RefusedError, match=r"data_batch_2.bin has 18437 bytes, no multiple"):
        read_cifar(tmp_path, published)


def test_labels_beyond_the_classes_are_refused(tmp_path):
    published = write_binary(tmp_path, "cifar10")
    path = tmp_path / "test_batch.bin"
    path.write_bytes(b"\x0a" + path.read_bytes()[1:])
    with pytest.raises(RefusedError, match=r"test_batch.bin has labels above 9"):
        read_cifar(tmp_path, published)


@pytest.mark.parametrize(
    "content",
    [
        {b"labels": [1]},
        {b"data": np.zeros((1, 3072), np.uint8)},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]},
        {b"data": np.zeros((1, 9), np.uint8), b"labels": [1]},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": ["cat"]},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": [300]},
        {b"data": [1], b"labels": [1]},
    ],
)
def test_a_pickle_of_something_else_is_refused(content, tmp_path):
    write_pickles(tmp_path, "cifar10", train=["data_batch_1"])
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(content, 3))
    with pytest.raises(RefusedError, match="data_batch_1 has "):
        read_cifar(tmp_path, described(tmp_path, "cifar10"))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("absent", r"--input .*absent does not exist"),
        (".", r"holds no training file of cifar10, such as data_batch_1 or data_batch_1.bin"),
        ("other.zip", r"other.zip is neither a folder nor one of cifar-10-python.tar.gz"),
    ],
)
def test_a_place_without_the_data_set_is_refused(path, message, tmp_path):
    (tmp_path / "other.zip").write_bytes(b"")
    with pytest.raises(RefusedError, match=message):
        read_cifar(tmp_path / path, CIFAR["cifar10"])


class Runs:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("is_published", [False, True])
def test_a_malicious_file_in_place_of_a_batch_does_not_run(is_published, tmp_path, monkeypatch):
    folder, out = tmp_path / "files", tmp_path / "out"
    published = write_pickles(folder, "cifar10", train=["data_batch_1"])
    (folder / "data_batch_1").write_bytes(pickle.dumps({b"data": Runs(tmp_path / "ran")}, 2))
    if is_published:  # even where the digest would not stop it
        published = described(folder, "cifar10")
    monkeypatch.setitem(images_prepare.CIFAR, "cifar10", published)
    told = "asks for" if is_published else "published is"
    with pytest.raises(RefusedError, match=f"data_batch_1 .*{told}"):
        prepare_cifar("cifar10", out, source=folder, tell=lambda _: None)
    assert not (tmp_path / "ran").exists()
    assert not out.exists()


def test_preparing_twice_gives_the_same_folder(tmp_path, monkeypatch):
    published = write_pickles(tmp_path / "files", "cifar100")
    monkeypatch.setitem(images_prepare.CIFAR, "cifar100", published)
    lines = []
    first = prepare_cifar(
        "cifar100", tmp_path / "out", source=tmp_path / "files", tell=lines.append
    )
    again = prepare_cifar(
        "cifar100", tmp_path / "out", source=tmp_path / "files", tell=lines.append
    )
    other = prepare_cifar(
        "cifar100", tmp_path / "two", source=tmp_path / "files", tell=lines.append
    )
    assert first.digest == again.digest == other.digest
    assert len(first.manifest.classes) == 100
    assert lines[0] == f"{tmp_path / 'out'} holds 6 images for training and 6 for validation"


@needs_cifar
def test_the_published_files_are_read(tmp_path):
    lines = []
    made = prepare_cifar("cifar10", tmp_path / "out", source=REAL, tell=lines.append)
    assert lines[0].startswith("10,000 training images: a part of cifar10, data_batch_2")
    opened = ImageSet.open(tmp_path / "out")
    opened.verify()
    assert opened.train.images.shape == opened.validation.images.shape == (10_000, 3, 32, 32)
    assert np.bincount(opened.validation.labels).tolist() == [1000] * 10
    # The first image is a frog; its first row of red begins so.
    assert opened.manifest.classes[opened.train.labels[0]] == "frog"
    assert opened.train.images[0, 0, 0, :3].tolist() == [59, 43, 50]
    assert made.manifest.source["md5"]["data_batch_1"] == "c99cafc152244af753f735de768cd75f"
    assert made.manifest.mean == pytest.approx((0.4935, 0.4834, 0.4472), abs=1e-4)

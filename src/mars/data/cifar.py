"""CIFAR-10 and CIFAR-100 from the files they are published in: pickles or binary, whole or in part.

A file is known by its name and read only if it has the published digest; the authors publish those
of the archives, and the pickles have had theirs since. Of unpacked binary files none is published:
their sizes and labels are checked.
"""

import hashlib
import io
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mars.config.errors import RefusedError
from mars.data.cifar_pickle import read_plain
from mars.data.images import Labelled

CifarName = Literal["cifar10", "cifar100"]
SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_ANEW = "it is damaged, cut short or another file; download it anew"


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The files of one form: training, test and names of the classes."""

    train: tuple[str, ...]
    test: str
    classes: str
    # The key of labels and class names in pickles; bytes before a record's pixels in binary ones.
    labels: str = ""
    names: str = ""
    label_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A data set as it is published, with the MD5 of archives and files by name."""

    name: CifarName
    classes: int
    pickled: Files
    binary: Files
    digests: Mapping[str, str]


CIFAR: Mapping[CifarName, Published] = {
    "cifar10": Published(
        name="cifar10",
        classes=10,
        pickled=Files(
            train=tuple(f"data_batch_{number}" for number in range(1, 6)),
            test="test_batch",
            classes="batches.meta",
            labels="labels",
            names="label_names",
        ),
        binary=Files(
            train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
            test="test_batch.bin",
            classes="batches.meta.txt",
            label_bytes=1,
        ),
        digests={
            "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
            "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
            "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        },
    ),
    "cifar100": Published(
        name="cifar100",
        classes=100,
        pickled=Files(
            train=("train",),
            test="test",
            classes="meta",
            labels="fine_labels",
            names="fine_label_names",
        ),
        binary=Files(
            train=("train.bin",), test="test.bin", classes="fine_label_names.txt", label_bytes=2
        ),
        digests={
            "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
            "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            "meta": "7973b15100ade9c7d40fb424638fde48",
        },
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a source of images holds."""

    train: Labelled
    validation: Labelled
    classes: tuple[str, ...]
    # The MD5 of every file that was read, by name.
    digests: Mapping[str, str]
    # Training files of the published set that are not there.
    missing: tuple[str, ...] = ()


@dataclass(slots=True)
class _Source:
    """The files of a folder or archive by their names, each read when it is asked for."""

    place: Path
    published: Mapping[str, str]
    contents: dict[str, Callable[[], bytes]]
    digests: dict[str, str] = field(default_factory=dict)

    def read(self, name: str) -> bytes:
        """Return a file's content, refusing one that is missing or not what was published."""
        if name not in self.contents:
            raise RefusedError(f"{self.place / name} is missing; download the data set anew")
        content = self.contents[name]()
        self.digests[name] = _checked(content, self.place / name, self.published.get(name))
        return content


def read_cifar(path: Path, published: Published) -> Found:
    """Return what a folder or archive holds of a data set: all test images, some training files."""
    source = _opened(path, published)
    names = source.contents.keys()
    for files in (published.pickled, published.binary):
        train = [name for name in files.train if name in names]
        if train:
            return _read(source, files, train, published=published)
    first = (published.pickled.train[0], published.binary.train[0])
    raise RefusedError(
        f"{path} holds no training file of {published.name}, such as {first[0]} or {first[1]}; "
        "name the folder or archive it was downloaded to"
    )


def _read(source: _Source, files: Files, train: list[str], *, published: Published) -> Found:
    def images(name: str) -> Labelled:
        content = source.read(name)
        where = str(source.place / name)
        read = _from_binary if files.label_bytes else _from_pickle
        found = read(content, files, source=where)
        if len(found.labels) == 0 or int(found.labels.max()) >= published.classes:
            raise RefusedError(f"{where} has labels above {published.classes - 1}; {_ANEW}")
        return found

    parts = [images(name) for name in train]
    return Found(
        train=Labelled(
            np.concatenate([part.images for part in parts]),
            np.concatenate([part.labels for part in parts]),
        ),
        validation=images(files.test),
        classes=_classes(source, files, count=published.classes),
        digests=source.digests,
        missing=tuple(name for name in files.train if name not in train),
    )


def _opened(path: Path, published: Published) -> _Source:
    if path.is_dir():
        # An unpacked archive is a folder in the one it was unpacked to.
        known = {*_names(published.pickled), *_names(published.binary)}
        below = (each for each in sorted(path.rglob("*")) if each.is_file() and each.name in known)
        found: dict[str, Callable[[], bytes]] = {}
        for file in below:
            found.setdefault(file.name, file.read_bytes)
        return _Source(path, published.digests, found)
    if not path.exists():
        raise RefusedError(f"--input {path} does not exist; name a folder or archive of CIFAR")
    expected = published.digests.get(path.name)
    if expected is None:
        archives = ", ".join(name for name in published.digests if name.endswith(".tar.gz"))
        raise RefusedError(f"--input {path} is neither a folder nor one of {archives}")
    digest = _checked(path.read_bytes(), path, expected)
    return _Source(path, published.digests, _members(path), {path.name: digest})


def _members(path: Path) -> dict[str, Callable[[], bytes]]:
    """Return the files of an archive by name; they are read, never unpacked."""
    found: dict[str, Callable[[], bytes]] = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                # Read now: the archive is closed when the file is asked for.
                found[Path(member.name).name] = io.BytesIO(content.read()).getvalue
    return found


def _names(files: Files) -> tuple[str, ...]:
    return (*files.train, files.test, files.classes)


def _checked(content: bytes, path: Path, expected: str | None) -> str:
    """Return the MD5 of a file, refusing one that differs from what is published."""
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if expected not in (None, digest):
        raise RefusedError(
            f"{path} has {len(content)} bytes and MD5 {digest}, published is {expected}; {_ANEW}"
        )
    return digest


def _from_pickle(content: bytes, files: Files, *, source: str) -> Labelled:
    found = read_plain(content, source=source)
    data, labels = found.get("data"), found.get(files.labels)
    is_whole = isinstance(data, np.ndarray) and isinstance(labels, list)
    if not is_whole or data.shape != (len(labels), _PIXELS):  # type: ignore[union-attr,arg-type]
        raise RefusedError(f"{source} has no rows of {_PIXELS} pixels with {files.labels}; {_ANEW}")
    if not all(isinstance(label, int) and 0 <= label < 256 for label in labels):  # type: ignore[union-attr]
        raise RefusedError(f"{source} has {files.labels} that are no classes; {_ANEW}")
    assert isinstance(data, np.ndarray)
    return Labelled(data.reshape(-1, *SHAPE), np.array(labels, np.uint8))


def _from_binary(content: bytes, files: Files, *, source: str) -> Labelled:
    size = files.label_bytes + _PIXELS
    if not content or len(content) % size:
        raise RefusedError(
            f"{source} has {len(content)} bytes, no multiple of the {size} of a record; {_ANEW}"
        )
    records: NDArray[Any] = np.frombuffer(content, np.uint8).reshape(-1, size)
    # The last byte before the pixels is the fine label.
    labels = records[:, files.label_bytes - 1].copy()
    return Labelled(records[:, files.label_bytes :].reshape(-1, *SHAPE), labels)


def _classes(source: _Source, files: Files, *, count: int) -> tuple[str, ...]:
    content = source.read(files.classes)
    where = str(source.place / files.classes)
    if files.label_bytes:
        names = content.decode("latin-1").split()
    else:
        names = [str(name) for name in read_plain(content, source=where).get(files.names) or ()]
    if len(names) != count:
        raise RefusedError(f"{where} names {len(names)} classes, not {count}; {_ANEW}")
    return tuple(names)

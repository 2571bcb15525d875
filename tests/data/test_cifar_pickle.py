"""Pickles are read as data: plain values and bytes come out, and nothing of them runs."""

import os
import pickle
import random

import numpy as np
import pytest

from mars.config.errors import RefusedError
from mars.data.cifar_pickle import read_plain


def batch(count=4):
    pixels = np.random.default_rng(0).integers(0, 256, (count, 3072), np.uint8)
    return {b"data": pixels, b"labels": [1, 2, 3, 1][:count], b"batch_label": b"training 1 of 5"}


class Runs:
    """Makes a directory when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [3, 4])
def test_a_batch_is_what_was_pickled(protocol):
    given = batch()
    found = read_plain(pickle.dumps(given, protocol), source="data_batch_1")
    assert list(found) == ["data", "labels", "batch_label"]
    assert np.array_equal(found["data"], given[b"data"])
    assert found["data"].dtype == np.uint8
    assert found["labels"] == [1, 2, 3, 1]


def test_values_that_are_shared_or_nested_are_as_they_were():
    names = ["a", "b"]
    given = {"one": names, "two": names, "none": (None, True, False, (), (1, 2, 3, 4), -5, 2**40)}
    assert read_plain(pickle.dumps(given, 2), source="meta") == given


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_is_refused_by_name_and_does_not_run(protocol, tmp_path):
    made = tmp_path / "made"
    content = pickle.dumps({b"data": Runs(made)}, protocol)
    with pytest.raises(RefusedError, match=r"data_batch_1 is a pickle that asks for") as refusal:
        read_plain(content, source="data_batch_1")
    assert "nothing of it was run" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not made.exists()
    pickle.loads(content)
    assert made.exists()  # the file was dangerous


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"(cos\nsystem\nS'true'\no.",
        b"\x80\x02cnumpy\nndarray\n)\x81.",
        b"\x80\x02cnumpy\nndarray\n)R.",
        b"\x80\x02cnumpy\ndtype\nU\x01O\x85R.",
        b"\x80\x02}U\x01ab.",
        b"\x80\x02P1\n.",
        b"\x80\x02\x82\x01.",
    ],
)
def test_every_way_to_call_something_is_refused(content):
    with pytest.raises(RefusedError, match="asks for"):
        read_plain(content, source="file")


def test_only_arrays_of_bytes_are_read():
    for array in (np.zeros(3), np.zeros((2, 2), np.uint8, order="F"), np.array([{}], dtype=object)):
        with pytest.raises(RefusedError, match="asks for"):
            read_plain(pickle.dumps({"data": array}, 3), source="file")


def test_an_array_whose_shape_is_not_that_of_its_bytes_is_refused():
    content = pickle.dumps({"data": np.zeros((5, 7), np.uint8)}, 3).replace(
        b"K\x05K\x07", b"K\x05K\x06"
    )
    with pytest.raises(RefusedError, match=r"35 bytes for an array of \(5, 6\)"):
        read_plain(content, source="file")


@pytest.mark.parametrize("cut", [0, 1, 10, 100, 1000, -1])
def test_a_short_pickle_is_named(cut):
    with pytest.raises(RefusedError, match=r"^data_batch_1 "):
        read_plain(pickle.dumps(batch(), 3)[:cut], source="data_batch_1")


def test_what_is_no_dict_is_refused():
    with pytest.raises(RefusedError, match="file holds no dict"):
        read_plain(pickle.dumps([1, 2], 2), source="file")


def test_damage_anywhere_gives_a_value_or_a_refusal():
    content = pickle.dumps({"names": ["a", "b"], "data": np.zeros((1, 9), np.uint8)}, 3)
    chance = random.Random(7)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(2000):
        changed = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        try:
            assert isinstance(read_plain(bytes(changed), source="file"), dict)
            outcomes["read"] += 1
        except RefusedError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 50

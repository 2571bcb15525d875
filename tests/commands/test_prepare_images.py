"""``mars prepare digits|cifar10|cifar100``: what is made, and what is said about it."""

import numpy as np

from mars import cli
from mars.data.images import ImageSet


def prepare(*arguments) -> int:
    return cli.main(["prepare", *map(str, arguments)])


def refused(capsys, *arguments) -> str:
    """Return the one line that a refused command line gives."""
    assert prepare(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mars: ")
    assert err.count("\n") == 1
    return err


def write_binary(folder, *, count=5):
    """Write a binary CIFAR-10 of which two training files are there."""
    folder.mkdir()
    for name in ("data_batch_1", "data_batch_2", "test_batch"):
        pixels = np.random.default_rng(0).integers(0, 256, (count, 3072), np.uint8)
        labels = np.arange(count, dtype=np.uint8)[:, None]
        (folder / f"{name}.bin").write_bytes(np.concatenate([labels, pixels], axis=1).tobytes())
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij"))
    return folder


def test_the_digits_are_made_and_described(tmp_path, capsys):
    assert prepare("digits", "--out", tmp_path / "digits") == 0
    out = capsys.readouterr().out
    found = ImageSet.open(tmp_path / "digits")
    assert "8 by 8, 1 channels, 10 classes" in out
    assert "train       1,500 images" in out
    assert found.digest in out
    assert f"Next: mars train digits --set data.path={tmp_path / 'digits'}" in out


def test_a_part_of_cifar_is_made_and_told(tmp_path, capsys):
    folder = write_binary(tmp_path / "files")
    assert prepare("cifar10", "--input", folder, "--out", tmp_path / "out") == 0
    out = capsys.readouterr().out
    assert "10 training images: a part of cifar10, data_batch_3.bin" in out
    assert "validation  5 images" in out
    assert "mars train cifar10-resnet18-mars-adamw" in out


def test_a_short_file_is_refused_in_one_line_that_names_it(tmp_path, capsys):
    folder = write_binary(tmp_path / "files")
    path = folder / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:-7])
    line = refused(capsys, "cifar10", "--input", folder, "--out", tmp_path / "out")
    assert "data_batch_2.bin has 15358 bytes" in line
    assert not (tmp_path / "out").exists()


def test_options_of_text_are_refused(tmp_path, capsys):
    out = ("--out", tmp_path / "out")
    assert "--input is an option of" in refused(capsys, "digits", "--input", tmp_path, *out)
    line = refused(capsys, "cifar10", "--tokenizer", "gpt2", "--input", tmp_path, *out)
    assert "--tokenizer is an option of mars prepare text" in line
    line = refused(capsys, "cifar10", "--input", tmp_path, tmp_path, *out)
    assert "takes one --input" in line

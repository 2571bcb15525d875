"""Mistakes on the command line: one clear line, exit code 2, and nothing left behind."""

import os

import pytest
from malformed import MALFORMED

from mars import cli
from training.runs import make_corpus, write_config


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


def refused(arguments: list[str], capsys) -> str:
    """Return the one line that a refused command line gives."""
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mars: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("case", MALFORMED, ids=lambda case: case.name)
def test_a_malformed_config_leaves_no_run_directory(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "config.toml"
    path.write_text(case.toml)
    settings = [each for setting in case.settings for each in ("--set", setting)]
    line = refused(["train", str(path), *settings, "--out", "run"], capsys)
    for word in case.words:
        assert word in line
    assert os.listdir(tmp_path) == ["config.toml"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train"], "name a preset or a TOML file; mars train --list"),
        (["train", "quickstat"], "did you mean quickstart?"),
        (["train", "missing.toml"], "missing.toml: there is no such file"),
        (["train", "."], 'unknown preset "."; mars train --list'),
        (["train", "quickstart", "--sett", "x=1"], "did you mean --set?"),
        (["train", "quickstart", "--set"], "Missing value for argument '--set'"),
        (["train", "quickstart", "--set", "lr"], '"lr" sets nothing; write it as'),
        (["train", "quickstart", "extra"], "Unrecognized options: extra"),
        (["train", "gpt2-small-openwebtext-mars-adamw"], "data/openwebtext"),
        (["train", "quickstart", "--set", "data.path=x", "data.prepare="], "mars prepare"),
        (["train", "quickstart", "--set", "training.device=cuda:99"], "training.device"),
        (["train", "quickstart", "--set", "training.device=toaster"], "training.device"),
        (["train", "--resume", "--out", "nothing"], "nothing"),
        (["prepare"], "stdlib|text"),
        (["prepare", "sdlib", "--out", "x"], "invalid choice 'sdlib' for"),
        (["prepare", "text", "--out", "x"], "needs --input"),
        (["prepare", "text", "--out", "x", "--input", "absent.txt"], "absent.txt is neither"),
        (["prepare", "text", "--input", "absent.txt"], "--out DIR"),
        (["prepare", "stdlib", "--out", "x", "--input", "y"], "--input is an option of"),
        (["prepare", "stdlib", "--out", "x", "--tokenizer", "gpt2"], "--tokenizer is an option of"),
        (["prepare", "text", "--out", "x", "--input", ".", "--tokenizer", "gpt3"], "choice 'gpt3'"),
        (["sample"], "RUN"),
        (["sample", "absent"], "absent is not a run directory"),
        (["sample", "absent", "--tokens", "many"], "Error parsing --tokens: "),
    ],
)
def test_a_wrong_command_line_leaves_nothing(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert words in refused(arguments, capsys)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.vocab_size=100", "model.vocab_size = 100 is too small"),
        ("model.context_length=100000", "100000"),
        ("data.path=/dev/null", "/dev/null"),
        ("optimizer.name=lion", "lion"),
    ],
)
def test_what_only_the_data_can_refute_is_refused_before_a_directory(
    setting, words, corpus, tmp_path, capsys, monkeypatch
):
    config = write_config(tmp_path, corpus)
    if "lion" in setting:
        monkeypatch.setitem(__import__("sys").modules, "pytorch_optimizer", None)
    line = refused(["train", str(config), "--set", setting, "--out", str(tmp_path / "run")], capsys)
    assert words in line
    assert not (tmp_path / "run").exists()


def test_a_place_that_cannot_be_written_is_named(corpus, tmp_path, capsys):
    config = write_config(tmp_path, corpus)
    (tmp_path / "file").write_text("not a folder")
    line = refused(["train", str(config), "--out", str(tmp_path / "file" / "run")], capsys)
    assert str(tmp_path / "file" / "run") in line


def test_a_damaged_corpus_is_named(tmp_path, capsys):
    corpus = make_corpus(tmp_path)
    config = write_config(tmp_path, corpus)
    shard = next(corpus.glob("train-*.bin"))
    shard.write_bytes(shard.read_bytes()[:-2])
    line = refused(["train", str(config), "--out", str(tmp_path / "run")], capsys)
    assert str(shard) in line
    assert not (tmp_path / "run").exists()

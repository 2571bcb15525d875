"""Commands as a person uses them: what they print, and what is there afterwards."""

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from mars import cli
from mars.config.load import documentation
from mars.data.corpus import Corpus
from training.runs import make_corpus, run, write_config

# Hot enough for two models that differ little to differ in what they write.
SAMPLE = ("--prompt", "1", "--temperature", "3", "--tokens", "300")
DATA = Path(os.environ.get("MARS_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    run(write_config(folder, make_corpus(folder)), folder / "run")
    return folder / "run"


def test_the_presets_are_listed_one_by_one(capsys):
    assert cli.main(["train", "--list"]) == 0
    out = capsys.readouterr().out
    assert "quickstart-mars-adamw" in out
    assert "gpt2-xl-fineweb-edu-muon" in out


def test_the_help_of_train_documents_every_key(capsys, monkeypatch):
    def wide(*, stderr: bool = False) -> Console:
        return Console(stderr=stderr, highlight=False, width=400)

    monkeypatch.setattr(cli, "_console", wide)
    assert cli.main(["train", "--help"]) == 0
    # Without spaces, since a long entry is wrapped at any width.
    lines = "".join(capsys.readouterr().out.split())
    for entry in documentation():
        assert "".join(f"{entry.key}{entry.doc}".split()) in lines


def test_settings_may_share_a_flag_or_not(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for arguments in (["--set", "seed=1", "lr=-1"], ["--set", "seed=1", "--set", "lr=-1"]):
        assert cli.main(["train", "quickstart", *arguments]) == 2
        assert "optimizer.lr must be positive and finite, got -1" in capsys.readouterr().err


def test_a_checkpoint_that_cannot_be_written_fails_the_run(tmp_path, monkeypatch, capsys):
    config = write_config(tmp_path, make_corpus(tmp_path))
    place = tmp_path / "run" / "checkpoints"
    full = SimpleNamespace(total=10**6, used=10**6, free=0)
    monkeypatch.setattr("mars.checkpoint.writing.shutil.disk_usage", lambda _: full)
    assert cli.main(["train", str(config), "--out", str(tmp_path / "run")]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"mars: saving {place / 'step-00000004'} failed: it takes ")
    assert last.endswith(f"choose another disk; no other checkpoint in {place} is good")


def test_sampling_continues_the_prompt_and_repeats_with_its_seed(trained, capsys):
    texts = []
    for seed in ("1", "1", "2"):
        arguments = ["sample", str(trained), "--prompt", "12 34", "--tokens", "30", "--seed", seed]
        assert cli.main(arguments) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    assert all(text.startswith("12 34") for text in texts)


def test_a_sample_is_of_the_checkpoint_asked_for(trained, tmp_path, capsys):
    run_directory = tmp_path / "run"
    shutil.copytree(trained, run_directory)
    texts = {}
    for step in ("8", "12"):
        arguments = ["sample", str(run_directory), *SAMPLE, "--step", step]
        assert cli.main(arguments) == 0
        texts[step] = capsys.readouterr().out
    assert texts["8"] != texts["12"]
    assert cli.main(["sample", str(run_directory), "--step", "7"]) == 2
    assert "step-00000007" in capsys.readouterr().err
    # By default it is the newest good one.
    (run_directory / "checkpoints" / "step-00000012" / "model.pt").write_bytes(b"damaged")
    assert cli.main(["sample", str(run_directory), *SAMPLE]) == 0
    assert capsys.readouterr().out == texts["8"]


def test_sampling_needs_the_run_directory_alone(tmp_path, capsys):
    corpus = make_corpus(tmp_path)
    run(write_config(tmp_path, corpus), tmp_path / "run")
    corpus.rename(tmp_path / "elsewhere")
    assert cli.main(["sample", str(tmp_path / "run"), "--prompt", "1 2", "--tokens", "5"]) == 0
    assert capsys.readouterr().out.startswith("1 2")


def test_the_standard_library_is_a_corpus(tmp_path, capsys):
    assert cli.main(["prepare", "stdlib", "--out", str(tmp_path / "stdlib")]) == 0
    out = capsys.readouterr().out
    corpus = Corpus.open(tmp_path / "stdlib")
    assert len(corpus.train) > 5_000_000
    assert len(corpus.validation) > 100_000
    assert f"{len(corpus.train):,} tokens" in out
    assert corpus.digest in out


@pytest.mark.skipif(not DATA.exists(), reason="needs the shared data")
def test_wikitext_with_gpt2_tokens_has_its_known_size(tmp_path):
    digests = []
    for name in ("first", "second"):
        arguments = ["prepare", "text", "--out", str(tmp_path / name), "--tokenizer", "gpt2"]
        arguments += ["--input", str(DATA / "wikitext-2" / "train.txt")]
        arguments += ["--validation", str(DATA / "wikitext-2" / "valid.txt")]
        arguments += ["--bpe", str(DATA / "gpt2-bpe" / "gpt2.tiktoken")]
        assert cli.main(arguments) == 0
        digests.append(Corpus.open(tmp_path / name).digest)
    corpus = Corpus.open(tmp_path / "second")
    assert round(len(corpus.train) / 1e6, 2) == 2.45
    assert digests[0] == digests[1]
    prompt = "The <|endoftext|> quick brown fox, 1984 — ☃"
    assert corpus.tokenizer.decode(corpus.tokenizer.encode(prompt)) == prompt


def test_a_person_at_a_terminal_sees_a_live_display(tmp_path):
    config = write_config(tmp_path, make_corpus(tmp_path))
    command = [sys.executable, "-m", "mars", "train", str(config), "--out", str(tmp_path / "run")]
    shown = in_a_terminal(command)
    assert "\x1b[" in shown  # it redraws
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    for words in ("tiny", "mars-adamw", "Validation loss", "Finished: 12 steps", "mars sample"):
        assert words in plain


def in_a_terminal(command: list[str]) -> str:
    """Return what a command writes to a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    with subprocess.Popen(
        command,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "OMP_NUM_THREADS": "1"},
    ) as process:
        os.close(theirs)
        parts = []
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end was closed
                break
            if not part:
                break
            parts.append(part)
    os.close(ours)
    assert process.returncode == 0
    return b"".join(parts).decode()

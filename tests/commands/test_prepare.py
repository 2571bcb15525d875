"""``mars prepare openwebtext|fineweb-edu``: from files to a corpus, and what is said about it."""

import io
import os
import pty
import re
import subprocess
import sys

import pytest
from rich.console import Console

from data.row_files import BPE, FORMATS, SEPARATOR, generated, json_lines, write_rows
from mars import cli
from mars.commands import prepare as prepare_command
from mars.commands import prepare_display
from mars.commands.prepare_display import in_words, watching
from mars.data.building import Progress
from mars.data.corpus import Corpus
from mars.data.encoding import Tally

SOME = [f"document {number}" for number in range(300)]
SMALL = ["--tokenizer", "bytes", "--validation-fraction", "0.2", "--processes", "1"]


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


@pytest.mark.parametrize("name", ["openwebtext", "fineweb-edu"])
def test_files_become_a_corpus_and_the_summary_says_what_it_holds(tmp_path, capsys, name):
    path = write_rows(SOME, tmp_path, "jsonl.zst")
    assert prepare(name, "--input", path, "--out", tmp_path / "out", *SMALL) == 0
    corpus = Corpus.open(tmp_path / "out")
    out = capsys.readouterr().out
    assert corpus.manifest.source["kind"] == name
    train = corpus.manifest.splits["train"]
    assert f"{train.tokens:,} tokens in {train.documents:,} documents" in out
    assert corpus.digest in out
    assert "in 1 processes" in out
    assert f"Next: mars train PRESET --set data.path={tmp_path / 'out'}" in out
    assert "left out" not in out
    assert prepare(name, "--input", path, "--out", tmp_path / "out", *SMALL) == 0
    assert "is there already" in capsys.readouterr().out


def test_what_is_left_out_is_counted_and_shown(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json_lines(SOME) + b'{"text": ""}\n{"text": 3}\nbroken\n')
    assert prepare("openwebtext", "--input", path, "--out", tmp_path / "out", *SMALL) == 0
    out = capsys.readouterr().out
    assert "left out    1 blank_documents, 1 not_text, 1 bad_json\n" in out
    assert "rows.jsonl row 302: not_text\n" in out
    assert "rows.jsonl row 303: bad_json\n" in out


def test_the_published_fraction_and_gpt2_tokens_are_the_defaults(tmp_path):
    if not BPE.is_dir():
        pytest.skip(f"no data at {BPE}")
    documents = [f"{text} of some length" for text in SOME * 20]
    documents = [f"{place}: {text}" for place, text in enumerate(documents)]
    path = write_rows(documents, tmp_path, "parquet")
    assert prepare("openwebtext", "--input", path, "--out", tmp_path / "out", "--bpe", BPE) == 0
    corpus = Corpus.open(tmp_path / "out")
    assert (corpus.manifest.tokenizer, corpus.manifest.source["validation"]) == ("gpt2", 0.0005)
    assert 0 < corpus.manifest.splits["validation"].documents < 15


@pytest.mark.parametrize("kind", FORMATS)
def test_column_separator_and_limit_reach_the_reader(tmp_path, kind):
    path = write_rows(SOME, tmp_path, kind, column="body")
    how = ["--separator", SEPARATOR] if kind.startswith("txt") else ["--column", "body"]
    out = tmp_path / "out"
    assert prepare("openwebtext", "--input", path, "--out", out, *SMALL, *how) == 0
    assert Corpus.open(out).manifest.source["measured"]["rows"] == 300


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["stdlib", "--processes", "2"],
            "--processes is an option of mars prepare openwebtext|fin",
        ),
        (["text", "--input", ".", "--streaming"], "--streaming is an option of"),
        (["text", "--input", ".", "--column", "x"], "--column is an option of"),
        (["text", "--input", ".", "--max-malformed", "0.5"], "--max-malformed is an option of"),
        (
            ["openwebtext", "--validation", "."],
            "--validation is an option of mars prepare text, no",
        ),
        (
            ["fineweb-edu", "--input", ".", "--subset", "x"],
            "--subset chooses from the hub, --input",
        ),
        (["fineweb-edu", "--input", ".", "--streaming"], "--streaming chooses from the hub"),
        (["openwebtext", "--input", "absent.parquet", *SMALL], "absent.parquet is neither a file"),
        (["openwebtext", "--input", ".", *SMALL], "lies in the input"),
        (["openwebtext", "--processes", "0"], "processes must be at least 1, got 0"),
        (
            ["openwebtext", "--max-malformed", "2"],
            "max_malformed must lie between 0 and 1, got 2.0",
        ),
        (["openwebtext", "--tokenizer", "bytes", "--bpe", "x"], "bytes has no use for x"),
        (["owt"], "invalid choice 'owt'"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert words in refused(capsys, *arguments, "--out", "out")
    assert os.listdir(tmp_path) == []


def test_a_machine_that_is_offline_gives_one_line(tmp_path):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "mars", "prepare", "fineweb-edu", "--out", "out"]
    command += ["--tokenizer", "bytes"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("mars: HuggingFaceFW/fineweb-edu cannot be reached")
    assert "--input" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_interrupt_says_that_the_same_command_goes_on(tmp_path, monkeypatch, capsys):
    path = write_rows(SOME, tmp_path, "jsonl")

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare_command, "prepare_corpus", stop)
    assert prepare("openwebtext", "--input", path, "--out", tmp_path / "out", *SMALL) == 130
    out, err = capsys.readouterr()
    assert out == "stopped; the same command goes on from here\n"
    assert err == "mars: interrupted\n"


# Progress.


def progress(consumed: int = 250_000_000) -> Progress:
    tally = Tally(documents=1234, consumed=consumed)
    return Progress(tally, 10**9, seconds=20, consumed=100_000_000, text_bytes=480_000_000)


def test_progress_in_words_has_an_estimate_of_the_time_left():
    expected = "25% of 1,000 MB, 1,234 documents, 24.0 MB of text a second, 0:02:30 left"
    assert in_words(progress()) == expected


def test_without_a_terminal_there_is_a_line_now_and_then(monkeypatch):
    console = Console(file=io.StringIO(), width=100)
    with watching(console) as watch:
        watch(progress())
        monkeypatch.setattr(prepare_display, "SECONDS_BETWEEN_LINES", 0.0)
        watch(progress())
    assert console.file.getvalue() == in_words(progress()) + "\n"


def test_a_person_at_a_terminal_sees_a_bar(tmp_path):
    path = write_rows(generated(1), tmp_path, "jsonl")
    command = [sys.executable, "-m", "mars", "prepare", "openwebtext", "--input", str(path)]
    command += ["--out", str(tmp_path / "out"), *SMALL]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "120", "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        try:
            while block := os.read(ours, 1 << 16):
                shown += block
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    assert process.returncode == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert re.search(
        r"\d+% of 1 MB, [\d,]+ documents, [\d.]+ MB of text a second, 0:00:\d\d left", plain
    )
    assert "━" in plain

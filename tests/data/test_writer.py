"""Writing a corpus: everything or nothing, and exactly what was given."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mars.config.errors import RefusedError
from mars.data.corpus import Corpus
from mars.data.tokenizers import ByteTokenizer
from mars.data.writer import existing_corpus, write_corpus

SOURCE = {"kind": "test"}


class WideTokenizer(ByteTokenizer):
    """Bytes with an end of text beyond 16 bits."""

    name = "wide"
    vocab_size = 70_001
    eot = 70_000


def document(content: bytes, split="train"):
    return split, ByteTokenizer().encode(content)


def write(documents, out, tokenizer=None, **options) -> Corpus:
    return write_corpus(
        documents,
        out,
        tokenizer=tokenizer or ByteTokenizer(),
        source=options.pop("source", SOURCE),
        skipped={},
        **options,
    )


SMALL = [document(b"one"), document(b"two", "validation"), document(b"three")]


# What is written.


@settings(max_examples=40)
@given(
    contents=st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=8),
    shard_tokens=st.integers(1, 30),
)
def test_documents_come_back_whatever_the_shards(contents, shard_tokens):
    documents = [document(content) for content in contents]
    held_out = document(b"held out", "validation")
    with tempfile.TemporaryDirectory() as folder:
        corpus = write([*documents, held_out], Path(folder) / "corpus", shard_tokens=shard_tokens)
        expected = [i for _, ids in documents for i in (*ids.tolist(), 256)]
        assert corpus.train.read(0, len(corpus.train)).tolist() == expected
        assert corpus.validation.read(0, 9).tolist() == [*b"held out", 256]
        ends = np.cumsum([len(content) + 1 for content in contents])
        assert corpus.document_ends("train").tolist() == ends.tolist()
        shards = corpus.manifest.splits["train"].shards
        assert [shard.tokens for shard in shards[:-1]] == [shard_tokens] * (len(shards) - 1)
        assert len(shards) == -(-len(expected) // shard_tokens)
        corpus.verify()


def test_the_manifest_counts_what_is_there(tmp_path):
    write(SMALL, tmp_path / "corpus", shard_tokens=6)
    content = json.loads((tmp_path / "corpus" / "manifest.json").read_text())
    assert {k: content[k] for k in ("format", "version", "dtype", "tokenizer", "eot")} == {
        "format": "mars-corpus",
        "version": 1,
        "dtype": "uint16",
        "tokenizer": "bytes",
        "eot": 256,
    }
    train = content["splits"]["train"]
    assert (train["tokens"], train["documents"]) == (10, 2)
    assert [(s["name"], s["tokens"]) for s in train["shards"]] == [
        ("train-00000.bin", 6),
        ("train-00001.bin", 4),
    ]
    names = {path.name for path in (tmp_path / "corpus").iterdir()}
    assert names == {
        "manifest.json",
        *("train-00000.bin", "train-00001.bin", "train-documents.bin"),
        *("validation-00000.bin", "validation-documents.bin"),
    }


def test_tokens_on_disk_are_little_endian(tmp_path):
    write(SMALL, tmp_path / "corpus")
    content = (tmp_path / "corpus" / "validation-00000.bin").read_bytes()
    assert content == b"t\0w\0o\0\0\1"
    assert (tmp_path / "corpus" / "validation-documents.bin").read_bytes() == b"\4" + bytes(7)


def test_a_vocabulary_beyond_16_bits_takes_32(tmp_path):
    corpus = write(SMALL, tmp_path / "corpus", WideTokenizer())
    assert corpus.manifest.dtype == np.uint32
    assert corpus.train.read(0, 4).tolist() == [*b"one", 70_000]
    assert (tmp_path / "corpus" / "train-00000.bin").stat().st_size == 10 * 4
    corpus.verify()


def test_the_same_documents_have_the_same_digest(tmp_path):
    once, twice, other = (
        write(documents, tmp_path / name)
        for name, documents in [("a", SMALL), ("b", SMALL), ("c", SMALL[::-1])]
    )
    assert once.digest == twice.digest != other.digest


# All or nothing.


def test_an_exception_leaves_nothing(tmp_path):
    def documents():
        yield document(b"one")
        assert any(tmp_path.iterdir())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(documents(), tmp_path / "corpus", shard_tokens=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kept", "missing"), [("train", "validation"), ("validation", "train")])
def test_an_empty_split_is_refused_and_leaves_nothing(tmp_path, kept, missing):
    with pytest.raises(RefusedError, match=f"no document is for {missing}"):
        write([document(b"one", kept)], tmp_path / "corpus")
    assert list(tmp_path.iterdir()) == []


KILLED = """
import sys, time
from pathlib import Path
import numpy as np
from mars.data.tokenizers import ByteTokenizer
from mars.data.writer import write_corpus

def documents():
    for _ in range(100):
        yield "train", np.zeros(1000, dtype=np.uint16)
    print("writing", flush=True)
    time.sleep(600)

out = Path(sys.argv[1])
write_corpus(
    documents(), out, tokenizer=ByteTokenizer(), source={}, skipped={}, shard_tokens=9000
)
"""


def test_a_killed_preparation_leaves_no_corpus_and_its_remains_go_with_the_next(tmp_path):
    out = tmp_path / "corpus"
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"writing\n"
        finally:
            process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    (remains,) = tmp_path.iterdir()
    assert remains.name.startswith(".corpus.partial-")
    assert (remains / "train-00010.bin").exists()
    write(SMALL, out).verify()
    assert list(tmp_path.iterdir()) == [out]


def test_what_another_process_holds_stays(tmp_path):
    held = tmp_path / ".corpus.partial-12"
    held.mkdir()
    descriptor = os.open(held, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        write(SMALL, tmp_path / "corpus")
        assert held.is_dir()
    finally:
        os.close(descriptor)


def test_two_preparations_at_once_end_with_one_corpus(tmp_path):
    out = tmp_path / "corpus"
    made = []

    def documents():
        made.append(write(SMALL, out))  # the other one is faster
        yield from SMALL

    corpus = write(documents(), out)
    assert corpus.digest == made[0].digest
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_the_slower_of_two_different_preparations_is_refused(tmp_path):
    out = tmp_path / "corpus"

    def documents():
        write(SMALL, out, source={"kind": "faster"})
        yield from SMALL

    with pytest.raises(RefusedError, match=r"holds another corpus \(its kind differ"):
        write(documents(), out)
    assert Corpus.open(out).manifest.source == {"kind": "faster"}


def test_everything_is_on_the_disk_before_the_corpus_has_its_name(tmp_path, monkeypatch):
    events: list[int | str] = []
    rename = Path.rename
    monkeypatch.setattr(os, "fsync", lambda descriptor: events.append(os.fstat(descriptor).st_ino))
    monkeypatch.setattr(Path, "rename", lambda *paths: (events.append("rename"), rename(*paths)))
    out = tmp_path / "corpus"
    write(SMALL, out, shard_tokens=4)
    *files, folder, renamed, parent = events
    assert sorted(files) == sorted(path.stat().st_ino for path in out.iterdir())
    assert files[-1] == (out / "manifest.json").stat().st_ino
    assert (folder, renamed, parent) == (out.stat().st_ino, "rename", tmp_path.stat().st_ino)


def test_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "corpus").mkdir()
    assert len(write(SMALL, tmp_path / "corpus").train) == 10


def test_a_folder_is_open_to_whom_others_are(tmp_path):
    (tmp_path / "ordinary").mkdir()
    write(SMALL, tmp_path / "corpus")
    assert (tmp_path / "corpus").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


# What is there already.


def test_nothing_is_no_corpus(tmp_path):
    assert existing_corpus(tmp_path / "absent", source=SOURCE) is None
    assert existing_corpus(tmp_path, source=SOURCE) is None


def test_the_same_source_is_the_same_corpus(tmp_path):
    made = write(SMALL, tmp_path / "corpus")
    assert existing_corpus(tmp_path / "corpus", source=SOURCE).digest == made.digest


def test_another_source_is_refused_with_what_differs(tmp_path):
    write(SMALL, tmp_path / "corpus")
    with pytest.raises(RefusedError, match=r"\(its kind, size differ\); remove it or choose"):
        existing_corpus(tmp_path / "corpus", source={"kind": "other", "size": 3})


@pytest.mark.parametrize("kind", ["file", "folder", "broken link"])
def test_what_is_no_corpus_is_refused(tmp_path, kind):
    target = tmp_path / "target"
    if kind == "file":
        target.write_text("mine")
    elif kind == "folder":
        target.mkdir()
        (target / "mine.txt").write_text("mine")
    else:
        target.symlink_to(tmp_path / "nowhere")
    with pytest.raises(RefusedError, match=f"{target} exists and is not a prepared corpus"):
        existing_corpus(target, source=SOURCE)

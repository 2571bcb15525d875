"""Reading a corpus: one sequence of tokens whatever the shards, and every damage named."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mars.config.errors import RefusedError
from mars.data.corpus import Corpus, Tokens, load_tokenizer
from mars.data.manifest import File, read_manifest
from mars.data.tokenizers import ByteTokenizer, make_tokenizer
from mars.data.writer import write_corpus

DATA = Path(os.environ.get("MARS_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("data") / "corpus"
    encode = ByteTokenizer().encode
    write_corpus(
        [("train", encode("some text to learn")), ("validation", encode("and to hold out"))],
        out,
        tokenizer=ByteTokenizer(),
        source={"kind": "test"},
        skipped={},
        shard_tokens=10,
    )
    return out


@pytest.fixture
def folder(written, tmp_path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(written, tmp_path / "corpus"))


def edit(folder: Path, **changes) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# Tokens.


@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(sum),
    starts=st.lists(st.integers(0, 60), max_size=4),
    length=st.integers(1, 12),
)
def test_windows_are_read_around_the_ring_of_shards(lengths, starts, length):
    values = np.arange(sum(lengths), dtype=np.uint16)
    tokens = Tokens(np.split(values, np.cumsum(lengths)[:-1]))
    assert len(tokens) == len(values)
    rows = tokens.windows(np.array(starts, dtype=np.int64), length=length)
    expected = (np.array(starts, dtype=np.int64)[:, None] + np.arange(length)) % len(values)
    assert rows.dtype == np.int64
    assert np.array_equal(rows, expected.reshape(-1, length))


@given(data=st.data(), lengths=st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_reading_spans_shards(data, lengths):
    values = np.arange(sum(lengths), dtype=np.uint16)
    tokens = Tokens(np.split(values, np.cumsum(lengths)[:-1]))
    start = data.draw(st.integers(0, len(values)))
    stop = data.draw(st.integers(start, len(values)))
    assert np.array_equal(tokens.read(start, stop), values[start:stop])


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 1), (0, 4)])
def test_reading_outside_is_an_error(start, stop):
    with pytest.raises(IndexError, match=f"tokens {start} to {stop} of 3"):
        Tokens([np.arange(3)]).read(start, stop)


def test_what_is_read_is_a_copy_and_the_files_stay(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    corpus = Corpus.open(folder)
    corpus.train.read(0, 5)[:] = 7
    with pytest.raises(ValueError, match="read-only"):
        corpus.document_ends("train")[0] = 7
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


# Opening.


def test_an_intact_corpus_opens_and_verifies(folder):
    corpus = Corpus.open(str(folder))
    corpus.verify()
    assert len(corpus.train) == 19
    assert corpus.tokenizer.decode(corpus.train.read(0, 18)) == "some text to learn"
    assert corpus.digest == json.loads((folder / "manifest.json").read_text())["digest"]


def test_a_folder_without_manifest_is_named(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(RefusedError, match=f"{path} holds no prepared corpus; .*mars prepare"):
            Corpus.open(path)


@pytest.mark.parametrize("name", ["train-00001.bin", "validation-documents.bin"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(RefusedError, match=f"{folder / name} is missing"):
        Corpus.open(folder)


@pytest.mark.parametrize("name", ["train-00001.bin", "train-documents.bin"])
def test_a_truncated_file_is_named_with_its_sizes(folder, name):
    size = (folder / name).stat().st_size
    os.truncate(folder / name, size - 1)
    with pytest.raises(RefusedError, match=f"{name} has {size - 1} bytes, .* says {size}"):
        Corpus.open(folder)


def test_a_file_lost_after_opening_is_named(folder):
    corpus = Corpus.open(folder)
    (folder / "train-00000.bin").unlink()
    with pytest.raises(RefusedError, match=r"train-00000\.bin is missing"):
        corpus.verify()


@settings(max_examples=40)
@given(position=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_every_flipped_bit_is_found(written, tmp_path_factory, position, bit):
    folder = Path(shutil.copytree(written, tmp_path_factory.mktemp("flip") / "corpus"))
    files = sorted(path for path in folder.iterdir() if path.suffix == ".bin")
    path = files[position % len(files)]
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= 1 << bit
    path.write_bytes(content)
    with pytest.raises(RefusedError, match=f"{path.name} is damaged"):
        Corpus.open(folder).verify()
    shutil.rmtree(folder)


# Manifests.


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xff"])
def test_an_unreadable_manifest_is_named(folder, content):
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(RefusedError, match=r"manifest\.json cannot be read"):
        Corpus.open(folder)


@pytest.mark.parametrize("content", ["[]", "3", "{}", '{"format": "something else"}'])
def test_a_foreign_manifest_is_named(folder, content):
    (folder / "manifest.json").write_text(content)
    with pytest.raises(RefusedError, match=r"manifest\.json is not that of a prepared corpus"):
        Corpus.open(folder)


def test_another_version_is_named(folder):
    edit(folder, version=2)
    with pytest.raises(RefusedError, match="has version 2 of the format, this release reads 1"):
        Corpus.open(folder)


def damaged(folder: Path) -> list[dict]:
    """Return edits after which a manifest contradicts itself."""
    content = json.loads((folder / "manifest.json").read_text())
    splits, train = content["splits"], content["splits"]["train"]
    shard = train["shards"][0]

    def with_train(**changes) -> dict:
        return {"splits": splits | {"train": train | changes}}

    return [
        {"digest": "0" * 64},
        {"dtype": "uint32"},
        {"vocab_size": "many"},
        {"splits": {"train": train}},
        {"splits": None},
        {"tokenizer_files": [{"name": "a"}]},
        with_train(tokens=20),
        with_train(documents=0),
        with_train(shards=[]),
        with_train(shards=[shard | {"more": 1}]),
        with_train(shards=[shard | {"sha256": "0" * 64}, *train["shards"][1:]]),
        with_train(shards=[shard | {"name": "../secret"}, *train["shards"][1:]]),
    ]


@pytest.mark.parametrize("number", range(12))
def test_an_edited_manifest_is_named(folder, number):
    edits = damaged(folder)
    assert len(edits) == 12
    edit(folder, **edits[number])
    with pytest.raises(RefusedError, match=r"manifest\.json has been edited") as caught:
        Corpus.open(folder)
    assert "\n" not in str(caught.value)


def test_a_manifest_reaches_no_file_outside_its_folder(folder):
    manifest = read_manifest(folder)
    outside = (File("../secret", "0" * 64),)
    forged = dataclasses.replace(manifest, tokenizer_files=outside)  # its digest fits
    (folder / "manifest.json").write_text(forged.to_json())
    with pytest.raises(RefusedError, match="contradictory file names"):
        Corpus.open(folder)


# The tokenizer of a corpus.


def test_bytes_need_only_the_manifest(folder):
    for path in folder.glob("*.bin"):
        path.unlink()
    assert load_tokenizer(folder).decode([116, 111, 256]) == "to<|endoftext|>"


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no data at {DATA}")
def test_a_folder_brings_its_gpt2(tmp_path, monkeypatch):
    gpt2 = make_tokenizer("gpt2", bpe=DATA / "gpt2-bpe")
    documents = [(split, gpt2.encode("hello world")) for split in ("train", "validation")]
    out = tmp_path / "corpus"
    corpus = write_corpus(documents, out, tokenizer=gpt2, source={}, skipped={})
    assert corpus.train.read(0, 3).tolist() == [31373, 995, 50256]

    monkeypatch.setattr("tiktoken.get_encoding", None)  # neither cache nor network
    moved = out.rename(tmp_path / "moved")
    assert load_tokenizer(moved).encode("hello world").tolist() == [31373, 995]
    with (moved / "gpt2.tiktoken").open("a") as file:
        file.write("aGVsbG8= 50256\n")
    with pytest.raises(RefusedError, match=r"gpt2\.tiktoken does not hold GPT-2's BPE"):
        load_tokenizer(moved)
    with pytest.raises(RefusedError, match=r"gpt2\.tiktoken is damaged"):
        Corpus.open(moved).verify()
    (moved / "gpt2.tiktoken").unlink()
    with pytest.raises(RefusedError, match=r"gpt2\.tiktoken is missing"):
        Corpus.open(moved)


def test_preparing_imports_neither_torch_nor_tiktoken_before_it_is_asked():
    program = """
import sys
import mars.data.prepare
print("torch" in sys.modules, "tiktoken" in sys.modules)
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]

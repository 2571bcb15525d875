"""Preparing corpora: what goes in, what is left out, which side of the split it lands on."""

import os
import shutil
import sysconfig
import tempfile
from collections import namedtuple
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mars.config.errors import RefusedError
from mars.data import prepare
from mars.data.corpus import Corpus, load_tokenizer
from mars.data.prepare import prepare_stdlib, prepare_text

DATA = Path(os.environ.get("MARS_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
WIKITEXT, BPE = DATA / "wikitext-2", DATA / "gpt2-bpe"
needs_data = pytest.mark.skipif(not WIKITEXT.is_dir(), reason=f"no data at {DATA}")


def silent(_: str) -> None:
    """Hear nothing."""


def text(inputs, out, **options) -> Corpus:
    options.setdefault("tokenizer", "bytes")
    options.setdefault("tell", silent)
    return prepare_text(inputs, out, **options)


def contents(corpus: Corpus, split: str) -> list[bytes]:
    """Return the documents of a split."""
    ends = corpus.document_ends(split).tolist()
    tokens = getattr(corpus, split)
    pairs = zip([0, *ends], ends, strict=False)
    return [bytes(tokens.read(start, end - 1).tolist()) for start, end in pairs]


@pytest.fixture
def files(tmp_path) -> list[Path]:
    """Sixty small files in a folder."""
    (tmp_path / "text").mkdir()
    paths = [tmp_path / "text" / f"{number:02}.txt" for number in range(60)]
    for number, path in enumerate(paths):
        path.write_text(f"document {number}")
    return paths


# The split.


def test_the_split_is_the_same_in_any_order(files, tmp_path):
    forward = text(files, tmp_path / "forward", validation_fraction=0.3)
    backward = text(files[::-1], tmp_path / "backward", validation_fraction=0.3)
    for split in ("train", "validation"):
        assert contents(forward, split) == contents(backward, split)[::-1]
    assert len(contents(forward, "train")) + len(contents(forward, "validation")) == 60


def test_more_documents_move_none(files, tmp_path):
    few = text(files[:40], tmp_path / "few", validation_fraction=0.3)
    all_ = text(files, tmp_path / "all", validation_fraction=0.3)
    for split in ("train", "validation"):
        assert set(contents(few, split)) < set(contents(all_, split))


@pytest.mark.usefixtures("files")
def test_copies_of_a_document_lie_on_one_side(tmp_path):
    copies = shutil.copytree(tmp_path / "text", tmp_path / "copies")
    corpus = text([tmp_path / "text", Path(copies)], tmp_path / "out", validation_fraction=0.3)
    train, validation = contents(corpus, "train"), contents(corpus, "validation")
    assert len(train) + len(validation) == 120
    assert not set(train) & set(validation)


@settings(max_examples=20)
@given(fraction=st.floats(0.2, 0.8))
def test_the_fraction_is_about_that_of_the_documents(fraction):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text"
        path.write_text("|".join(f"document {number}" for number in range(400)))
        corpus = text([path], Path(folder) / "out", separator="|", validation_fraction=fraction)
        # The standard deviation of a share of 400 is at most 0.025; five of them.
        assert abs(len(contents(corpus, "validation")) / 400 - fraction) < 0.125


def test_a_split_left_empty_is_refused_with_the_way_out(files, tmp_path):
    match = r"none of 1 documents is for validation .*name files for validation.*separator"
    with pytest.raises(RefusedError, match=match):
        text(files[:1], tmp_path / "out")
    with pytest.raises(RefusedError, match="is for train"):
        text(files[:1], tmp_path / "out", validation=files[:1])
    assert not (tmp_path / "out").exists()


def test_named_validation_is_not_trained_on(files, tmp_path):
    corpus = text([tmp_path / "text"], tmp_path / "out", validation=files[3:5])
    assert contents(corpus, "validation") == [b"document 3", b"document 4"]
    assert len(contents(corpus, "train")) == 58
    assert not set(contents(corpus, "train")) & set(contents(corpus, "validation"))


# Documents.


def test_a_separator_divides_files(tmp_path):
    (tmp_path / "a").write_text("one||two|| \n||three||")
    (tmp_path / "b").write_text("four")
    (tmp_path / "c").write_text("")
    corpus = text(
        [tmp_path / "a", tmp_path / "c"],
        tmp_path / "out",
        separator="||",
        validation=[tmp_path / "b"],
    )
    assert contents(corpus, "train") == [b"one", b"two", b"three"]
    assert contents(corpus, "validation") == [b"four"]
    assert corpus.manifest.skipped == {"blank_documents": 3}


def test_folders_are_walked_in_order_without_what_is_hidden(tmp_path):
    for name in ("in/b/x.md", "in/a.txt", "in/.git/object", "in/b/.swap", "held/out"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    corpus = text([tmp_path / "in"], tmp_path / "out", validation=[tmp_path / "held"])
    assert contents(corpus, "train") == [b"in/a.txt", b"in/b/x.md"]


def test_a_file_named_twice_is_read_once(files, tmp_path):
    inputs = [files[0], files[0], tmp_path / "text" / ".." / "text" / "00.txt"]
    corpus = text(inputs, tmp_path / "out", validation=files[1:2])
    assert contents(corpus, "train") == [b"document 0"]


def test_bytes_are_kept_as_they_are(tmp_path):
    content = bytes(range(256)) + b"\r\n\xef\xbb\xbf"
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "b").write_bytes(b"b")
    corpus = text([tmp_path / "a"], tmp_path / "out", validation=[tmp_path / "b"])
    assert contents(corpus, "train") == [content]


@needs_data
@pytest.mark.parametrize(("separator", "byte"), [(None, 9), ("|", 9)])
def test_what_is_not_utf8_is_named_with_its_byte(tmp_path, separator, byte):
    (tmp_path / "bad").write_bytes(b"abc|defg|\xffh")
    (tmp_path / "good").write_text("good")
    with pytest.raises(RefusedError, match=f"{tmp_path / 'bad'} is not UTF-8 at byte {byte};"):
        text(
            [tmp_path / "bad"],
            tmp_path / "out",
            tokenizer="gpt2",
            bpe=BPE,
            separator=separator,
            validation=[tmp_path / "good"],
        )
    assert {path.name for path in tmp_path.iterdir()} == {"bad", "good"}


# What is refused before anything is written.


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"validation_fraction": 0.0}, "validation_fraction must lie between 0 and 1, got 0.0"),
        ({"validation_fraction": 1.0}, "got 1.0"),
        ({"separator": ""}, "empty separator"),
        ({"shard_tokens": 0}, "shard_tokens must be at least 1, got 0"),
        ({"tokenizer": "words"}, "no tokenizer 'words'"),
        ({"validation_fraction": 0.1, "validation": [Path("a")]}, "exclude each other"),
    ],
)
def test_impossible_options_are_refused(files, tmp_path, options, match):
    with pytest.raises(RefusedError, match=match):
        text(files, tmp_path / "out", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_an_absent_or_empty_input_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("absent", "empty"):
        with pytest.raises(RefusedError, match=f"{tmp_path / name} is neither a file nor"):
            text([tmp_path / name], tmp_path / "out")


@pytest.mark.usefixtures("files")
def test_a_target_inside_an_input_is_refused(tmp_path):
    with pytest.raises(RefusedError, match="lies in the input"):
        text([tmp_path / "text"], tmp_path / "text" / "out")


def test_a_full_disk_is_refused_beforehand(files, tmp_path, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1000))
    with pytest.raises(RefusedError, match=r"needs about 0\.00 GB and 0\.00 GB are free"):
        text(files, tmp_path / "out", validation_fraction=0.3)
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_a_target_below_a_file_is_refused(files):
    with pytest.raises(RefusedError, match=r"cannot be made .*; choose another folder"):
        text(files, files[0] / "below" / "out", validation_fraction=0.3)


@pytest.mark.parametrize("refused", [os.R_OK, os.W_OK | os.X_OK])
def test_missing_permissions_are_named(files, tmp_path, monkeypatch, refused):
    # Asked of the system, which grants everything to root.
    monkeypatch.setattr(os, "access", lambda path, mode: mode != refused)
    with pytest.raises(RefusedError, match=r"cannot be (read|written to)"):
        text(files, tmp_path / "out", validation_fraction=0.3)


# Preparing again.


def test_the_same_again_is_returned_unchanged(files, tmp_path):
    options = {"validation_fraction": 0.3}
    once = text(files, tmp_path / "deep" / "out", **options)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "deep" / "out").iterdir()}
    told: list[str] = []
    again = text(files, tmp_path / "deep" / "out", tell=told.append, **options)
    assert again.digest == once.digest
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "deep" / "out").iterdir()} == before
    assert told == [f"{tmp_path / 'deep' / 'out'} is there already, made from the same text"]


def test_anything_else_is_refused(files, tmp_path):
    options = {"validation_fraction": 0.3}
    text(files, tmp_path / "out", **options)
    with pytest.raises(RefusedError, match=r"its separator differ"):
        text(files, tmp_path / "out", separator="|", **options)
    with pytest.raises(RefusedError, match=r"its shard_tokens differ"):
        text(files, tmp_path / "out", shard_tokens=100, **options)


def test_one_changed_byte_is_another_corpus(files, tmp_path):
    text(files[1:], tmp_path / "out", validation=files[:1])
    files[9].write_text("Document 9")
    with pytest.raises(RefusedError, match=r"\(its sha256 differ\)"):
        text(files[1:], tmp_path / "out", validation=files[:1])


def test_twice_prepared_digests_are_equal(files, tmp_path):
    once, twice = (
        text(files, tmp_path / name, validation_fraction=0.3, shard_tokens=50)
        for name in ("a", "b")
    )
    assert once.digest == twice.digest
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_progress_is_told(files, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "_SECONDS_BETWEEN_NEWS", 0.0)
    told: list[str] = []
    corpus = text(files, tmp_path / "out", validation_fraction=0.3, tell=told.append)
    assert told[0] == "encoding 0.0 MB in 60 documents with bytes"
    assert told[1:-1] == ["0.0 of 0.0 MB"] * 60
    assert told[-1].startswith(f"{tmp_path / 'out'} holds {len(corpus.train)} tokens for training")


# WikiText-2.


@needs_data
def test_wikitext_has_its_known_size_in_gpt2_tokens(tmp_path):
    corpora = [
        text(
            [WIKITEXT / "train.txt"],
            tmp_path / name,
            tokenizer="gpt2",
            bpe=BPE,
            validation=[WIKITEXT / "valid.txt"],
            shard_tokens=1_000_000,
        )
        for name in ("a", "b")
    ]
    train = corpora[0].manifest.splits["train"]
    assert (train.tokens, train.documents, len(train.shards)) == (2_448_382 + 1, 1, 3)
    assert corpora[0].digest == corpora[1].digest
    corpora[0].verify()
    tokenizer = load_tokenizer(tmp_path / "a")
    assert tokenizer.decode(tokenizer.encode("The game 's")) == "The game 's"
    read = tokenizer.decode(corpora[0].train.read(0, train.tokens - 1))
    assert read == (WIKITEXT / "train.txt").read_bytes().decode()


# The standard library.


@pytest.fixture
def library(tmp_path, monkeypatch) -> Path:
    """A small standard library."""
    root = tmp_path / "tests" / "lib"  # a folder's own place says nothing about its files
    names = [f"module{number}.py" for number in range(80)]
    names += ["json/decoder.py", "test/test_json.py", "ctypes/tests/a.py", "idlelib/idle_test/b.py"]
    names += ["site-packages/torch.py", "__pycache__/c.py", "readme.txt", "_sysconfigdata__x.py"]
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"# {name}")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(root)})
    return root


@pytest.mark.usefixtures("library")
def test_the_library_is_taken_without_its_tests(tmp_path):
    corpus = prepare_stdlib(tmp_path / "out", tell=silent)
    found = contents(corpus, "train") + contents(corpus, "validation")
    expected = {f"# module{number}.py".encode() for number in range(80)} | {b"# json/decoder.py"}
    assert sorted(found) == sorted(expected)
    assert corpus.tokenizer.name == "bytes"


def test_unreadable_modules_are_counted(library, tmp_path, monkeypatch):
    denied = str(library / "module7.py")
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != denied)
    corpus = prepare_stdlib(tmp_path / "out", tell=silent)
    assert corpus.manifest.skipped == {"blank_documents": 0, "unreadable_files": 1}


def test_a_library_without_source_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(RefusedError, match="holds no source of the standard library"):
        prepare_stdlib(tmp_path / "out", tell=silent)


def test_this_python_has_enough_to_train_on(tmp_path):
    corpus = prepare_stdlib(tmp_path / "out", tell=silent)
    again = prepare_stdlib(tmp_path / "again", tell=silent)
    assert corpus.digest == again.digest
    assert corpus.manifest.source["kind"] == "stdlib"
    assert len(corpus.train) > 5_000_000
    assert 0.01 < len(corpus.validation) / len(corpus.train) < 0.15
    assert b"class Decimal" in b"".join(contents(corpus, "train") + contents(corpus, "validation"))

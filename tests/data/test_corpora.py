"""The corpora of the papers from local files: one content, one result; every fault is told."""

import json
import os
import re
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.row_files import (
    BPE,
    FORMATS,
    SEPARATOR,
    WIKITEXT,
    compressed,
    contents,
    files_of,
    generated,
    json_lines,
    make,
    write_rows,
)
from mars.config.errors import RefusedError
from mars.data import building
from mars.data.corpora import CorpusRequest
from mars.data.corpus import Corpus

needs_data = pytest.mark.skipif(not WIKITEXT.is_dir(), reason=f"no data at {WIKITEXT}")

SOME = [f"document {number} — ☃" for number in range(60)]


# One content, one result.


def test_every_format_and_number_of_processes_gives_the_same_tokens(tmp_path):
    documents = generated(0.5)
    digests, hashes = set(), set()
    for kind in FORMATS:
        path = write_rows(documents, tmp_path, kind)
        processes = 3 if kind in ("parquet", "jsonl.zst") else 1
        corpus = make(path, tmp_path / f"out-{kind}", processes=processes, piece_bytes=30_000)
        digests.add(corpus.digest)
        hashes.add(corpus.manifest.source["measured"]["documents_sha256"])
    assert len(digests) == len(hashes) == 1
    made = contents(corpus, "train") + contents(corpus, "validation")
    assert sorted(made) == sorted(text.encode() for text in documents)


@needs_data
def test_generated_text_has_one_digest_through_parquet_zst_and_text(tmp_path):
    documents = generated(5)
    options = {"tokenizer": "gpt2", "bpe": BPE, "shard_tokens": 500_000}
    corpora = [
        make(write_rows(documents, tmp_path, kind), tmp_path / f"out-{kind}", **options, **how)
        for kind, how in [
            ("parquet", {"processes": 2}),
            ("jsonl.zst", {"processes": 2, "piece_bytes": 300_000}),
            ("txt", {"processes": 1}),
        ]
    ]
    assert len({corpus.digest for corpus in corpora}) == 1
    assert len(corpora[0].manifest.splits["train"].shards) > 3
    for corpus in corpora:
        corpus.verify()


def articles() -> list[str]:
    """Return WikiText-2's training articles."""
    text = (WIKITEXT / "train.txt").read_text()
    starts = [found.start() for found in re.finditer("\n = (?!= )", text)]
    return [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]


@needs_data
def test_wikitext_has_one_digest_through_parquet_zst_and_text(tmp_path):
    documents = articles()
    assert len(documents) > 500
    options = {"tokenizer": "gpt2", "bpe": BPE, "processes": 2, "validation_fraction": 0.02}
    corpora = [
        make(write_rows(documents, tmp_path, kind), tmp_path / f"out-{kind}", **options)
        for kind in ("parquet", "jsonl.zst", "txt")
    ]
    assert len({corpus.digest for corpus in corpora}) == 1
    corpus = corpora[0]
    tokens, tokenizer = corpus.train, corpus.tokenizer
    ends = corpus.document_ends("train")
    # The text itself, and the number of tokens that each document has by itself.
    first = tokenizer.decode(tokens.read(0, int(ends[0]) - 1))
    assert first in documents
    lengths = {len(tokenizer.encode(text)) + 1 for text in documents}
    assert set(np.diff(ends, prepend=0).tolist()) <= lengths
    assert len(ends) + len(corpus.document_ends("validation")) == len(documents)


def test_the_split_is_that_of_the_published_fraction_and_of_mars_prepare_text(tmp_path):
    from mars.data.prepare import prepare_text

    fraction = CorpusRequest("openwebtext", tmp_path).fraction
    assert fraction == 0.0005
    assert CorpusRequest("fineweb-edu", tmp_path).fraction == 0.001
    documents = [f"document {number}" for number in range(40_000)]
    path = write_rows(documents, tmp_path, "txt")
    corpus = make(path, tmp_path / "out", validation_fraction=None)
    # 20 expected, the standard deviation is 4.5; four of them.
    assert 2 < len(contents(corpus, "validation")) < 38
    same = prepare_text(
        [path],
        tmp_path / "text",
        tokenizer="bytes",
        separator=SEPARATOR,
        validation_fraction=fraction,
        tell=lambda line: None,
    )
    assert same.digest == corpus.digest


def test_many_files_are_read_in_sorted_order_small_ones_together(tmp_path):
    for number, text in enumerate(SOME):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{number:03}.txt").write_text(text)
    corpus = make(tmp_path / "in", tmp_path / "out")
    assert corpus.manifest.source["files"] == 60
    train = [int(text.split()[1]) for text in contents(corpus, "train")]
    assert train == sorted(train)
    assert len(train) + len(contents(corpus, "validation")) == 60


def test_another_column_is_read_by_name(tmp_path):
    digests = {
        make(write_rows(SOME, tmp_path, kind, column="body"), tmp_path / kind, column="body").digest
        for kind in ("parquet", "jsonl")
    }
    assert digests == {make(write_rows(SOME, tmp_path, "txt"), tmp_path / "txt").digest}


# What is wrong with rows is counted.


BAD_LINES = {
    b'{"text": "half': "bad_json",
    b"not json": "bad_json",
    b'{"body": "x"}': "no_column",
    b'["text"]': "no_column",
    b'{"text": 3}': "not_text",
    b'{"text": null}': "not_text",
    b'{"text": "\xff"}': "not_utf8",
    b'{"text": "\\ud800"}': "not_utf8",
    b"[" * 100_000: "bad_json",
}


def test_every_kind_of_malformed_line_is_counted_with_its_row(tmp_path):
    lines = json_lines(SOME).splitlines()
    for place, bad in enumerate(BAD_LINES):
        lines.insert(5 * place + 3, bad)
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(lines) + b"\n \n")
    corpus = make(tmp_path / "rows.jsonl", tmp_path / "out", max_malformed=0.5, piece_bytes=500)
    assert corpus.manifest.skipped == {
        "blank_documents": 1,
        "bad_json": 3,
        "no_column": 2,
        "not_text": 2,
        "not_utf8": 2,
    }
    measured = corpus.manifest.source["measured"]
    assert measured["rows"] == len(SOME) + len(BAD_LINES) + 1
    assert measured["malformed_examples"] == [
        f"rows.jsonl row {5 * place + 4}: {fault}"
        for place, fault in enumerate(list(BAD_LINES.values())[:5])
    ]
    assert corpus.digest == make(write_rows(SOME, tmp_path, "txt"), tmp_path / "clean").digest


def test_nulls_blanks_and_broken_text_in_parquet_are_counted(tmp_path):
    values = [b"good %d" % number for number in range(50)]
    values[7], values[20], values[33] = None, b" \n", b"caf\xe9 au lait"
    # Arrow does not look whether its strings are UTF-8.
    column = pa.array(values, pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": column}), tmp_path / "rows.parquet", row_group_size=10)
    corpus = make(tmp_path / "rows.parquet", tmp_path / "out", max_malformed=0.1, **gpt2_or_skip())
    assert corpus.manifest.skipped == {"blank_documents": 1, "not_text": 1, "not_utf8": 1}
    assert corpus.manifest.source["measured"]["malformed_examples"] == [
        "rows.parquet row 8: not_text",
        "rows.parquet row 34: not_utf8",
    ]


def gpt2_or_skip() -> dict[str, object]:
    if not BPE.is_dir():
        pytest.skip(f"no data at {BPE}")
    return {"tokenizer": "gpt2", "bpe": BPE}


def test_too_many_malformed_rows_are_refused_and_leave_nothing(tmp_path):
    lines = json_lines(SOME) + b"broken\nbroken\n"
    compressed(lines, tmp_path / "rows.jsonl")
    match = r"2 of 62 rows are malformed, more than 1\.00% \(rows\.jsonl row 61: bad_json\)"
    with pytest.raises(RefusedError, match=match):
        make(tmp_path / "rows.jsonl", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_the_wrong_column_is_refused_long_before_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "_ENOUGH_ROWS", 20)
    write_rows(SOME, tmp_path, "jsonl")
    seen = []
    with pytest.raises(RefusedError, match="rows are malformed"):
        make(
            tmp_path / "rows.jsonl",
            tmp_path / "out",
            column="body",
            piece_bytes=300,
            watch=seen.append,
        )
    assert seen[-1].tally.rows < 30


def test_nothing_for_a_split_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(RefusedError, match=r"no document is for validation; .* change"):
        make(write_rows(SOME[:3], tmp_path, "txt"), tmp_path / "out", validation_fraction=1e-9)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.txt"]


# What is wrong with files is refused.


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst", "txt.gz", "txt.zst"])
@pytest.mark.parametrize("kept", [0.5, 0.999])
def test_a_truncated_stream_is_refused_with_its_row(tmp_path, kind, kept):
    path = write_rows(generated(0.3), tmp_path, kind)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(RefusedError, match=rf"{path} is truncated or damaged after row \d+ \(byte"):
        make(path, tmp_path / "out", piece_bytes=10_000)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_damage_in_a_gz_is_refused(tmp_path):
    path = write_rows(SOME, tmp_path, "jsonl.gz")
    content = bytearray(path.read_bytes())
    content[-6] ^= 1  # in the checksum
    path.write_bytes(content)
    with pytest.raises(RefusedError, match="truncated or damaged after row 60"):
        make(path, tmp_path / "out", piece_bytes=10)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_truncated_parquet_is_refused_before_anything_is_written(tmp_path, processes):
    whole = write_rows(SOME, tmp_path, "parquet", name="a")
    path = write_rows(SOME, tmp_path, "parquet", name="b")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(RefusedError, match=f"{path} is truncated or damaged: its footer cannot"):
        make([whole, path], tmp_path / "out", processes=processes)
    assert {each.name for each in tmp_path.iterdir()} == {"a.parquet", "b.parquet"}


@pytest.mark.parametrize("processes", [1, 2])
def test_a_parquet_damaged_inside_is_refused_with_its_row(tmp_path, processes):
    path = write_rows([text * 50 for text in SOME * 5], tmp_path, "parquet")
    start = pq.ParquetFile(path).metadata.row_group(1).column(1).data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + 40] = bytes(40)
    path.write_bytes(content)
    match = rf"{path} is truncated or damaged: the row group of row 101 cannot be read"
    with pytest.raises(RefusedError, match=match):
        make(path, tmp_path / "out", processes=processes, piece_bytes=100)
    assert [each.name for each in tmp_path.iterdir()] == ["rows.parquet"]


@pytest.mark.parametrize(
    ("column", "match"),
    [("body", "has no column 'body' but id, text; name one"), ("id", "column 'id' holds int64")],
)
def test_a_parquet_without_such_text_is_refused(tmp_path, column, match):
    with pytest.raises(RefusedError, match=match):
        make(write_rows(SOME, tmp_path, "parquet"), tmp_path / "out", column=column)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst", "a.txt.gz", "a.parquet"])
def test_an_empty_file_that_cannot_be_empty_is_refused(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(RefusedError, match=f"{name} is empty"):
        make(tmp_path / name, tmp_path / "out")


def test_mixed_formats_are_refused(tmp_path):
    for kind in ("parquet", "txt"):
        write_rows(SOME, tmp_path / "in", kind)
    match = r"rows\.parquet is parquet and .*rows\.txt is text"
    with pytest.raises(RefusedError, match=match):
        make(tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"validation_fraction": 0.0}, "validation_fraction must lie between 0 and 1, got 0.0"),
        ({"max_malformed": 1.0}, "max_malformed must lie between 0 and 1, got 1.0"),
        ({"processes": 0}, "processes must be at least 1, got 0"),
        ({"shard_tokens": 0}, "shard_tokens must be at least 1, got 0"),
        ({"separator": ""}, "empty separator"),
        ({"separator": "|"}, "a separator is for text files"),
        ({"tokenizer": "words"}, "no tokenizer 'words'"),
    ],
)
def test_impossible_options_are_refused(tmp_path, options, match):
    path = write_rows(SOME, tmp_path, "jsonl")
    with pytest.raises(RefusedError, match=match):
        make(path, tmp_path / "out", **options)
    assert [each.name for each in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_column_of_text_files_is_refused(tmp_path):
    with pytest.raises(RefusedError, match="a column is for parquet and JSONL"):
        make(write_rows(SOME, tmp_path, "txt"), tmp_path / "out", column="body")


@pytest.mark.parametrize("kind", ["parquet", "jsonl.zst", "txt"])
def test_a_full_disk_is_refused_beforehand(tmp_path, monkeypatch, kind):
    path = write_rows(SOME, tmp_path, kind)
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100))
    with pytest.raises(RefusedError, match=r"needs about 0\.00 GB and 0\.00 GB are free; make"):
        make(path, tmp_path / "out")
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_the_estimate_of_disk_covers_the_corpus_and_not_much_more(tmp_path, monkeypatch):
    documents = generated(0.5)
    free = []
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(free[-1]))
    for kind in ("parquet", "jsonl", "txt"):
        path = write_rows(documents, tmp_path, kind)
        free.append(10**9)
        corpus = make(path, tmp_path / f"out-{kind}")
        shards = 2 * sum(split.tokens for split in corpus.manifest.splits.values())
        free.append(int(0.9 * shards))
        with pytest.raises(RefusedError, match="needs about"):
            make(path, tmp_path / f"again-{kind}")
        free.append(int(1.4 * shards))
        assert make(path, tmp_path / f"again-{kind}").digest == corpus.digest


# What is said.


def test_the_manifest_says_what_it_was_made_from(tmp_path):
    corpus = make(write_rows(SOME, tmp_path, "jsonl"), tmp_path / "out")
    source = corpus.manifest.source
    assert {key: source[key] for key in ("kind", "inputs", "files", "column", "validation")} == {
        "kind": "openwebtext",
        "inputs": ["rows.jsonl"],
        "files": 1,
        "column": "text",
        "validation": 0.2,
    }
    assert source["bytes"] == (tmp_path / "rows.jsonl").stat().st_size
    assert source["measured"]["text_bytes"] == sum(len(text.encode()) for text in SOME)
    assert Corpus.open(tmp_path / "out").digest == corpus.digest
    assert set(files_of(tmp_path / "out")) == {
        "manifest.json",
        *(f"{split}-{what}.bin" for split in ("train", "validation") for what in NAMES),
    }


NAMES = ("00000", "documents")


def test_progress_reaches_the_end_with_an_estimate_of_the_time_left(tmp_path):
    for kind in ("parquet", "jsonl.zst", "txt"):
        seen = []
        path = write_rows(generated(0.8), tmp_path, kind)
        make(path, tmp_path / f"out-{kind}", piece_bytes=20_000, watch=seen.append)
        assert len(seen) > (1 if kind == "parquet" else 5)
        done = [progress.tally.consumed for progress in seen]
        assert done == sorted(done)
        assert done[-1] > 0.8 * seen[-1].total_bytes == 0.8 * path.stat().st_size
        assert done[-1] <= path.stat().st_size
        assert all(progress.seconds_left >= 0 for progress in seen)


def test_the_same_again_is_returned_unchanged(tmp_path):
    path = write_rows(SOME, tmp_path, "jsonl")
    once = make(path, tmp_path / "out")
    os.utime(path, ns=(1, 1))  # when it was changed is nothing to a corpus that is made
    told = []
    assert make(path, tmp_path / "out", processes=2, tell=told.append).digest == once.digest
    assert told == [f"{tmp_path / 'out'} is there already, made from the same files"]


def test_anything_else_there_is_refused(tmp_path):
    path = write_rows(SOME, tmp_path, "jsonl")
    make(path, tmp_path / "out")
    with pytest.raises(RefusedError, match=r"holds another corpus \(its validation differ\)"):
        make(path, tmp_path / "out", validation_fraction=0.3)
    write_rows(SOME[1:], tmp_path, "jsonl")
    with pytest.raises(RefusedError, match=r"\(its bytes, files_sha256 differ\)"):
        make(path, tmp_path / "out")


def test_a_json_line_may_have_a_byte_order_mark_and_carriage_returns(tmp_path):
    content = b"\xef\xbb\xbf" + json_lines(SOME).replace(b"\n", b"\r\n")
    path = Path(tmp_path / "rows.jsonl")
    path.write_bytes(content)
    digest = make(path, tmp_path / "out").digest
    assert digest == make(write_rows(SOME, tmp_path, "txt"), tmp_path / "plain").digest
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["digest"] == digest

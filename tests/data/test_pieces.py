"""Cutting inputs: every byte in one piece, cuts where rows end, whatever the sizes."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.row_files import compressed, generated, json_lines, write_rows
from mars.config.errors import RefusedError
from mars.data.inputs import fingerprint, local_inputs, make_input
from mars.data.pieces import _cut, pieces
from mars.data.rows import rows

SOME = [f"document {number}" for number in range(30)]


def cut(paths, *, out, separator=None, piece_bytes=1 << 20):
    inputs = local_inputs(paths, out=out)
    return list(pieces(inputs, column="text", separator=separator, piece_bytes=piece_bytes))


def read(made, separator=None) -> list[tuple[str, int, bytes]]:
    return [
        (span.input.name, number, content)
        for piece in made
        for span in piece.spans
        for number, content in rows(span, column="text", separator=separator)
    ]


@settings(max_examples=200)
@given(
    content=st.text("ab\n").map(str.encode),
    end=st.sampled_from([b"\n", b"\n\n", b"aba", b"ab", b"\n\n\n"]),
    size=st.integers(1, 9),
)
def test_cuts_are_those_of_splitting_the_whole(content, end, size):
    blocks = [content[start : start + size] for start in range(0, len(content), size)]
    made = list(_cut(iter(blocks), end))
    assert b"".join(made) == content
    assert all(part.endswith(end) for part in made[:-1])
    # Each part but the last ends with an end, after which splitting sees one more, empty.
    pieced = [text for part in made[:-1] for text in part.split(end)[:-1]]
    pieced += made[-1].split(end) if made else [b""]
    assert pieced == content.split(end)


@given(content=st.binary(max_size=50), size=st.integers(1, 9))
def test_without_ends_a_file_is_one(content, size):
    blocks = [content[start : start + size] for start in range(0, len(content), size)]
    assert list(_cut(iter(blocks), None)) == [content]


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "jsonl.zst", "txt", "txt.gz"])
@pytest.mark.parametrize("piece_bytes", [1, 1000, 50_000, 1 << 30])
def test_rows_are_the_same_for_any_size_of_piece(tmp_path, kind, piece_bytes):
    documents = generated(0.1)
    paths = [write_rows(documents, tmp_path, kind, name=name) for name in ("a", "b")]
    separator = b"\x1e"
    made = cut(paths, out=tmp_path / "out", separator=separator, piece_bytes=piece_bytes)
    assert read(made, separator) == [
        (path.name, number, text.encode())
        for path in paths
        for number, text in enumerate(documents, start=1)
    ]
    if piece_bytes == 1 << 30:
        assert len(made) == 1
    if piece_bytes == 1000 and kind != "parquet":
        assert len(made) > len(documents)  # of two files, most documents larger than that
    size = sum(path.stat().st_size for path in paths)
    assert 0.9 * size < sum(piece.consumed for piece in made) <= size


def test_pieces_are_cut_alike_each_time(tmp_path):
    path = write_rows(generated(0.2), tmp_path, "jsonl.zst")
    once, twice = (cut([path], out=tmp_path / "out", piece_bytes=9_000) for _ in range(2))
    assert once == twice
    assert len(once) > 5


def test_streams_of_several_frames_are_read_to_the_end(tmp_path):
    content = json_lines(SOME)
    for name in ("a.jsonl.gz", "b.jsonl.zst"):
        path = compressed(content, tmp_path / name)
        path.write_bytes(path.read_bytes() * 3)
        assert len(read(cut([path], out=tmp_path / "out"))) == 90


def test_an_empty_text_file_is_a_blank_document(tmp_path):
    for name, content in [("a.txt", b""), ("b.txt", b"b")]:
        (tmp_path / name).write_bytes(content)
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert read(cut(paths, out=tmp_path / "out")) == [("a.txt", 1, b""), ("b.txt", 1, b"b")]


def test_the_last_row_needs_no_end(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(json_lines(SOME).removesuffix(b"\n"))
    assert len(read(cut([tmp_path / "a.jsonl"], out=tmp_path / "out"))) == 30


@pytest.mark.parametrize(
    ("name", "format_", "codec"),
    [
        ("a.parquet", "parquet", "plain"),
        ("a.b.PARQUET", "parquet", "plain"),
        ("a.jsonl", "jsonl", "plain"),
        ("a.ndjson.gz", "jsonl", "gz"),
        ("a.json.zst", "jsonl", "zst"),
        ("a.txt.zst", "text", "zst"),
        ("a.gz", "text", "gz"),
        ("README", "text", "plain"),
        ("hf://datasets/a/b@0/c/000_00000.parquet", "parquet", "plain"),
    ],
)
def test_a_name_says_what_is_in_a_file(name, format_, codec):
    made = make_input(name, size=1)
    assert (made.format, made.codec) == (format_, codec)
    assert made.name == Path(name).name
    assert made.is_remote == name.startswith("hf://")


def test_parquet_compressed_from_outside_is_refused():
    with pytest.raises(RefusedError, match=r"a\.parquet\.gz is compressed from outside"):
        make_input("a.parquet.gz", size=1)


def test_a_fingerprint_is_of_names_sizes_and_if_asked_times():
    one, other = (make_input("x/a.txt", size=3, changed=when) for when in (1, 2))
    assert fingerprint([one], with_times=False) == fingerprint([other], with_times=False)
    assert fingerprint([one], with_times=True) != fingerprint([other], with_times=True)
    elsewhere = make_input("y/a.txt", size=3, changed=1)
    assert fingerprint([one], with_times=True) == fingerprint([elsewhere], with_times=True)
    for different in (make_input("x/a.txt", size=4), make_input("x/b.txt", size=3)):
        assert fingerprint([one], with_times=False) != fingerprint([different], with_times=False)

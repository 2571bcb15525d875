"""Encoding pieces, in one process and in several: what comes out, in which order, what is told."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from data.row_files import generated, write_rows
from mars.config.errors import FailedError, RefusedError
from mars.data import workers
from mars.data.encoding import Encoder, Encoding, Tally
from mars.data.inputs import Input
from mars.data.pieces import Piece, Span, pieces
from mars.data.shards import ended
from mars.data.tokenizers import ByteTokenizer
from mars.data.workers import encoded_in_order, usable_cores

BYTES = Encoding("bytes", None, "text", b"|", 0.3)


def piece(content: bytes, *, name: str = "a.txt", first_row: int = 0) -> Piece:
    source = Input(f"/data/{name}", name, "text", "plain", len(content))
    return Piece((Span(source, first_row, content, consumed=len(content)),))


class Unbounded(ByteTokenizer):
    """A tokenizer with an id that its vocabulary does not have."""

    def encode(self, text):
        ids = np.frombuffer(text, np.uint8).astype(np.uint32)
        return np.where(ids == ord("!"), 70_000, ids)


def test_a_token_beyond_the_vocabulary_is_refused_with_its_file_and_row():
    encoder = Encoder(BYTES, Unbounded())
    assert encoder(piece(b"one|two")).tally.documents == 2
    match = r"/data/a\.txt row 12: token 70000 lies beyond the vocabulary of 257"
    with pytest.raises(RefusedError, match=match):
        encoder(piece(b"one|two!|three", first_row=10))


def test_an_end_of_text_is_added_in_the_dtype_of_the_vocabulary():
    made = ended(np.array([1, 2], np.uint32), ByteTokenizer())
    assert (made.tolist(), made.dtype) == ([1, 2, 256], np.uint16)
    with pytest.raises(ValueError, match="token 65536 lies beyond"):
        ended(np.array([65536], np.uint32), ByteTokenizer())
    assert ended(np.array([], np.uint16), ByteTokenizer()).tolist() == [256]


def test_documents_go_to_splits_with_their_lengths():
    encoded = BYTES.encoder()(piece(b"|".join(b"document %d" % n for n in range(40)) + b"| |"))
    train, validation = encoded.lengths["train"], encoded.lengths["validation"]
    assert len(train) + len(validation) == len(encoded.digests) == 40
    assert 3 < len(validation) < 25
    for split, lengths in encoded.lengths.items():
        tokens = encoded.tokens[split]
        assert tokens[np.cumsum(lengths) - 1].tolist() == [256] * len(lengths)
        assert (tokens == 256).sum() == len(lengths)
    assert (encoded.tally.rows, encoded.tally.blank, encoded.tally.documents) == (41, 1, 40)
    assert encoded.tally.text_bytes == sum(len(b"document %d" % n) for n in range(40))


def test_a_piece_without_documents_is_empty():
    encoded = BYTES.encoder()(piece(b" | |"))
    assert encoded.tally == Tally(rows=2, blank=2, consumed=4)
    assert [len(tokens) for tokens in encoded.tokens.values()] == [0, 0]


def test_tallies_add_up_and_keep_the_first_examples():
    one = Tally(rows=3, malformed={"bad_json": 2}, examples=tuple("abcd"), consumed=5)
    other = Tally(rows=4, blank=1, malformed={"bad_json": 1, "not_text": 1}, examples=tuple("ef"))
    assert one + other == Tally(
        rows=7,
        blank=1,
        malformed={"bad_json": 3, "not_text": 1},
        examples=tuple("abcde"),
        consumed=5,
    )


# Several processes.


def encoded(many, processes):
    return list(encoded_in_order(iter(many), BYTES, encoder=BYTES.encoder(), processes=processes))


def test_the_order_is_that_of_the_pieces_however_long_each_takes():
    many = [piece(b"x" * size + b"|y%d" % place) for place, size in enumerate([9**6, 1, 9**5] * 9)]
    one, three = encoded(many, 1), encoded(many, 3)
    assert [each.digests for each in one] == [each.digests for each in three]
    assert [each.tokens["train"].tolist() for each in one[:2]] == [
        each.tokens["train"].tolist() for each in three[:2]
    ]


def test_pieces_are_not_read_far_ahead():
    read = []

    def every():
        for place in range(1000):
            read.append(place)
            yield piece(b"document %d" % place)

    results = encoded_in_order(every(), BYTES, encoder=BYTES.encoder(), processes=2)
    for _ in range(3):
        next(results)
    assert len(read) <= 3 + workers._WINDOW * 2
    results.close()


def test_no_pieces_are_no_results():
    assert encoded([], 2) == []


def test_a_refusal_in_another_process_is_raised_in_its_turn(tmp_path):
    path = write_rows(generated(0.1), tmp_path, "parquet")
    broken = Input(str(path), "rows.parquet", "parquet", "plain", 1)
    many = [piece(b"first"), Piece((Span(broken, 0, first_group=7, last_group=8),))]
    path.write_bytes(path.read_bytes()[:-9])
    results = encoded_in_order(
        iter([*many, piece(b"last")]), BYTES, encoder=BYTES.encoder(), processes=2
    )
    assert next(results).tally.documents == 1
    with pytest.raises(RefusedError, match=r"rows\.parquet is truncated or damaged"):
        next(results)


def children() -> list[int]:
    """Return the processes that this one has started through multiprocessing."""
    import multiprocessing

    return [process.pid for process in multiprocessing.active_children()]


def test_a_killed_process_is_a_failure_that_says_how_to_go_on():
    many = (piece(b"document %d" % place) for place in range(10**6))
    results = encoded_in_order(many, BYTES, encoder=BYTES.encoder(), processes=2)
    next(results)
    os.kill(children()[0], signal.SIGKILL)
    match = r"ended \(exit code -9\).*run the same command again to go on, or give fewer"
    with pytest.raises(FailedError, match=match):
        for _ in results:
            pass
    assert children() == []


def test_no_process_stays_behind_when_the_results_are_no_longer_wanted():
    many = (piece(b"document %d" % place) for place in range(10**6))
    results = encoded_in_order(many, BYTES, encoder=BYTES.encoder(), processes=2)
    next(results)
    assert len(children()) == 2
    results.close()
    assert children() == []


def test_two_pieces_larger_than_a_pipe_holds_do_not_block():
    many = [piece(b"x" * (3 << 20) + b"|%d" % place) for place in range(12)]
    began = time.monotonic()
    assert sum(each.tally.documents for each in encoded(many, 2)) == 24
    assert time.monotonic() - began < 60


def test_cores_are_those_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 5, 7}, raising=False)
    assert usable_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert usable_cores() == 4


def test_pieces_of_files_are_encoded_as_their_rows(tmp_path):
    documents = generated(0.05)
    path = write_rows(documents, tmp_path, "parquet")
    source = Input(str(path), path.name, "parquet", "plain", Path(path).stat().st_size)
    (only,) = pieces([source], column="text", separator=None)
    assert BYTES.encoder()(only).tally.text_bytes == sum(len(text.encode()) for text in documents)

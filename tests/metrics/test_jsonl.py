import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mars.config.errors import RefusedError
from mars.metrics.jsonl import JsonlSink, read_records
from mars.metrics.record import Record


def record(step, *, split="train"):
    return Record(
        step=step, split=split, loss=1 / (step + 1), lr=1e-3, seconds=step / 8, count=16 * step
    )


def write(path, steps, *, position=None):
    """Write records and return the position after each."""
    sink = JsonlSink(path, position=position)
    positions = []
    for step in steps:
        sink.write(record(step))
        positions.append(sink.position)
    sink.close()
    return positions


def test_what_was_written_is_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    positions = write(path, range(5))
    assert read_records(path) == [record(step) for step in range(5)]
    assert positions[-1] == path.stat().st_size


def test_a_record_is_in_the_file_before_any_flush(tmp_path):
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    for step in range(3):
        sink.write(record(step))
        assert len(read_records(path)) == step + 1
        assert sink.position == path.stat().st_size
    sink.close()


def test_a_line_is_one_write_call(tmp_path):
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    file = Recorder(sink._file)
    sink._file = file
    sink.write(record(1))
    sink.write(record(2))
    assert file.written == [(record(step).as_json() + "\n").encode() for step in (1, 2)]
    file.close()


@pytest.mark.parametrize("killed_after", [3, 4, 7, 10])
def test_after_a_resume_the_file_reads_as_if_never_stopped(tmp_path, killed_after):
    whole, resumed = tmp_path / "whole.jsonl", tmp_path / "resumed.jsonl"
    write(whole, range(12))
    checkpoint_at_three = write(resumed, range(killed_after))[2]
    write(resumed, range(3, 12), position=checkpoint_at_three)
    assert resumed.read_bytes() == whole.read_bytes()


def test_position_zero_starts_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, range(4))
    write(path, [9], position=0)
    assert read_records(path) == [record(9)]


def test_without_a_position_the_file_goes_on(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, [0, 1])
    write(path, [2])
    assert [r.step for r in read_records(path)] == [0, 1, 2]


@pytest.mark.parametrize("beyond", [1, 1000])
def test_a_file_shorter_than_its_checkpoint_is_refused_untouched(tmp_path, beyond):
    path = tmp_path / "metrics.jsonl"
    end = write(path, range(3))[-1]
    before = path.read_bytes()
    with pytest.raises(RefusedError, match=rf"metrics\.jsonl has {end} bytes .* {end + beyond}:"):
        JsonlSink(path, position=end + beyond)
    assert path.read_bytes() == before


def test_a_missing_file_is_refused_and_not_made(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(RefusedError, match=r"metrics\.jsonl has 0 bytes"):
        JsonlSink(path, position=10)
    assert not path.exists()


@pytest.mark.parametrize("offset", [-1, 1])
def test_a_position_inside_a_line_is_refused_untouched(tmp_path, offset):
    path = tmp_path / "metrics.jsonl"
    first, _ = write(path, range(2))
    before = path.read_bytes()
    with pytest.raises(RefusedError, match=r"metrics\.jsonl has no line that ends at byte"):
        JsonlSink(path, position=first + offset)
    assert path.read_bytes() == before


def test_a_torn_file_is_not_continued_without_a_position(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(record(0).as_json())
    with pytest.raises(RefusedError, match="no line that ends"):
        JsonlSink(path)


@given(st.data())
def test_a_file_cut_anywhere_gives_the_lines_that_are_whole(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("torn") / "metrics.jsonl"
    ends = write(path, range(4))
    cut = data.draw(st.integers(0, ends[-1]))
    with path.open("r+b") as file:
        file.truncate(cut)
    # A line whole but for its newline counts.
    whole = sum(end - 1 <= cut for end in ends)
    assert read_records(path) == [record(step) for step in range(whole)]


def test_zeros_that_a_power_cut_left_at_the_end_are_a_torn_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, range(2))
    path.write_bytes(path.read_bytes() + b"\0" * 64)
    assert len(read_records(path)) == 2


@pytest.mark.parametrize("bad", [b"", b"{}", b'{"step": 1', b"\xff", b"null"])
def test_any_other_damage_is_refused_by_line(tmp_path, bad):
    path = tmp_path / "metrics.jsonl"
    lines = [record(step).as_json().encode() for step in range(3)]
    path.write_bytes(b"\n".join([lines[0], bad, lines[1], lines[2], b""]))
    with pytest.raises(RefusedError, match=r"metrics\.jsonl, line 2: a record"):
        read_records(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_names_the_file():
    sink = JsonlSink(Path("/dev/full"))
    with pytest.raises(OSError, match="/dev/full") as caught:
        sink.write(record(1))
    assert caught.value.errno == errno.ENOSPC
    assert sink.position == 0
    sink._file.close()


class Recorder:
    """A file that notes what is written, and is full after some bytes."""

    def __init__(self, file, *, room=None):
        self._file, self._room, self.written = file, room, []

    def write(self, data):
        if self._room is not None:
            if self._room == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[: self._room]
            self._room -= len(data)
        self.written.append(bytes(data))
        return self._file.write(data)

    def __getattr__(self, name):
        return getattr(self._file, name)


def test_a_partial_line_on_a_full_disk_is_cut_off_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    end = write(path, range(3))[-1]
    sink = JsonlSink(path)
    file, sink._file = sink._file, Recorder(sink._file, room=20)
    with pytest.raises(OSError, match=r"metrics\.jsonl") as caught:
        sink.write(record(3))
    assert caught.value.errno == errno.ENOSPC
    assert (sink.position, path.stat().st_size) == (end, end)
    sink._file = file  # there is space again
    sink.write(record(3))
    sink.close()
    assert read_records(path) == [record(step) for step in range(4)]


def test_flush_syncs_and_names_the_file_where_it_cannot(tmp_path, monkeypatch):
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    sink.write(record(1))
    assert synced == []
    sink.flush()
    assert synced == [sink._file.fileno()]

    def fail(_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"metrics\.jsonl"):
        sink.close()
    assert sink._file.closed


def test_closing_twice_is_harmless(tmp_path):
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.write(record(1))
    sink.close()
    sink.close()
    assert len(read_records(tmp_path / "metrics.jsonl")) == 1

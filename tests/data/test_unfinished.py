"""Going on after an interruption: nothing twice, nothing missing, the same bytes in the end."""

import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest

from data.row_files import BPE, files_of, generated, make, write_rows
from mars.config.errors import RefusedError
from mars.data import building

needs_data = pytest.mark.skipif(not BPE.is_dir(), reason=f"no data at {BPE}")

DOCUMENTS = [f"document {number}, " * (number % 11 + 1) for number in range(200)]
# Small pieces and shards, so that there are many points to stop at.
SMALL = {"piece_bytes": 2_000, "shard_tokens": 3_000}


class Stopped(BaseException):
    """Not an error that anything could take for one of its own."""


@pytest.fixture(autouse=True)
def _commit_after_every_piece(monkeypatch):
    monkeypatch.setattr(building, "SECONDS_BETWEEN_COMMITS", -1.0)


def stop_at(call: int, monkeypatch) -> list[int]:
    """Let the n-th call that changes what is on the disk raise instead."""
    calls = [0]

    def counted(original):
        def run(*arguments, **options):
            calls[0] += 1
            if calls[0] == call:
                raise Stopped
            return original(*arguments, **options)

        return run

    monkeypatch.setattr(os, "fsync", counted(lambda descriptor: None))
    monkeypatch.setattr(os, "replace", counted(os.replace))
    monkeypatch.setattr(Path, "rename", counted(Path.rename))
    monkeypatch.setattr(Path, "unlink", counted(Path.unlink))
    return calls


@pytest.mark.parametrize("kind", ["parquet", "jsonl.zst"])
def test_stopped_at_any_write_it_ends_with_the_same_files(tmp_path, kind):
    path = write_rows(DOCUMENTS, tmp_path, kind)
    whole = files_of(make(path, tmp_path / "whole", **SMALL).path)
    with pytest.MonkeyPatch.context() as patch:
        calls = stop_at(0, patch)
        make(path, tmp_path / "counted", **SMALL)
    assert calls[0] > (20 if kind == "parquet" else 60)
    for call in range(1, calls[0] + 1):
        out = tmp_path / f"stopped-{call}"
        with pytest.MonkeyPatch.context() as patch:
            stop_at(call, patch)
            with pytest.raises(Stopped):
                make(path, out, **SMALL)
        assert files_of(make(path, out, **SMALL).path) == whole
        assert not (tmp_path / f".stopped-{call}.unfinished").exists()


def stopped_after(pieces: int, path: Path, out: Path, **options) -> None:
    """Leave a preparation behind that was stopped."""

    def watch(_: object) -> None:
        nonlocal pieces
        pieces -= 1
        if pieces == 0:
            raise Stopped

    with pytest.raises(Stopped):
        make(path, out, watch=watch, **(SMALL | options))


def test_it_goes_on_where_it_stopped(tmp_path):
    path = write_rows(DOCUMENTS, tmp_path, "jsonl")
    stopped_after(4, path, tmp_path / "out")
    journal = json.loads((tmp_path / ".out.unfinished" / "journal.json").read_text())
    assert journal["pieces"] == 4
    done = journal["tally"]["documents"]
    told, seen = [], []
    make(path, tmp_path / "out", tell=told.append, watch=seen.append, **SMALL)
    assert told[0].endswith(f"in 1 processes, going on after {done} documents")
    assert seen[0].tally.documents > done
    assert seen[0].text_bytes < seen[0].tally.text_bytes
    assert seen[-1].tally.documents == len(DOCUMENTS)


def test_another_number_of_processes_may_go_on(tmp_path):
    path = write_rows(DOCUMENTS, tmp_path, "jsonl")
    whole = files_of(make(path, tmp_path / "whole", **SMALL).path)
    stopped_after(3, path, tmp_path / "out", processes=2)
    assert files_of(make(path, tmp_path / "out", processes=1, **SMALL).path) == whole


def test_what_lies_beyond_the_journal_is_cut_off(tmp_path):
    path = write_rows(DOCUMENTS, tmp_path, "jsonl")
    whole = files_of(make(path, tmp_path / "whole", **SMALL).path)
    stopped_after(4, path, tmp_path / "out")
    folder = tmp_path / ".out.unfinished"
    for name in [*(each.name for each in folder.glob("*.bin")), "train-00090.bin"]:
        with (folder / name).open("ab") as file:
            file.write(b"written, but not committed")
    journal = json.loads((folder / "journal.json").read_text())
    full = [shard["name"] for shard in journal["splits"]["train"]["shards"]]
    for name in full:  # these were complete, and stay as they are
        os.truncate(folder / name, 2 * SMALL["shard_tokens"])
    assert len(full) >= 1
    assert files_of(make(path, tmp_path / "out", **SMALL).path) == whole


def test_what_is_missing_before_the_journal_is_refused(tmp_path):
    path = write_rows(DOCUMENTS, tmp_path, "jsonl")
    stopped_after(2, path, tmp_path / "out")
    ends = tmp_path / ".out.unfinished" / "train-documents.bin"
    os.truncate(ends, 8)
    with pytest.raises(RefusedError, match=r"train-documents\.bin has 8 bytes where \d+ were"):
        make(path, tmp_path / "out", **SMALL)
    assert len(make(path, tmp_path / "out", **SMALL).train) > 0  # from the start


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"validation_fraction": 0.3}, "validation"),
        ({"shard_tokens": 4_000}, "shard_tokens"),
        ({"piece_bytes": 4_000}, "piece_bytes"),
        ({"column": "body"}, "column"),
    ],
)
def test_other_options_are_refused_and_what_is_done_stays(tmp_path, options, named):
    path = write_rows(DOCUMENTS, tmp_path, "jsonl")
    stopped_after(2, path, tmp_path / "out")
    before = files_of(tmp_path / ".out.unfinished")
    match = rf"unfinished preparation \(its {named} differ\); repeat its command .*or remove"
    with pytest.raises(RefusedError, match=match):
        make(path, tmp_path / "out", **(SMALL | options))
    assert files_of(tmp_path / ".out.unfinished") == before


def test_input_that_changed_meanwhile_is_refused(tmp_path):
    path = write_rows(DOCUMENTS, tmp_path, "jsonl")
    stopped_after(2, path, tmp_path / "out")
    os.utime(path, ns=(1, 1))
    with pytest.raises(RefusedError, match=r"\(its changed differ\)"):
        make(path, tmp_path / "out", **SMALL)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 2, "request": {}}'])
def test_a_journal_that_makes_no_sense_is_refused(tmp_path, content):
    path = write_rows(DOCUMENTS, tmp_path, "jsonl")
    stopped_after(2, path, tmp_path / "out")
    (tmp_path / ".out.unfinished" / "journal.json").write_bytes(content)
    with pytest.raises(RefusedError, match=r"journal\.json cannot be read; remove"):
        make(path, tmp_path / "out", **SMALL)


def test_two_at_once_are_refused(tmp_path):
    path = write_rows(DOCUMENTS, tmp_path, "jsonl")
    (tmp_path / ".out.unfinished").mkdir()
    descriptor = os.open(tmp_path / ".out.unfinished", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(RefusedError, match="another process is preparing"):
            make(path, tmp_path / "out", **SMALL)
    finally:
        os.close(descriptor)
    assert len(make(path, tmp_path / "out", **SMALL).train) > 0


def test_a_disk_that_has_room_for_the_rest_is_enough(tmp_path, monkeypatch):
    path = write_rows(DOCUMENTS, tmp_path, "txt")
    stopped_after(2, path, tmp_path / "out")
    written = sum(each.stat().st_size for each in (tmp_path / ".out.unfinished").glob("*.bin"))
    needed = 2 * path.stat().st_size
    assert 0.2 * needed < written < needed
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(needed - written - 1))
    with pytest.raises(RefusedError, match="needs about"):
        make(path, tmp_path / "out", **SMALL)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(needed - written))
    assert len(make(path, tmp_path / "out", **SMALL).train) > 0


# Killed for real.

PROGRAM = """
import sys
from pathlib import Path
from mars.data import building
from mars.data.corpora import CorpusRequest, prepare_corpus

building.SECONDS_BETWEEN_COMMITS = 0.02
source, out, bpe = map(Path, sys.argv[1:4])
request = CorpusRequest(
    "openwebtext", out, inputs=(source,), bpe=bpe, processes=int(sys.argv[4]),
    validation_fraction=0.01, piece_bytes=60_000, shard_tokens=200_000,
)
if __name__ == "__main__":
    tell = lambda line: print(line, flush=True)
    prepare_corpus(request, tell=tell, watch=lambda progress: tell("a piece"))
"""


def start(path: Path, out: Path, *, processes: int = 1) -> "subprocess.Popen[str]":
    arguments = map(str, (path, out, BPE, processes))
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def end_of_all(group: int) -> float:
    """Return after how many seconds no process of a group is left, at most ten."""
    began = time.monotonic()
    while time.monotonic() - began < 10:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return time.monotonic() - began
        time.sleep(0.01)
    return float("inf")


def kill_at(moment: float, process: "subprocess.Popen[str]", *, encoding: bool) -> bool:
    """Kill a process some seconds after it began, or encoded a piece; False if it is done first."""
    if encoding:
        process.stdout.readline()
    try:
        process.wait(timeout=moment)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    process.communicate()
    # The processes that encode go with it.
    assert end_of_all(process.pid) < 10
    return process.returncode == -signal.SIGKILL


@needs_data
def test_killed_at_ten_random_moments_it_ends_with_the_files_of_an_undisturbed_run(tmp_path):
    path = write_rows(generated(5), tmp_path, "jsonl.zst")
    with start(path, tmp_path / "whole") as process:
        lines = [(time.monotonic(), line) for line in process.stdout]
    assert process.wait() == 0
    seconds = lines[-1][0] - lines[1][0]  # of encoding
    whole = files_of(tmp_path / "whole")
    rng = random.Random(8)
    kills, gone_on, attempt = 0, [], 0
    while kills < 10:
        out = tmp_path / f"out-{attempt}"
        encoding = rng.random() < 0.7
        with start(path, out, processes=rng.choice([1, 1, 2])) as process:
            line = process.stdout.readline()
            if "going on after" in line:
                gone_on.append(int(line.split("after ")[1].split()[0].replace(",", "")))
            if kill_at(rng.uniform(0, 0.4 * seconds), process, encoding=encoding):
                kills += 1
            else:  # it was done before: once more, elsewhere
                assert files_of(out) == whole
                attempt += 1
    assert len(set(gone_on)) >= 3  # kills at different points, after each of which it went on
    with start(path, out) as process:
        process.communicate()
    assert process.returncode == 0
    assert files_of(out) == whole
    assert not list(tmp_path.glob(".*"))

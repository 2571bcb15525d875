"""Worker processes: how they are started, what is heard of them, and how they end."""

import os
import signal
import sys
import time

import pytest

from mars.comparison import pool as pools
from mars.comparison.messages import Event, Job
from mars.comparison.pool import Pool, ending, visible_gpus

JOB = Job(path="x", config="", keep_checkpoints=False)

# Says what it was started with, answers every job, and leaves as a worker does.
PROGRAM = """
import json, os, signal, sys
def say(**fields):
    print(json.dumps(fields), flush=True)
kinds = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
told = [sys.argv[1], os.getsid(0) == os.getpid(), *(os.environ.get(kind) for kind in kinds)]
say(kind="message", reason=json.dumps(told))
if sys.argv[1] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
say(kind="ready", device="cuda", room=2)
for line in sys.stdin:
    if sys.argv[1] == "noisy":
        os.write(2, b"a warning\\n")
    say(kind="finished", reason=json.loads(line)["path"])
    if sys.argv[1] == "garbled":
        os.write(1, b'{"kind": "tra')
        os._exit(3)
    if sys.argv[1] == "babbling":
        print('{"no": "event"}', flush=True)
if sys.argv[1] == "deaf":
    while True:
        signal.pause()
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Return what makes a pool of a small program in place of the worker."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.setattr(pools, "_PROGRAM", (sys.executable, str(program)))
    return lambda device: Pool(device, log=tmp_path / "workers.log")


def heard(pool: Pool, kind: str):
    """Return the worker and the next event of a kind, dropping others."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        got = pool.next(seconds=1)
        if got is not None and got[1].kind == kind:
            return got
    raise AssertionError(f"no {kind}")


def test_a_worker_has_one_thread_and_a_session_of_its_own(start):
    with start("cpu") as pool:
        pool.add()
        _, event = heard(pool, "message")
    assert event.reason == '["cpu", true, "1", "1", null]'


def test_jobs_are_answered_and_the_end_of_the_input_ends_a_worker(start):
    with start("cpu") as pool:
        worker = pool.add()
        assert heard(pool, "ready")[0] is worker
        worker.give("runs/a", JOB)
        assert worker.trial == "runs/a"
        assert heard(pool, "finished")[1].reason == "x"
        process = worker.process
    assert process.returncode == 0
    assert pool.workers == []


def test_each_of_several_workers_has_its_own_gpu(start, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    with start("cuda") as pool:
        pool.add()
        assert '"4,7"' in heard(pool, "message")[1].reason  # nothing is known of GPUs yet
        pool.spread(heard(pool, "ready")[1])
        seen = []
        for _ in range(2):
            pool.add()
            seen.append(heard(pool, "message")[1].reason)
        assert ['"7"' in seen[0], '"4"' in seen[1]] == [True, True]
        assert [worker.number for worker in pool.workers] == [0, 1, 2]


def test_a_gpu_that_was_named_is_for_all(start, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with start("cuda:1") as pool:
        pool.spread(Event(kind="ready", device="cuda", room=1))
        pool.add()
        assert heard(pool, "message")[1].reason == '["cuda:1", true, "1", "1", null]'


def test_who_replaces_a_dead_worker_takes_its_place(start):
    with start("cpu") as pool:
        first, second = pool.add(), pool.add()
        heard(pool, "ready")
        heard(pool, "ready")
        first.kill()
        worker, event = heard(pool, "died")
        assert worker is first
        assert "SIGKILL" in event.reason
        assert pool.workers == [second]
        assert pool.add().number == 0


def test_a_line_that_death_cut_off_is_no_event(start):
    with start("garbled") as pool:
        worker = pool.add()
        heard(pool, "ready")
        worker.give("runs/a", JOB)
        kinds = []
        while "died" not in kinds:
            got = pool.next(seconds=1)
            kinds += [got[1].kind] if got else []
        assert kinds == ["finished", "died"]
        assert got[1].reason == "its process ended with code 3"


def test_a_job_for_a_worker_that_has_just_died_is_no_error(start):
    with start("cpu") as pool:
        worker = pool.add()
        heard(pool, "ready")
        worker.kill()
        worker.process.wait()
        worker.give("runs/a", JOB)
        assert heard(pool, "died")[0].trial == "runs/a"


def test_what_workers_print_goes_to_the_log(start, tmp_path):
    with start("noisy") as pool:
        worker = pool.add()
        heard(pool, "ready")
        worker.give("runs/a", JOB)
        heard(pool, "finished")
    assert (tmp_path / "workers.log").read_text() == "a warning\n"


def test_stopping_waits_until_all_have_left(start):
    with start("cpu") as pool:
        processes = [pool.add().process, pool.add().process]
        heard(pool, "ready")
        heard(pool, "ready")
        pool.stop()
        assert pool.workers == []
    assert [process.returncode for process in processes] == 2 * [-signal.SIGTERM]


def test_a_worker_that_does_not_leave_is_killed(start, monkeypatch):
    monkeypatch.setattr(pools, "_LEAVE_SECONDS", 0.2)
    with start("deaf") as pool:
        process = pool.add().process
        heard(pool, "ready")
    assert process.returncode == -signal.SIGKILL


def test_no_file_stays_open(start):
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    for _ in range(2):
        with start("cpu") as pool:
            pool.add()
            pool.add().kill()
            heard(pool, "died")
    after = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    assert after == before


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, ["0", "1"]),
        ("", ["0", "1"]),
        ("3, 5", ["3", "5"]),
        ("GPU-a,GPU-b,GPU-c", ["GPU-a", "GPU-b"]),
    ],
)
def test_gpus_are_called_as_the_environment_calls_them(variable, expected, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert visible_gpus(2) == expected


def test_ends_are_told_in_words():
    assert ending(1) == "its process ended with code 1"
    assert ending(-11) == "its process was ended by SIGSEGV"
    assert ending(-9).endswith("by SIGKILL, as the system does when memory runs out")
    assert ending(-250) == "its process was ended by signal 250"


def test_a_worker_that_is_not_understood_is_ended(start):
    with start("babbling") as pool:
        worker = pool.add()
        heard(pool, "ready")
        worker.give("runs/a", JOB)
        assert "SIGKILL" in heard(pool, "died")[1].reason
    assert worker.process.returncode == -signal.SIGKILL

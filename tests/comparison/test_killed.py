"""A comparison that is killed again and again ends with the results of one that never was."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mars.report.export import without_clock
from training.runs import make_corpus, records, write_config

RATES = ("mars-adamw=0.01,0.02", "adamw=0.01,1000")
# Kills of the parent, each after so many more records: at once, early, and anywhere.
KILLS = 3

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")


def command(config: Path, out: Path, jobs: int) -> list[str]:
    """Return the command line of a comparison: six runs, in two phases."""
    return [
        *(sys.executable, "-m", "mars", "compare", str(config), "--out", str(out)),
        *("--optimizers", "mars-adamw,adamw", "--lr", *RATES),
        *("--seeds", "0,1", "--search-seeds", "1", "--jobs", str(jobs)),
    ]


@pytest.fixture
def start():
    """Return what starts a comparison, whose process ends with the test."""
    processes = []

    def starting(config: Path, out: Path, jobs: int) -> subprocess.Popen:
        process = subprocess.Popen(
            command(config, out, jobs),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        processes.append(process)
        return process

    yield starting
    for process in processes:
        process.kill()
        process.communicate()


def lines(out: Path) -> int:
    """Return how many records there are."""
    # Not deeper: checkpoints come and go while one looks.
    paths = out.glob("runs/*/*/seed-*/metrics.jsonl")
    return sum(path.read_bytes().count(b"\n") for path in paths)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            content = stat.read_text()
        except OSError:  # it has ended meanwhile
            continue
        if int(content.rpartition(")")[2].split()[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def has_ended(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def wait_for(condition, process: subprocess.Popen) -> None:
    """Return once a condition holds; the process must not end before."""
    deadline = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def ends_well(process: subprocess.Popen) -> None:
    _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "")


def results(out: Path) -> dict:
    """Return the results, without what a clock decides and how the command was written."""
    found = without_clock(json.loads((out / "results.json").read_text()))
    return {key: value for key, value in found.items() if key not in ("command", "cost")}


def test_kills_at_random_moments_change_nothing_in_the_results(tmp_path, start):
    corpus = make_corpus(tmp_path)
    config = write_config(tmp_path, corpus, optimizer="adamw", steps=40, validate_every=20)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    ends_well(start(config, whole, 2))
    total = lines(whole)
    moments = random.Random(20261116)
    orphans = []
    for kill in range(KILLS):
        # The first before there is any record, the others on their way to the end.
        goal = 0 if kill == 0 else lines(killed) + moments.randint(1, total // KILLS)
        process = start(config, killed, moments.choice((1, 2)))
        wait_for((killed / "comparison.json").exists, process)
        wait_for(lambda goal=goal: lines(killed) >= goal, process)
        orphans += children(process.pid)
        process.kill()
        process.wait()
        assert not (killed / "results.json").exists()
    process = start(config, killed, 2)
    # A worker, not the parent, dies while it trains; another goes on in its place.
    goal = lines(killed) + 3
    wait_for(lambda: lines(killed) >= goal and children(process.pid), process)
    os.kill(moments.choice(children(process.pid)), signal.SIGKILL)
    ends_well(process)
    assert orphans
    assert all(map(has_ended, orphans))
    assert results(killed) == results(whole)
    for path in whole.rglob("metrics.jsonl"):
        place = path.parent.relative_to(whole)
        assert records(killed / place) == records(whole / place)
    assert not list(killed.rglob(".*.new"))


def test_an_interrupt_saves_what_runs_and_says_how_to_go_on(tmp_path, start):
    corpus = make_corpus(tmp_path)
    # Longer than the test: the runs are found under way.
    config = write_config(tmp_path, corpus, optimizer="adamw", steps=10**6, every=10**6)
    out = tmp_path / "out"
    process = start(config, out, 1)
    wait_for(lambda: lines(out) >= 2, process)
    workers = children(process.pid)
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    shown = said.splitlines()
    assert "SIGINT: saving what runs; Ctrl-C leaves at once, without saving" in shown
    assert shown[-2] == "Stopped by SIGINT, all is saved. Go on with:"
    assert shown[-1].startswith(
        f"  mars compare {config} --out {out} --optimizers mars-adamw,adamw"
    )
    assert errors == "mars: interrupted\n"
    saved = list(out.rglob("checkpoints/step-*/manifest.json"))
    assert len(saved) == 1
    assert all(map(has_ended, workers))

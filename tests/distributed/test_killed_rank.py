"""A run that loses a rank ends with a reason and, resumed, is the run that lost none."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distributed.launches import ENVIRONMENT, launch, torchrun
from mars import checkpoint
from training.runs import assert_same_run, make_corpus, records, write_config

PROGRAM = Path(__file__).with_name("killed_ranks_program.py")
KILLS = 10
LIMIT_SECONDS = 60
SETTINGS = ("model.layers=2", "model.width=32", "batch_size=4", "timeout_seconds=15")


def arguments(config, out, *settings, resume=False):
    given = [part for each in (*SETTINGS, *settings) for part in ("--set", each)]
    place = [] if out is None else ["--out", str(out)]
    return ["train", str(config), *place, *(["--resume"] if resume else []), *given]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a config, and uninterrupted runs of two ranks in two modes."""
    folder = tmp_path_factory.mktemp("killed")
    corpus = make_corpus(folder)
    config = write_config(folder, corpus, steps=80, every=4, validate_every=20, workers=0)
    jobs = [
        {
            "name": mode,
            "ranks": 2,
            "arguments": arguments(config, folder / mode, f"parallel={mode}"),
        }
        for mode in ("ddp", "fsdp2")
    ]
    ended = launch(folder / "jobs", jobs)
    assert {each.code for both in ended.values() for each in both} == {0}, ended
    return folder, config


def test_ten_kills_at_random_moments_change_nothing(place, tmp_path):
    folder, config = place
    out = tmp_path / "killed"
    command = arguments(config, out, "parallel=fsdp2", resume=True)
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(KILLS), str(tmp_path), *command],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kills = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(kills) == KILLS
    assert sum(kill["is_while_writing"] for kill in kills) == 3
    reason = re.compile(
        r"^mars: rank \d of 2 lost its connection to the others (at step \d+|before the first "
        rf"step): [^;]+; (the last checkpoint is step \d+: {re.escape(str(out))}\S+|there is no "
        r"checkpoint yet); resume with torchrun --nproc-per-node 2 -m mars train --resume --out "
        rf"{re.escape(str(out))}$",
        re.MULTILINE,
    )
    for kill in kills:
        assert kill["ended_after"] < LIMIT_SECONDS
        if kill["checkpoints"] or kill["is_while_writing"]:  # it trained, and ends by itself
            assert (kill["code"], kill["is_told"]) == (1, False), kill
            assert len(reason.findall(kill["said"])) == 1, kill["said"]
    assert_same_run(out, folder / "fsdp2")


def wait_for_checkpoint(out: Path, step: int, process: subprocess.Popen) -> None:
    """Return once a run has saved a step."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while (checkpoint.newest_step(out / "checkpoints") or 0) < step:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def kill_rank(process: subprocess.Popen, rank: int) -> None:
    """Kill one rank of a torchrun, found by its environment among the launcher's children."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            parent = (entry / "stat").read_text().rpartition(") ")[2].split()[1]
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(parent) == process.pid and f"RANK={rank}".encode() in environment:
            os.kill(int(entry.name), signal.SIGKILL)
            return
    raise AssertionError("there is no such rank")


@contextmanager
def started(command: list[str], **options) -> Iterator[subprocess.Popen]:
    """Give a running command whose output is kept; nothing of it is left behind."""
    with subprocess.Popen(
        command,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_torchrun_ends_when_told_to_or_when_a_rank_is_killed_and_the_run_goes_on(place, tmp_path):
    folder, config = place
    out = tmp_path / "run"
    with started(torchrun(*arguments(config, out, "parallel=ddp"), ranks=2)) as process:
        wait_for_checkpoint(out, 8, process)
        process.send_signal(signal.SIGTERM)
        shown, _ = process.communicate(timeout=LIMIT_SECONDS)
    stopped = checkpoint.newest_step(out / "checkpoints")
    assert f"Stopped by SIGTERM, all is saved: {stopped} steps" in shown
    command = torchrun(*arguments(config, out, "parallel=ddp", resume=True), ranks=2)
    with started(command) as process:
        wait_for_checkpoint(out, stopped + 8, process)
        kill_rank(process, 1)
        killed = time.monotonic()
        shown, said = process.communicate(timeout=LIMIT_SECONDS)
    assert time.monotonic() - killed < LIMIT_SECONDS
    assert f"resumed     from step {stopped}" in shown
    assert process.returncode != 0
    assert said.count("mars: rank 0 of 2 lost its connection to the others at step") == 1
    last = checkpoint.load_newest(out / "checkpoints")
    assert last.rejected == []
    assert stopped + 8 <= last.step < 80
    assert f"the last checkpoint is step {last.step}: " in said
    given = arguments(config, out, "parallel=ddp", resume=True)
    resumed = launch(tmp_path / "jobs", [{"name": "resumed", "ranks": 2, "arguments": given}])
    assert [each.code for each in resumed["resumed"]] == [0, 0]
    assert_same_run(out, folder / "ddp")


def test_torchrun_with_restarts_goes_on_by_itself(place, tmp_path):
    folder, config = place
    out = tmp_path / "runs" / "tiny"
    # Where no --out is given, the processes that are started again find the run they began.
    command = torchrun("--max-restarts=1", *arguments(config, None, "parallel=ddp"), ranks=2)
    with started(command, cwd=tmp_path) as process:
        wait_for_checkpoint(out, 20, process)
        kill_rank(process, 0)
        shown, said = process.communicate(timeout=2 * LIMIT_SECONDS)
    assert process.returncode == 0, said
    assert "Finished: 80 steps" in shown
    assert re.search(r"resumed +from step (2\d|[3-7]\d)", shown)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["tiny"]
    assert len(records(out)) == len(records(folder / "ddp"))
    assert_same_run(out, folder / "ddp")

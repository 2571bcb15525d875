"""Trains one run in two ranks, one of which is killed at a random moment, again and again.

Run by test_killed_rank.py as a program of its own: it forks, which a test runner with threads must
not. Arguments: how often to kill, a folder for what ranks print, and the command line. Prints a
line of JSON for each kill.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

import torch

from distributed.launches import free_port
from mars.checkpoint import newest_step
from mars.cli import main

# What ranks import when they train: here once, not in each of them again.
for name in (
    *("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint"),
    *("mars.bench.options", "mars.commands.train", "mars.metrics.console"),
    *("mars.training.assemble", "mars.training.failures", "mars.checkpoint.shards"),
):
    import_module(name)

RANKS = 2
# Steps between checkpoints, as the config says.
EVERY = 4
# More than a lost rank may cost.
LIMIT_SECONDS = 60.0
# How long a rank may take to end by itself.
ALONE_SECONDS = 5.0


def child(rank: int, port: int, arguments: list[str], log: Path) -> int:
    """Start a rank as torchrun would, and return its process."""
    pid = os.fork()
    if pid:
        return pid
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(RANKS),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(RANKS),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_RUN_ID="test",
    )
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    code = 70
    try:
        code = main(arguments)
    except SystemExit as leave:
        code = int(leave.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def start(arguments: list[str], logs: Path, number: int) -> list[int]:
    """Start all ranks, and return their processes."""
    port = free_port()
    return [
        child(rank, port, arguments, logs / f"kill-{number}-rank-{rank}") for rank in range(RANKS)
    ]


def is_writing(folder: Path) -> bool:
    """Whether a checkpoint is being written: it has a hidden name until it is whole."""
    try:
        return any(name.startswith(".") for name in os.listdir(folder))
    except FileNotFoundError:
        return False


def ended(pid: int) -> int | None:
    """Return the exit code of a process, or None if it has not ended."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


@dataclass(frozen=True)
class Moment:
    """When to kill: some checkpoints after the start and some time, or a write, after that."""

    victim: int
    checkpoints: int
    seconds: float
    is_while_writing: bool


def moments(number: int) -> Iterator[Moment]:
    """Yield moments of all kinds: in the start, between checkpoints, while one is written."""
    draw = random.Random(20261116)
    for i in range(number):
        is_start, is_while_writing = i % 5 == 0, i % 3 == 1
        yield Moment(
            victim=draw.randrange(RANKS),
            checkpoints=0 if is_start else draw.randrange(3),
            seconds=draw.uniform(0, 0.5 if is_start else 0.05),
            is_while_writing=is_while_writing and not is_start,
        )


def wait_for(moment: Moment, folder: Path, before: int) -> None:
    """Return at a moment of ranks that go on from a step."""
    begun = time.monotonic()

    def is_reached() -> bool:
        assert time.monotonic() - begun < LIMIT_SECONDS
        return (newest_step(folder) or 0) >= before + moment.checkpoints * EVERY

    while not is_reached():
        time.sleep(0.002)
    while moment.is_while_writing and not is_writing(folder):
        assert is_reached()
    if not moment.is_while_writing:
        time.sleep(moment.seconds)


def kill(pids: list[int], victim: int) -> dict:
    """Kill a rank and wait for the other to end.

    One that had not met the killed one yet waits for it; after some seconds it is told to end, as
    torchrun tells it at once.
    """
    os.kill(pids[victim], signal.SIGKILL)
    killed = time.monotonic()
    os.waitpid(pids[victim], 0)
    other = pids[1 - victim]
    is_told = False
    while (code := ended(other)) is None and time.monotonic() - killed < LIMIT_SECONDS:
        if not is_told and time.monotonic() - killed > ALONE_SECONDS:
            os.kill(other, signal.SIGTERM)
            is_told = True
        time.sleep(0.01)
    if code is None:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
    seconds = time.monotonic() - killed
    return {"code": code, "ended_after": seconds, "is_told": is_told}


def kill_often() -> None:
    kills, logs = int(sys.argv[1]), Path(sys.argv[2])
    arguments = sys.argv[3:]
    folder = Path(arguments[arguments.index("--out") + 1]) / "checkpoints"
    torch.set_num_threads(1)
    for number, moment in enumerate(moments(kills)):
        before = newest_step(folder) or 0
        pids = start(arguments, logs, number)
        wait_for(moment, folder, before)
        done = kill(pids, moment.victim)
        said = (logs / f"kill-{number}-rank-{1 - moment.victim}").read_text()
        print(json.dumps({**done, **asdict(moment), "said": said}), flush=True)
    codes = [os.waitpid(pid, 0)[1] for pid in start(arguments, logs, kills)]
    assert codes == [0] * RANKS, (logs / f"kill-{kills}-rank-0").read_text()


if __name__ == "__main__":
    kill_often()

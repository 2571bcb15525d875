"""Trains one run in processes that are killed at random moments, again and again.

Run by test_killed.py as a program of its own: it forks, which a test runner with threads must not.
Arguments: config, run directory, how often to kill, seconds of an uninterrupted run.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from training.runs import run

START_SECONDS = 0.1


def child(config: Path, out: Path) -> int:
    """Start a process that resumes the run, and return its number."""
    pid = os.fork()
    if pid:
        return pid
    run(config, out, resume=True)
    os._exit(0)


def is_writing(out: Path) -> bool:
    """Whether a checkpoint is being written: it has a hidden name until it is whole."""
    try:
        return any(name.startswith(".") for name in os.listdir(out / "checkpoints"))
    except FileNotFoundError:
        return False


def kill_at_a_moment(pid: int, out: Path, *, seconds: float, while_writing: bool) -> bool:
    """Kill a process, and say whether it was alive and what was asked for was seen."""
    start = time.monotonic()
    while time.monotonic() - start < seconds or while_writing:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return False
        if while_writing and time.monotonic() - start >= seconds and is_writing(out):
            break
        time.sleep(0 if while_writing else 0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


def main() -> None:
    config, out = Path(sys.argv[1]), Path(sys.argv[2])
    kills, whole = int(sys.argv[3]), float(sys.argv[4])
    torch.set_num_threads(1)
    moments = random.Random(20261115)
    done, writing = 0, 0
    for i in range(kills):
        while_writing = i % 3 == 0
        # On average the thirtieth part of the run, so that all kills come before its end.
        seconds = moments.uniform(0, START_SECONDS + whole / 20)
        seconds = 0.0 if while_writing else seconds
        pid = child(config, out)
        killed = kill_at_a_moment(pid, out, seconds=seconds, while_writing=while_writing)
        done += killed
        writing += killed and while_writing
    os.waitpid(child(config, out), 0)
    print(done, writing)


if __name__ == "__main__":
    main()

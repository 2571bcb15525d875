"""Saves checkpoints in processes that are killed; prints what each left behind, as JSON.

A program of its own, so that it can fork with torch loaded and no other thread running.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from mars.checkpoint import find, load, load_newest, save

FILE_OPERATIONS = {
    *("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"),
    *("os.listdir", "os.scandir", "shutil.rmtree"),
}


def write(folder: Path, step: int, *, keep: int, tag: str = "") -> None:
    model = {"weight": torch.full((200, 200), float(step))}
    save(folder, step=step, model=model, training={"step": step, "tag": tag}, keep=keep)


def is_consistent(path: Path, step: int) -> bool:
    loaded = load(path)
    values = loaded.model["weight"].unique().tolist()
    return values == [float(step)] and loaded.training["step"] == loaded.step == step


def left_behind(folder: Path) -> dict[str, object]:
    newest = load_newest(folder)
    return {
        "newest": newest and newest.step,
        "tag": newest and newest.training["tag"],
        "rejected": newest and newest.rejected,
        "steps": [found.step for found in find(folder)],
        "consistent": all(is_consistent(found.path, found.step) for found in find(folder)),
    }


def in_child(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return pid


def save_forever(folder: Path, first: int, *, keep: int, done: int) -> None:
    for step in range(first, first + 10**6):
        write(folder, step, keep=keep)
        os.write(done, b"%d\n" % step)
        write(folder, step, keep=keep, tag="again")


def killed_at_random(folder: Path, *, rounds: int) -> list[dict[str, object]]:
    source = random.Random(0)
    outcomes: list[dict[str, object]] = []
    last = 0
    for index in range(rounds):
        keep = 1 + index % 2
        reader, writer = os.pipe()
        # The first steps are complete before the clock starts: a kill finds something to lose.
        child = in_child(lambda: save_forever(folder, last + 1, keep=keep, done=writer))  # noqa: B023
        os.close(writer)
        told = os.read(reader, 100)
        time.sleep(source.uniform(0, 0.08))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while more := os.read(reader, 10**6):
            told += more
        os.close(reader)
        last = int(told.split()[-1])
        outcomes.append({"completed": last, "keep": keep} | left_behind(folder))
    return outcomes


def kill_at_operation(count: int) -> None:
    """End this process by SIGKILL just before its file operation of that number."""
    left = count

    def hook(event: str, _: object) -> None:
        nonlocal left
        if event in FILE_OPERATIONS:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def killed_at_every_operation(base: Path, *, step: int, keep: int) -> list[dict[str, object]]:
    """Kill a save of ``step`` over steps 1 and 2 at each of its file operations in turn."""
    outcomes: list[dict[str, object]] = []
    while not outcomes or outcomes[-1]["killed"]:
        folder = base / f"operation-{len(outcomes)}"
        write(folder, 1, keep=2, tag="old")
        write(folder, 2, keep=2, tag="old")

        def work(folder: Path = folder, count: int = len(outcomes)) -> None:
            kill_at_operation(count)
            write(folder, step, keep=keep, tag="new")

        _, status = os.waitpid(in_child(work), 0)
        outcome = {"killed": os.WIFSIGNALED(status), "failed": os.WEXITSTATUS(status)}
        outcome |= left_behind(folder)
        write(folder, 4, keep=2)
        outcomes.append(outcome | {"then": sorted(p.name for p in folder.iterdir())})
        shutil.rmtree(folder)
    return outcomes


if __name__ == "__main__":
    torch.set_num_threads(1)
    work = Path(sys.argv[1])
    outcomes = {"random": killed_at_random(work / "random", rounds=15)}
    # A kill, unlike a power cut, loses nothing that the system was handed: no need to wait.
    os.fsync = lambda _: None
    outcomes["new"] = killed_at_every_operation(work / "new", step=3, keep=2)
    outcomes["again"] = killed_at_every_operation(work / "again", step=2, keep=1)
    print(json.dumps(outcomes))

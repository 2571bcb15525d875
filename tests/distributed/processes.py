"""Real processes for tests: gloo ranks, one thread each, that leave tensors behind."""

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

PRELOADED = ["torch.distributed.fsdp", "torch._dynamo", "torch.distributed.checkpoint", "mars"]

# A rank's work: it gets the rank, the world size and a folder, and returns what weights_only loads.
Work = Callable[[int, int, Path], Any]


def run(work: Work, folder: Path, *, ranks: int) -> list[Any]:
    """Return what each rank's work returned; a rank that raises fails the test."""
    place = folder / f"{work.__name__}-{ranks}"
    place.mkdir()
    # Ranks are forked from a process that has imported what takes seconds, and does nothing else.
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    processes = [
        context.Process(target=_rank, args=(work, rank, ranks, place)) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
        if process.is_alive():
            process.kill()
    errors = sorted(place.glob("error-*"))
    if errors:
        raise AssertionError(errors[0].read_text())
    assert [process.exitcode for process in processes] == [0] * ranks
    return [torch.load(place / f"result-{rank}.pt", weights_only=True) for rank in range(ranks)]


def _rank(work: Work, rank: int, ranks: int, place: Path) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{place}/rendezvous", rank=rank, world_size=ranks
        )
        torch.save(work(rank, ranks, place), place / f"result-{rank}.pt")
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        (place / f"error-{rank}").write_text(traceback.format_exc())
        raise

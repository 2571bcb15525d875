"""Runs command lines one after the other, each in several ranks with the environment of torchrun.

Run by launches.py as a program of its own: importing torch once for many processes saves most of
their time. Argument: a file of jobs.
"""

import contextlib
import io
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

# What jobs would each import by themselves, for seconds.
import pytorch_optimizer  # noqa: F401
import torch
import torch._dynamo
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.tensor

import mars.checkpoint.shards
import mars.training.assemble  # noqa: F401
from mars.cli import main
from mars.commands import train
from mars.training import build
from mars.training.step import Stepper
from mars.training.task import LanguageModeling

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def set_environment(job: dict, rank: int) -> None:
    """Set what torchrun sets; one process alone has nothing of it."""
    for name in (*VARIABLES, "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"):
        os.environ.pop(name, None)
    if job["ranks"] > 1:
        size = str(job["ranks"])
        values = (str(rank), size, str(rank), size, "127.0.0.1", str(job["port"]))
        os.environ.update(zip(VARIABLES, values, strict=True))
        os.environ["TORCHELASTIC_RUN_ID"] = job.get("job", "test")
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(job.get("restarts", 0))


@contextlib.contextmanager
def mischief(job: dict, rank: int):
    """Let this rank, if it is the one meant, be slow at first, get a signal or a bad loss."""
    step_taken, loss_of, opened = Stepper.__call__, LanguageModeling.loss, build.open_corpus
    taken = []

    def opening(*args, **kwargs):
        time.sleep(job.get("slow_seconds", 0))
        return opened(*args, **kwargs)

    def stepping(self, *args, **kwargs):
        taken.append(1)
        if len(taken) == job.get("signal_at"):
            os.kill(os.getpid(), signal.SIGTERM)
        return step_taken(self, *args, **kwargs)

    def losing(self, model, batch):
        loss = loss_of(self, model, batch)
        return loss * torch.nan if len(taken) == job.get("nan_at") and model.training else loss

    if rank == job.get("rank"):
        Stepper.__call__, LanguageModeling.loss, build.open_corpus = stepping, losing, opening
    try:
        yield
    finally:
        Stepper.__call__, LanguageModeling.loss, build.open_corpus = step_taken, loss_of, opened


def run(job: dict, rank: int) -> dict:
    """Run a job's command and return its exit code and what it printed."""
    set_environment(job, rank)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mischief(job, rank):
        try:
            code = main(job["arguments"])
        except SystemExit as leave:
            code = leave.code
        except Exception:  # a mistake of ours: the other jobs run all the same
            traceback.print_exc()
            code = 70
    if torch.distributed.is_initialized():  # a failure leaves it to the end of the process
        torch.distributed.destroy_process_group()
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def start(job: dict, rank: int, result: Path) -> int:
    """Start a rank of a job, and return its process.

    A process of its own for each, as a launcher would start it: what a failed job leaves of its
    connections must not meet those of the next.
    """
    child = os.fork()
    if child == 0:
        result.write_text(json.dumps(run(job, rank)))
        os._exit(0)
    return child


def serve() -> None:
    jobs = Path(sys.argv[1])
    torch.set_num_threads(1)
    train._show_sample = lambda *_: None  # it takes longer than the training here
    for job in json.loads(jobs.read_text()):
        ranks = range(job["ranks"])
        results = [jobs.parent / f"{job['name']}-{rank}.json" for rank in ranks]
        children = [start(job, rank, results[rank]) for rank in ranks]
        ended = [os.waitpid(child, 0)[1] for child in children]
        assert not any(ended), f"{job['name']}: ranks ended with {ended}"


if __name__ == "__main__":
    serve()

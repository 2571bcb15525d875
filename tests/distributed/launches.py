"""Launches for tests: many command lines, each in several real processes."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PROGRAM = Path(__file__).with_name("ranks_program.py")
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(PROGRAM.parents[1]),
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}


@dataclass(frozen=True)
class Ended:
    """How one rank ended a job."""

    code: int
    out: str
    err: str


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def launch(folder: Path, jobs: list[dict], *, seconds: float = 400) -> dict[str, list[Ended]]:
    """Run jobs one after the other and return, by name, how each of their ranks ended.

    A job has a name, a number of ranks and the arguments of the command; ranks_program.py says
    what else.
    """
    folder.mkdir()
    listed = folder / "jobs.json"
    listed.write_text(json.dumps([{**job, "port": free_port()} for job in jobs]))
    log = folder / "log"
    with (
        log.open("w") as said,
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(listed)],
            env=ENVIRONMENT,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            code = process.wait(seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):  # the ranks with it, if they hang
                os.killpg(process.pid, signal.SIGKILL)
    assert code == 0, log.read_text()
    return {
        job["name"]: [
            Ended(**json.loads((folder / f"{job['name']}-{rank}.json").read_text()))
            for rank in range(job["ranks"])
        ]
        for job in jobs
    }


def torchrun(*arguments: str, ranks: int) -> list[str]:
    """Return a command that launches ranks of mars as people do."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    place = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    options = [each for each in arguments if each.startswith("--max-restarts")]
    rest = [each for each in arguments if each not in options]
    return [*launcher, *place, *options, "-m", "mars", *rest]

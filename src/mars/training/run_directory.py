"""The run directory: the contract between training and everything after it.

run.toml        the resolved config
manifest.json   version, commit, hardware, seed, data digest
metrics.jsonl   one record a line
tokenizer/      what turns text into the model's tokens, if the model reads text
checkpoints/    step-00001000/ ...
"""

import fcntl
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from mars.checkpoint.folder import fsync
from mars.config.errors import RefusedError
from mars.config.load import computed_differences, dumps, load_file
from mars.config.schema import Run
from mars.training.launch import Launch, read_launch


class OccupiedError(RefusedError):
    """Another process is training in a run directory."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Where the parts of a run are."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved config."""
        return self.path / "run.toml"

    @property
    def manifest(self) -> Path:
        """Where the run comes from."""
        return self.path / "manifest.json"

    @property
    def metrics(self) -> Path:
        """The records."""
        return self.path / "metrics.jsonl"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer's files."""
        return self.path / "tokenizer"

    @property
    def checkpoints(self) -> Path:
        """The checkpoints."""
        return self.path / "checkpoints"

    @property
    def resume_command(self) -> str:
        """What to type to continue the run."""
        return command("train", "--resume", "--out", str(self.path))

    @property
    def exists(self) -> bool:
        """Whether a run has been started here."""
        return self.config.exists()

    def read_manifest(self) -> dict[str, Any]:
        """Return the manifest, or refuse one that is damaged."""
        try:
            manifest = json.loads(self.manifest.read_text())
        except (OSError, ValueError) as error:
            raise RefusedError(f"{self.manifest} cannot be read: {error}") from error
        if not isinstance(manifest, dict) or not {"tokenizer", "data", "seed"} <= manifest.keys():
            raise RefusedError(f"{self.manifest} is not the manifest of a run")
        return manifest

    def create(
        self, config: Run, manifest: Mapping[str, Any], *, tokenizer: Mapping[str, bytes]
    ) -> None:
        """Write what identifies a run; the directory appears as a whole or not at all.

        ``tokenizer`` has the contents of the tokenizer's files by name.
        """
        made = self.path.parent / f".{self.path.name}.{os.getpid()}.new"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            (made / self.tokenizer.name).mkdir(parents=True)
            (made / self.config.name).write_text(dumps(config), encoding="utf-8")
            (made / self.manifest.name).write_text(json.dumps(dict(manifest), indent=2) + "\n")
            for name, content in tokenizer.items():
                (made / self.tokenizer.name / name).write_bytes(content)
            for path in (*made.rglob("*"), made):
                fsync(path)
            made.rename(self.path)  # replaces an empty directory, which `check_new` allows
            fsync(self.path.parent)
        except OSError as error:
            raise RefusedError(f"{self.path} cannot be made: {error.strerror}") from error
        finally:
            shutil.rmtree(made, ignore_errors=True)  # nothing is there once it has its name

    def lock(self) -> IO[str]:
        """Return a file that keeps other processes out of this directory while it is open."""
        file = open(self.path / ".lock", "w")  # noqa: SIM115  # closed by whoever asked for it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise OccupiedError(f"another process is training in {self.path}") from error
        return file


def command(*arguments: str) -> str:
    """Return a command line of this program as a person here can type it."""
    launch = read_launch()
    if launch.size > 1 and arguments[0] == "train":
        nodes = ["--nnodes", str(launch.nodes)] if launch.nodes > 1 else []
        each = ["--nproc-per-node", str(launch.local_size)]
        return shlex.join(["torchrun", *nodes, *each, "-m", "mars", *arguments])
    called = Path(sys.argv[0])
    is_elsewhere = called.name == "mars" and shutil.which("mars") != str(called)
    program = os.path.relpath(called) if is_elsewhere else "mars"
    return shlex.join([program, *arguments])


def check_new(path: Path) -> None:
    """Refuse a place for a new run where something is already."""
    if RunDirectory(path).exists:
        raise RefusedError(f"{path} holds a run already; continue it with --resume or choose --out")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RefusedError(f"--out {path} exists and is not empty; choose another place")


def available(parent: Path, *, name: str) -> Path:
    """Return the first of ``name``, ``name-2``, ``name-3`` ... that is not there yet."""
    path, number = parent / name, 1
    while path.exists():
        number += 1
        path = parent / f"{name}-{number}"
    return path


def of_this_job(candidates: Iterable[Path], launch: Launch) -> Path | None:
    """Return the run that this launch began before its processes were started again, if any.

    Others are left alone: that processes are started again does not mean that a run which was
    there before them may be continued.
    """
    for path in candidates:
        directory = RunDirectory(path)
        if directory.exists and directory.read_manifest().get("job") == launch.job:
            return path
    return None


def check_resumed(directory: RunDirectory, config: Run) -> None:
    """Refuse to continue a run with a config that would compute something else."""
    before = load_file(directory.config)
    changed = [
        f"{key} (was {was!r}, is {now!r})"
        for key, was, now in computed_differences(before, config)
        # It changes rounding alone, and another number of processes or GPU may need another one.
        if key != "training.micro_batch_size"
    ]
    if changed:
        raise RefusedError(
            f"{directory.path} was started with another config: {', '.join(changed)}; resume it "
            f"as it was with {directory.resume_command}"
        )

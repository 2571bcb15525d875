"""Records as a run of Weights & Biases, online or kept on disk for ``wandb sync``."""

import json
import os
import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from mars.config.errors import RefusedError
from mars.metrics.record import Record

_STATE_FILE = "wandb-run.json"


class WandbSink:
    """Logs to one W&B run per run directory: a resume goes on with it.

    A file in the directory holds the run's id and how far each split was logged. The server drops
    steps it already has; offline nobody would, so a resumed run does not log them again.

    Args:
        directory: the run directory.
        project: W&B's project.
        name: the run's name there.
        mode: "offline" needs no network and no account.
        config: what to show as the run's configuration.
    """

    def __init__(
        self,
        directory: Path,
        *,
        project: str,
        name: str,
        mode: Literal["offline", "online"] = "offline",
        config: Mapping[str, Any] | None = None,  # nested settings of any type
    ) -> None:
        wandb = _imported_wandb()
        self._file = directory / _STATE_FILE
        self._id, self._logged = _read_state(self._file)
        self._skipped = dict(self._logged) if mode == "offline" else {}
        try:
            self._run = wandb.init(
                project=project,
                name=name,
                id=self._id,
                resume="allow",
                mode=mode,
                dir=str(directory),
                config=dict(config or {}),
                # Its wrapping of standard output would tear the live display.
                settings={"console": "off", "silent": True},
            )
        except wandb.Error as error:
            reason = " ".join(str(error).split())
            raise RefusedError(
                f"Weights & Biases cannot start: {reason} Or set metrics.wandb to offline"
            ) from error
        self._write_state()

    @property
    def location(self) -> str:
        """Where to look: the run's page, or what uploads an offline run."""
        if self._run.offline:
            return f"wandb sync {shlex.quote(str(Path(self._run.dir).parent))}"
        return str(self._run.url)

    def write(self, record: Record) -> None:
        """Log the record at its step, unless it was logged before a resume."""
        if record.step <= self._skipped.get(record.split, -1):
            return
        measures = {f"{record.split}/{name}": value for name, value in record.measures().items()}
        position = {record.unit: record.count, "seconds": record.seconds}
        self._run.log({**measures, **position}, step=record.step)
        self._logged[record.split] = record.step
        self._write_state()

    def flush(self) -> None:
        """Do nothing: records are with W&B's own process already."""

    def close(self) -> None:
        """Finish the run.

        Online, this waits until everything is uploaded; offline, W&B's own process may write the
        last records until this one ends.
        """
        self._run.finish()

    def _write_state(self) -> None:
        # Replaced, never rewritten: a kill at any instant leaves the id readable.
        fresh = self._file.with_suffix(".tmp")
        fresh.write_text(json.dumps({"id": self._id, "logged": self._logged}) + "\n")
        os.replace(fresh, self._file)


def _imported_wandb() -> ModuleType:
    try:
        import wandb
    except ImportError as error:
        raise RefusedError(
            "Weights & Biases is not installed: pip install 'mars-optimizer[track]', "
            "or leave metrics.wandb off"
        ) from error
    return wandb


def _read_state(file: Path) -> tuple[str, dict[str, int]]:
    """Return the id and the last step logged of each split; a new id if no run was here before."""
    if not file.exists():
        return secrets.token_hex(4), {}
    try:
        state = json.loads(file.read_text())
        return str(state["id"]), {split: int(step) for split, step in state["logged"].items()}
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise RefusedError(
            f"{file} is damaged; remove it to go on as a new run of Weights & Biases"
        ) from error

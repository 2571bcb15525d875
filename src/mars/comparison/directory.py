"""The directory of a comparison: who may use it, and what of it is done already."""

import fcntl
import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mars.comparison import plan as planned
from mars.comparison.plan import Plan, PlannedTrial, confirming_trials, search_trials
from mars.config.errors import RefusedError
from mars.config.load import computed_differences, load_file
from mars.config.toml import shown
from mars.metrics.record import Record
from mars.report.plan import is_comparison, read_plan

RESULTS = "results.json"
"""What the analysis found."""
PAGE = "report.html"
"""The page."""
LOG = "workers.log"
"""What the workers printed."""
_LOCK = ".lock"


def check_place(folder: Path, plan: Plan) -> None:
    """Refuse a directory that holds something else, or trials that this plan has not.

    A plan may add arms, rates and seeds to what is there; one that drops some would replace the
    results and the page of another comparison.
    """
    if folder.exists() and not (folder / planned.FILE).is_file():
        # A comparison that was killed at once has left a lock, and perhaps half a plan.
        ours = (_LOCK, f".{planned.FILE}.")
        is_ours = folder.is_dir() and all(p.name.startswith(ours) for p in folder.iterdir())
        if not is_ours:
            raise RefusedError(
                f"--out {folder} exists and holds no comparison; choose another place"
            )
    possible = {trial.path: trial for trial in _possible_trials(plan)}
    for trial in possible.values():
        _check_config(folder, trial)
    if is_comparison(folder):
        before = [str(trial.path.relative_to(folder)) for trial in read_plan(folder).trials]
        if dropped := [path for path in before if path not in possible]:
            raise RefusedError(
                f"{folder} holds another comparison, with {len(dropped)} runs that this one has "
                f"not, such as {dropped[0]}; choose another --out"
            )


@contextmanager
def taken(folder: Path) -> Iterator[None]:
    """Make the directory and keep other comparisons out of it; what was made and not used goes."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("w")
    except OSError as error:
        raise RefusedError(f"--out {folder} cannot be made: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RefusedError(
                f"another process is comparing in {folder}; wait for it, or choose another --out"
            ) from error
        try:
            _remove_half_made(folder)
            yield
        except RefusedError:
            if missing and not any((folder / "runs").glob("*/*/*/run.toml")):
                shutil.rmtree(folder, ignore_errors=True)
                with suppress(OSError):  # somebody else has put something there
                    for path in missing[1:]:
                        path.rmdir()
            raise


def last_validation(folder: Path, trial: PlannedTrial) -> Record | None:
    """Return the last record of a trial that is finished, or None if it is not."""
    try:
        content = (folder / trial.path / "metrics.jsonl").read_bytes()
    except OSError:
        return None
    # Without the part after the last line end, which a killed process left.
    line = content[: content.rfind(b"\n") + 1].rstrip(b"\n").rpartition(b"\n")[2]
    try:
        record = Record.from_json(line)
    except RefusedError:
        return None
    is_last = record.step == trial.config.training.steps or "diverged" in record.extra
    return record if record.split == "val" and is_last else None


def data_digest(folder: Path, trial: PlannedTrial) -> str | None:
    """Return the digest of what a trial is trained on, if that can be read."""
    try:
        manifest = json.loads((folder / trial.path / "manifest.json").read_bytes())
        return str(manifest["data"]["digest"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _possible_trials(plan: Plan) -> Iterable[PlannedTrial]:
    """Yield every trial that the plan can come to, whichever rates turn out best."""
    yield from search_trials(plan)
    for rates in zip(*(arm.rates for arm in plan.arms), strict=True):
        labels = [arm.label for arm in plan.arms]
        yield from confirming_trials(plan, dict(zip(labels, rates, strict=True)))


def _check_config(folder: Path, trial: PlannedTrial) -> None:
    path = folder / trial.path / "run.toml"
    if not path.exists():
        return
    changed = [
        f"{key} (was {shown(was)}, is {shown(now)})"
        for key, was, now in computed_differences(load_file(path), trial.config)
    ]
    if changed:
        raise RefusedError(
            f"{folder} holds {trial.path} with another config: {', '.join(changed)}; "
            "choose another --out"
        )


def _remove_half_made(folder: Path) -> None:
    """Remove what killed processes left of run directories that they were making."""
    for path in (folder / "runs").glob("*/*/.*.new"):
        shutil.rmtree(path, ignore_errors=True)

"""What a model is named by: told from files alone, without opening them or importing torch."""

from pathlib import Path
from typing import Literal

from mars.config.errors import RefusedError
from mars.evaluation.hub import HUB_NAMES

Kind = Literal["run", "folder", "hub"]


def check_source(source: str, *, step: int | None) -> Kind:
    """Return what a source is; refuse what is none, and a step of what has none."""
    path = Path(source)
    if (path / "run.toml").exists():
        return "run"
    if step is not None:
        raise RefusedError(f"--step {step} is for a run, and {source} is none; leave it out")
    if (path / "config.json").is_file():
        return "folder"
    if path.exists():
        raise RefusedError(
            f"{source} is neither a run directory (it has no run.toml) nor a Hugging Face folder "
            "(it has no config.json)"
        )
    if source in HUB_NAMES:
        return "hub"
    raise RefusedError(
        f"there is no {source}; name a run directory, a Hugging Face folder, or one of "
        f"{', '.join(HUB_NAMES)}"
    )

"""What a run runs on: the device, what to call it, and how fast it could be."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from mars._version import __version__
from mars.config.errors import RefusedError

# Dense bfloat16 or float16 operations a second, from the vendors' data sheets.
_PEAK_FLOPS = {
    "A100": 312e12,
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
    "L40S": 362e12,
    "RTX 4090": 165e12,
    "MI300X": 1307e12,
}


def resolve_device(name: str) -> torch.device:
    """Return the device of a config, "auto" being the accelerator if there is one."""
    if name == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        return found or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise RefusedError(f"training.device = {name!r} cannot be used here: {reason}") from error
    return device


def peak_flops(device: torch.device, *, precision: str) -> float | None:
    """Return a device's peak for a precision, or None where it is not known."""
    if device.type != "cuda" or precision == "float32":
        return None
    name = torch.cuda.get_device_name(device)
    return next((flops for part, flops in _PEAK_FLOPS.items() if part in name), None)


def device_label(device: torch.device) -> str:
    """Return what a person calls the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{device}, {threads} thread{'s' if threads > 1 else ''}"


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Return what a manifest says about versions and hardware."""
    return {
        "version": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "hardware": {
            "device": device_label(device),
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "system": platform.platform(),
        },
    }


def _commit() -> str | None:
    """Return the commit this package's source is at, if it is a git checkout of this package."""
    root = Path(__file__).parents[3]
    command = ["git", "-C", str(root), "rev-parse", "--show-toplevel", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    top, commit = done.stdout.split("\n")[:2]
    # A package installed inside somebody's repository is not at that repository's commit.
    return commit if Path(top) == root.resolve() else None

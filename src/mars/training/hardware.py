"""What a run runs on: the device, what to call it, how fast it could be, what memory it takes."""

import ctypes
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mars._version import __version__
from mars.config.errors import FailedError, RefusedError
from mars.optim.sharding import local
from mars.training.launch import Launch
from mars.training.optimizers import Together

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
_LESS_MEMORY = "lower training.micro_batch_size, or set training.activation_checkpointing = true"
# Where Linux tells a process its memory, and lets it forget the most it has held.
_STATUS = Path("/proc/self/status")
_FORGET = Path("/proc/self/clear_refs")


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


def process_device(name: str, launch: Launch) -> torch.device:
    """Return the device of one process among several: on a machine with GPUs each has its own."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if launch.local_size > count:
        raise RefusedError(
            f"{launch.label} finds {count} GPUs for {launch.local_size} processes on its machine; "
            "start as many processes with torchrun --nproc-per-node, or choose the device cpu"
        )
    return torch.device("cuda", launch.local_rank)


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


class PeakMemory:
    """The most memory held since this was made: on a GPU of its tensors, else of the process."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_known = device.type == "cuda"
        if self._is_known:
            torch.cuda.reset_peak_memory_stats(device)
        elif device.type == "cpu":
            _give_back()
            try:
                self._is_known = _FORGET.write_text("5") > 0
            except OSError:  # another system than Linux, or a container that forbids it
                self._is_known = False

    def measured(self) -> int | None:
        """Return it in bytes, or None where it cannot be known."""
        if not self._is_known:
            return None
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        lines = _STATUS.read_text().splitlines()
        found = [line.split() for line in lines if line.startswith("VmHWM:")]
        return 1024 * int(found[0][1]) if found else None


def _give_back() -> None:
    """Give memory that was freed back to the system, which else counts it as held.

    What an earlier run of this process freed would be the peak of a later one: hundreds of
    megabytes, once glibc has come to keep large blocks.
    """
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def optimizer_bytes(optimizer: Optimizer | Together) -> int:
    """Return the bytes of an optimizer's state in this process, step counts left out."""
    parts = optimizer.parts if isinstance(optimizer, Together) else [optimizer]
    states = [state for part in parts for state in part.state.values()]
    tensors = [each for state in states for each in state.values() if isinstance(each, Tensor)]
    return sum(local(tensor).nbytes for tensor in tensors if tensor.ndim)


@contextmanager
def memory_errors_in_words(*, way_out: str = _LESS_MEMORY) -> Iterator[None]:
    """Turn a lack of memory into one line with the way out."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
        raise FailedError(f"there is not enough memory; {way_out}") from error


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

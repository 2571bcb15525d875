"""What fits into memory: an estimate before anything is built, and groups that stay within it."""

import ctypes
import gc
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from mars.bench.shapes import Size
from mars.bench.subjects import Subject
from mars.config.errors import RefusedError

# Left to the system, to torch itself and to errors of the estimate.
_USABLE_SHARE = 0.8
# Chunks and code that do not grow with the model.
_FIXED_BYTES = 256 * 10**6
# The buffers that copy bandwidth is measured on: larger than any cache, small beside a model.
_COPY_ELEMENTS = 2**26
# Where Linux tells a container its limit.
_CONTROL_GROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Return the memory this process may still take: the machine's, or its container's if less."""
    free = _meminfo().get("MemAvailable")
    if free is None:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = int((_CONTROL_GROUP / "memory.max").read_text())
        used = int((_CONTROL_GROUP / "memory.current").read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return free
    return min(free, limit - used)


def give_back_memory() -> None:
    """Free what nothing refers to, and have the C library return it to the system if it can."""
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        # It keeps freed blocks of megabytes, gigabytes of them, in case they are wanted again.
        ctypes.CDLL(None).malloc_trim(0)


def total_bytes() -> int | None:
    """Return the memory of the machine, where it can be asked."""
    return _meminfo().get("MemTotal")


def _meminfo() -> dict[str, int]:
    """Return the lines of /proc/meminfo in bytes; nothing where there is no such file."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines if line.endswith("kB"))
    return {name: 1024 * int(value.split()[0]) for name, value in pairs}


def copy_elements(size: Size) -> int:
    """Return the elements of each of the two buffers that copying is timed on."""
    return min(size.elements, _COPY_ELEMENTS)


def needed_bytes(size: Size, group: Sequence[Subject]) -> int:
    """Return an upper estimate of what measuring a group of subjects takes.

    Parameters and gradients are shared, state is each subject's own, and only one subject at a
    time holds scratch memory.
    """
    shared = 8 * size.elements + 8 * copy_elements(size)
    state = sum(subject.state_bytes(size) for subject in group)
    scratch = max(4 * size.elements * subject.scratch_copies for subject in group)
    return int(shared + state + scratch + _FIXED_BYTES)


def in_groups(
    size: Size, found: Sequence[Subject], *, available: int | None = None
) -> list[list[Subject]]:
    """Return the subjects in groups that fit into memory, each led by the baseline.

    Subjects that orthogonalise take seconds a step and form groups of their own. If a subject does
    not fit even alone with the baseline, the first of ``found``, `RefusedError` is raised.
    """
    budget = int(_USABLE_SHARE * (available_bytes() if available is None else available))
    baseline, *rest = found
    groups = []
    for orthogonalizes in (False, True):
        group = [baseline]
        for subject in (s for s in rest if s.orthogonalizes == orthogonalizes):
            _check_fits(size, [baseline, subject], budget)
            if needed_bytes(size, [*group, subject]) > budget:
                groups.append(group)
                group = [baseline]
            group.append(subject)
        if len(group) > 1:
            groups.append(group)
    return groups


def _check_fits(size: Size, pair: Sequence[Subject], budget: int) -> None:
    needed = needed_bytes(size, pair)
    if needed > budget:
        raise RefusedError(
            f"--sizes: {size.name} ({size.elements:,} parameters) does not fit: "
            f"{pair[-1].name} beside {pair[0].name} takes about {human_bytes(needed)}, "
            f"{human_bytes(budget)} can be used; choose a smaller size or fewer types"
        )


def human_bytes(count: float) -> str:
    """Return a number of bytes in the unit a reader expects, such as ``1.5 GB``."""
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"

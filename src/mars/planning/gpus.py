"""GPUs by name, with the figures of their makers' data sheets, and sizes as people write them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mars.config.errors import RefusedError
from mars.config.keys import nearest
from mars.config.toml import shown

GIGA = 10**9
GPUS_A_NODE = 8
# One adapter of 400 Gbit/s for each GPU, as in the makers' reference systems for eight.
_NETWORK = 50.0

_UNITS = {"": GIGA, "MB": 10**6, "GB": GIGA, "TB": 10**12, "MIB": 2**20, "GIB": 2**30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU and its links; rates in GB/s are what goes one way, operations are dense."""

    name: str
    memory_bytes: int
    bandwidth: float
    node_link: float
    """To the others of its node."""
    link: float = _NETWORK
    """To other nodes."""
    half_flops: float
    """bfloat16 or float16 operations a second."""
    float32_flops: float


def _gpu(
    name: str, memory: int, bandwidth: float, node_link: float, half: float, single: float
) -> Gpu:
    return Gpu(
        name=name,
        memory_bytes=memory * GIGA,
        bandwidth=bandwidth,
        node_link=node_link,
        half_flops=half * 1e12,
        float32_flops=single * 1e12,
    )


# Memory (GB), its bandwidth, link inside a node (GB/s one way: NVLink, Infinity Fabric, or PCIe
# 4.0 x16), then dense half precision and float32 without tensor cores (TFLOPS).
GPUS: Mapping[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _gpu("a100-40gb", 40, 1555, 300, 312, 19.5),
        _gpu("a100-80gb", 80, 2039, 300, 312, 19.5),
        _gpu("h100", 80, 3350, 450, 989, 67),
        _gpu("h200", 141, 4800, 450, 989, 67),
        _gpu("b200", 180, 8000, 900, 2250, 75),
        _gpu("l40s", 48, 864, 32, 362, 91.6),
        _gpu("rtx-4090", 24, 1008, 32, 165, 82.6),
        _gpu("mi300x", 192, 5300, 448, 1307, 163.4),
    )
}
DEFAULT_GPU = "h100"


def gpu_of(name: str) -> Gpu:
    """Return the GPU of a name; raise `RefusedError` with the nearest one if there is none."""
    if name.lower() in GPUS:
        return GPUS[name.lower()]
    close = nearest(name.lower(), GPUS)
    hint = f"did you mean {close}?" if close else f"there are {', '.join(GPUS)};"
    raise RefusedError(
        f"--gpu: unknown GPU {shown(name)}; {hint} describe others by --gpu-memory and --bandwidth"
    )


def size_in_bytes(text: str, *, option: str) -> int:
    """Return the bytes of a size such as ``80GB``; a number without a unit is in GB."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].upper() not in _UNITS:
        raise RefusedError(f"{option}: {shown(text)} is no size; write it as 80GB or 24GiB")
    count = int(float(match[1]) * _UNITS[match[2].upper()])
    if count < 1:
        raise RefusedError(f"{option} must be positive, got {shown(text)}")
    return count

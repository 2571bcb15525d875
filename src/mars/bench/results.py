"""The figures of a run: what the table shows and the JSON file holds."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from mars import __version__
from mars.bench.measure import Measurement, Measurements, quartiles
from mars.bench.memory import total_bytes
from mars.bench.options import Plan
from mars.bench.shapes import Size


@dataclass(frozen=True, slots=True)
class Row:
    """One subject's figures on one size.

    ``ratio`` is the median over that of torch AdamW fused in the same group; ``copy_share`` is
    ``gb_per_s`` over the copy bandwidth of the same group.
    """

    subject: str
    group: int
    samples: int
    median_ms: float
    lower_ms: float
    upper_ms: float
    ratio: float
    bytes_per_parameter: float
    gb_per_s: float
    copy_share: float
    peak_extra_bytes: int
    state_bytes_per_parameter: float
    step_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SizeReport:
    """All rows of one size; ``copy_gb_per_s`` has the copy bandwidth of each group."""

    name: str
    parameters: int
    tensors: int
    largest_tensor_bytes: int
    copy_gb_per_s: tuple[float, ...]
    rows: tuple[Row, ...]

    def row(self, subject: str) -> Row | None:
        """Return the first row of a subject, if it was measured."""
        return next((row for row in self.rows if row.subject == subject), None)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A budget of the design, what was measured against it, and whether it is met."""

    budget: str
    measured: float
    limit: float
    aim: float | None
    unit: str
    met: bool


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run."""

    schema: int
    command: str
    machine: dict[str, object]
    versions: dict[str, str]
    options: dict[str, object]
    sizes: tuple[SizeReport, ...]
    verdict_size: str
    verdict: tuple[Verdict, ...]
    notes: tuple[str, ...]


def size_report(size: Size, groups: list[Measurements]) -> SizeReport:
    """Return the figures of one size from what was measured, group by group."""
    copies = tuple(_copy_gb_per_s(group) for group in groups)
    rows = [
        _row(size, one, group=index, baseline=group.subjects[0], copy_gb_per_s=copies[index])
        for index, group in enumerate(groups)
        for one in group.subjects
    ]
    return SizeReport(
        name=size.name,
        parameters=size.elements,
        tensors=len(size.shapes),
        largest_tensor_bytes=size.largest_bytes,
        copy_gb_per_s=copies,
        rows=tuple(rows),
    )


def _copy_gb_per_s(group: Measurements) -> float:
    return group.copied_bytes / quartiles(group.copy_seconds)[1] / 1e9


def _row(
    size: Size, one: Measurement, *, group: int, baseline: Measurement, copy_gb_per_s: float
) -> Row:
    lower, median, upper = quartiles(one.seconds)
    moved = one.subject.moved_bytes(size)
    gb_per_s = moved / median / 1e9
    return Row(
        subject=one.subject.name,
        group=group,
        samples=len(one.seconds),
        median_ms=1e3 * median,
        lower_ms=1e3 * lower,
        upper_ms=1e3 * upper,
        ratio=median / quartiles(baseline.seconds)[1],
        bytes_per_parameter=moved / size.elements,
        gb_per_s=gb_per_s,
        copy_share=gb_per_s / copy_gb_per_s,
        peak_extra_bytes=one.peak_extra_bytes,
        state_bytes_per_parameter=one.state_bytes / size.elements,
        step_ms=tuple(1e3 * seconds for seconds in one.seconds),
    )


def machine() -> dict[str, object]:
    """Return what the figures depend on, and how busy the machine was before it was measured."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": total_bytes(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_average": load,
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def versions() -> dict[str, str]:
    """Return the versions that decide what ran."""
    return {"mars": __version__, "torch": torch.__version__, "python": platform.python_version()}


def as_options(plan: Plan) -> dict[str, object]:
    """Return a plan in the types of JSON."""
    return {
        "sizes": plan.sizes,
        "types": plan.types,
        "engines": plan.engines,
        "steps": plan.steps,
        "rounds": plan.rounds,
        "threads": plan.threads,
        "ports": plan.ports,
        "quick": plan.quick,
    }

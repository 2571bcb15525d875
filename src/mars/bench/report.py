"""A run's figures for people (tables on the console) and for programs (a JSON file)."""

import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mars.bench.budgets import ELSEWHERE
from mars.bench.memory import human_bytes
from mars.bench.options import MAIN_SIZE
from mars.bench.results import Report, Row, SizeReport, Verdict
from mars.bench.subjects import BASELINE

WIDTH = 100
_SIZES_A_TABLE = 5


def write_json(report: Report, path: Path) -> None:
    """Write a report to a file, whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(asdict(report), indent=1) + "\n")
    partial.replace(path)


def show(report: Report, console: Console) -> None:
    """Print a report: the machine, a table a size, growth, the budgets, notes."""
    console.print(_machine_line(report), style="dim")
    for size in report.sizes:
        console.print()
        console.print(_size_table(size))
    for start in range(0, len(report.sizes), _SIZES_A_TABLE):
        if len(report.sizes) > 1:
            console.print()
            console.print(_growth_table(report.sizes[start : start + _SIZES_A_TABLE]))
    console.print()
    console.print(_verdict_table(report))
    console.print(ELSEWHERE, style="dim")
    for note in report.notes:
        console.print(f"Note: {note}", markup=False)


def _machine_line(report: Report) -> str:
    machine, versions = report.machine, report.versions
    load = machine["load_average"]
    parts = [
        f"{machine['cpu']}, {machine['cores']} cores, threads {machine['threads']}",
        f"torch {versions['torch']}, mars {versions['mars']}, python {versions['python']}",
    ]
    if isinstance(load, float):
        parts.append(f"load {load:.1f} at the start")
    return "; ".join(parts)


def _table(title: str, *columns: str) -> Table:
    """Return an empty table of numbers, named in the first column."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        expand=False,
    )
    table.add_column(columns[0], overflow="fold")
    for column in columns[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _size_table(size: SizeReport) -> Table:
    copies = ", ".join(f"{_digits(speed)}" for speed in size.copy_gb_per_s)
    table = _table(
        f"{size.name}: {size.parameters:,} parameters in {size.tensors:,} tensors, "
        f"copying at {copies} GB/s",
        *("optimizer", "ms", "quartiles", "x AdamW", "B/par", "GB/s", "of copy", "extra", "state"),
    )
    last = None
    for row in size.rows:
        if last not in (None, row.group):
            table.add_row()  # another group, with the baseline measured again
        last = row.group
        table.add_row(*_cells(row), style="bold" if row.subject == BASELINE else None)
    return table


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.subject,
        _digits(row.median_ms),
        f"{_digits(row.lower_ms)}-{_digits(row.upper_ms)}",
        f"{row.ratio:.2f}",
        f"{row.bytes_per_parameter:.1f}",
        _digits(row.gb_per_s),
        f"{row.copy_share:.0%}",
        human_bytes(row.peak_extra_bytes),
        f"{row.state_bytes_per_parameter:.1f}",
    )


def _digits(value: float) -> str:
    """Return a number with about three digits, never in exponents."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.1 else f"{value:.3f}"


def _growth_table(sizes: tuple[SizeReport, ...]) -> Table:
    """Return nanoseconds a parameter, and the ratio to the baseline, by size and tensor count."""
    names = [f"{size.name} ({size.tensors})" for size in sizes]
    table = _table("Growth: ns a parameter (x AdamW), by size (tensors)", "optimizer", *names)
    for subject in dict.fromkeys(row.subject for size in sizes for row in size.rows):
        cells = []
        for size in sizes:
            row = size.row(subject)
            per_parameter = 1e6 * row.median_ms / size.parameters if row else 0
            cells.append(f"{_digits(per_parameter)} ({row.ratio:.2f})" if row else "-")
        table.add_row(subject, *cells)
    return table


def _verdict_table(report: Report) -> Table:
    title = f"Budgets, on {report.verdict_size}"
    if report.verdict_size != MAIN_SIZE:
        title += f" (they are set for {MAIN_SIZE}: read them as a form, not as a verdict)"
    table = _table(title, "budget", "measured", "limit", "aim", "")
    for verdict in report.verdict:
        style = "green" if verdict.met else "red"
        table.add_row(*_verdict_cells(verdict), style=style)
    return table


def _verdict_cells(verdict: Verdict) -> tuple[str, ...]:
    def shown(value: float | None) -> str:
        return "" if value is None else f"{value:.2f} {verdict.unit}"

    met = "met" if verdict.met else "not met"
    return verdict.budget, shown(verdict.measured), shown(verdict.limit), shown(verdict.aim), met

"""Figures for a paper: SVG and PDF, one column wide, the same bytes for the same runs."""

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mars.config.errors import RefusedError
from mars.report.analysis import Analysis
from mars.report.cells import shortened
from mars.report.drawing import (
    Colors,
    draw_curves,
    draw_forest,
    draw_sensitivity,
)
from mars.report.files import write_whole
from mars.report.grouping import unique
from mars.report.palette import ARMS_LIGHT, LIGHT
from mars.report.svg import looks
from mars.report.variance import diagnoses
from mars.report.variance_drawing import draw_variance

_COLUMN_INCHES = 3.3
_ROW_INCHES = 0.24
_POINTS = 8
_LEGEND_CHARACTERS = 52  # that fit beside each other
_LEGEND_INCHES = 0.16
_PAPER = Colors(text="#000000", rule=LIGHT["rule"], arms=ARMS_LIGHT)
# Nothing of the clock: the same runs give the same file.
_UNDATED: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}

Draw = Callable[[Axes], None]


def write_figures(analysis: Analysis, folder: Path) -> list[Path]:
    """Write every figure that the runs have data for; return the files, SVG before PDF."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusedError(f"--figures {folder} cannot be made: {error.strerror}") from error
    written = []
    for name, (draw, height) in _figures(analysis).items():
        for kind, content in _drawn(draw, height=height).items():
            written.append(folder / f"{name}.{kind}")
            write_whole(written[-1], content)
    return written


def _figures(analysis: Analysis) -> dict[str, tuple[Draw, float]]:
    """Return what draws each figure, and its height in inches."""
    unit = analysis.results.trials[0].unit
    figures: dict[str, tuple[Draw, float]] = {
        f"loss-{unit}": (partial(_curves, analysis, "counts"), 2.2),
        "loss-seconds": (partial(_curves, analysis, "seconds"), 2.2),
        "sensitivity": (lambda axes: draw_sensitivity(axes, analysis, _PAPER), 2.2),
    }
    compared = sum(arm.paired is not None for arm in analysis.arms)
    if compared:
        figures["differences"] = (
            lambda axes: draw_forest(axes, analysis, _PAPER),
            0.7 + _ROW_INCHES * compared,
        )
    for diagnosis in diagnoses(analysis):
        draw = partial(draw_variance, diagnosis=diagnosis, colors=_PAPER, kind="all")
        figures[unique(f"variance-{_slug(diagnosis.label)}", figures)] = (draw, 2.2)
    return figures


def _curves(analysis: Analysis, against: str, axes: Axes) -> None:
    draw_curves(axes, analysis, _PAPER, against=against)


def _drawn(draw: Draw, *, height: float) -> dict[str, bytes]:
    with looks(_PAPER, size=_POINTS, line_width=1.1, text_as="path"):
        figure = Figure(figsize=(_COLUMN_INCHES, height), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        _add_legend(figure, axes)
        made = {}
        for kind, metadata in _UNDATED.items():
            content = io.BytesIO()
            figure.savefig(content, format=kind, metadata=metadata)
            made[kind] = content.getvalue()
    return made


def _add_legend(figure: Figure, axes: Axes) -> None:
    """Add the legend above the axes, where it covers nothing, with room of its own."""
    handles, given = axes.get_legend_handles_labels()
    labels = [shortened(label, length=_LEGEND_CHARACTERS - 5) for label in given]
    if not labels:
        return
    columns = max(1, min(3, _LEGEND_CHARACTERS // (max(map(len, labels)) + 5)))
    rows = -(-len(labels) // columns)
    figure.set_size_inches(_COLUMN_INCHES, figure.get_figheight() + _LEGEND_INCHES * rows)
    figure.legend(handles, labels, loc="outside upper left", ncols=columns)


def _slug(label: str) -> str:
    """Return a label as part of a file's name."""
    return "".join(c if c.isalnum() or c in "-." else "-" for c in label).strip("-.") or "arm"

"""Static figures as inline SVG that takes its colours, fonts and size from the page."""

import html
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mars.report.drawing import Colors
from mars.report.markup import Markup
from mars.report.palette import ARMS_LIGHT

# Colours that no drawing has otherwise; each is replaced by one of the page's.
_SENTINELS = {
    "#010203": "currentColor",
    "#040506": "var(--rule)",
    **{f"#0708{index:02x}": f"var(--arm-{index})" for index in range(len(ARMS_LIGHT))},
}
_POINTS_PER_REM = 12
_LARGEST = 1.3  # of the size that a drawing was made for
_TEXT, _RULE, *_ARMS = _SENTINELS
COLORS = Colors(text=_TEXT, rule=_RULE, arms=tuple(_ARMS))


@contextmanager
def looks(
    colors: Colors, *, size: float, line_width: float = 1.4, text_as: str = "none"
) -> Iterator[None]:
    """Draw with quiet axes, in the given colours, with text and lines of a size in points.

    In SVG text stays text, or becomes a ``path`` where it must look the same everywhere.
    """
    settings = {
        "font.size": size,
        "axes.labelsize": size,
        "axes.titlesize": size,
        "xtick.labelsize": size - 1,
        "ytick.labelsize": size - 1,
        "legend.fontsize": size - 1,
        "legend.frameon": False,
        "legend.handlelength": 2.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.linewidth": 0.6,
        "grid.linewidth": 0.5,
        "lines.linewidth": line_width,
        "lines.markersize": 3 * line_width,
        "errorbar.capsize": 2 * line_width,
        "text.color": colors.text,
        "axes.labelcolor": colors.text,
        "axes.edgecolor": colors.text,
        "xtick.color": colors.text,
        "ytick.color": colors.text,
        "grid.color": colors.rule,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
        # Words from a file are words: a dollar sign starts no formula.
        "text.parse_math": False,
        "svg.hashsalt": "mars",
        "svg.fonttype": text_as,
        "pdf.fonttype": 42,
    }
    with mpl.rc_context(settings):  # type: ignore[arg-type]  # its keys are a list of literals
        yield


def inline_svg(
    draw: Callable[[Axes], None], *, name: str, alt: str, width: float = 4.8, height: float = 2.9
) -> Markup:
    """Return a drawing as an element whose ids begin with ``name``; ``alt`` says what it shows."""
    with looks(COLORS, size=9):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure.subplots())
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
    return Markup(_of_the_page(written.getvalue(), name=name, alt=alt))


def _of_the_page(text: str, *, name: str, alt: str) -> str:
    """Return what matplotlib wrote as an element of the page."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Its style sheet would hold for the whole page, which has the same for drawings alone.
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    size = re.search(r'viewBox="0 0 ([\d.]+) [\d.]+"', text)
    assert size is not None
    widest = f"max-width: {_LARGEST * float(size[1]) / _POINTS_PER_REM:.4g}rem"
    opened = f'<svg {size[0]} style="{widest}" role="img" aria-label="{html.escape(alt)}">'
    text = re.sub(r"<svg[^>]*>", lambda _: opened, text, count=1)
    text = re.sub(r'\b(id="|url\(#|href="#)', rf"\1{name}-", text).replace("xlink:href", "href")
    for sentinel, color in _SENTINELS.items():
        text = text.replace(sentinel, color)
    # The page's own font, at the size the drawing was made for.
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    return re.sub(r"\n\s*", "\n", text).strip()

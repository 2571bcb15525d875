"""Parts of the page that occur more than once: tables, figures, legends."""

from collections.abc import Sequence
from dataclasses import dataclass

from mars.report.cells import Cell
from mars.report.interactive import Json
from mars.report.markup import Markup, data, join, tag
from mars.report.palette import DASHES, Style

# Shapes of markers in a box of 36 by 14, around its middle.
_SHAPES = {
    "square": "14.5,3.5 21.5,3.5 21.5,10.5 14.5,10.5",
    "diamond": "18,2.5 22.5,7 18,11.5 13.5,7",
    "triangle-up": "18,2.5 22.5,10.5 13.5,10.5",
    "triangle-down": "18,11.5 22.5,3.5 13.5,3.5",
    "cross": "16.5,2.5 19.5,2.5 19.5,5.5 22.5,5.5 22.5,8.5 19.5,8.5 19.5,11.5 16.5,11.5 16.5,8.5 "
    "13.5,8.5 13.5,5.5 16.5,5.5",
    "star": "18,1.5 19.5,5.2 23.5,5.4 20.4,7.9 21.4,11.8 18,9.6 14.6,11.8 15.6,7.9 12.5,5.4 "
    "16.5,5.2",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """What makes a static drawing interactive."""

    script: str
    """Which of the page's functions draws it."""
    data: Json
    is_small: bool = False
    has_runs: bool = False
    """Whether single runs can be chosen below it."""


def table(
    titles: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[Cell]],
    *,
    name: str,
    caption: str,
    is_sortable: bool = False,
    text_columns: Sequence[int] = (),
) -> Markup:
    """Return a table that scrolls in its own box; titles come with what they mean, or with ""."""
    head = tag(
        "tr",
        *(
            tag(
                "th",
                title,
                scope="col",
                title=note or None,
                class_="text" if index in text_columns else None,
            )
            for index, (title, note) in enumerate(titles)
        ),
    )
    made = tag(
        "table",
        tag("thead", head),
        tag("tbody", *(_row(cells, text_columns) for cells in rows)),
        class_="sortable" if is_sortable else None,
        aria_labelledby=f"{name}-caption",
    )
    # Not a caption element, which would be as wide as the table and scroll away with it.
    said = tag("p", caption, id=f"{name}-caption", class_="caption")
    # A box that scrolls can be reached by keyboard, and says what it holds.
    label = f"{name}-caption"
    box = tag("div", made, class_="scroll wide", role="region", tabindex="0", aria_labelledby=label)
    return tag("div", said, box, id=name)


def figure(
    *,
    name: str,
    static: Sequence[Markup],
    caption: str,
    alt: str,
    legend: Markup | None = None,
    chart: Chart | None = None,
) -> Markup:
    """Return a figure: its drawing, and what it takes to make it interactive."""
    drawn = tag("div", *static, class_="static")
    if chart is None:
        return tag("figure", legend, drawn, tag("figcaption", caption), id=name)
    plot = "plot small" if chart.is_small else "plot"
    return tag(
        "figure",
        tag("div", class_="controls"),
        legend,
        tag("div", class_=plot, role="img", aria_label=alt),
        drawn,
        _runs() if chart.has_runs else None,
        tag("figcaption", caption),
        data(f"{name}-data", chart.data),
        id=name,
        data_chart=chart.script,
    )


def legend(entries: Sequence[tuple[str, Style]]) -> Markup:
    """Return a key for each label: its colour, dash and marker."""
    items = (tag("li", tag("span", swatch(mine), label, class_="key")) for label, mine in entries)
    return tag("ul", *items, class_="legend")


def swatch(mine: Style) -> Markup:
    """Return a short piece of a style's line."""
    color = f"var({mine.color_name})"
    dashes = " ".join(f"{2 * length:g}" for length in DASHES[mine.dash])
    line = f"stroke:{color};stroke-width:2;stroke-dasharray:{dashes or 'none'}"
    fill = f"fill:{color}"
    shape = (
        tag("circle", cx="18", cy="7", r="3.75", style=fill)
        if mine.marker == "circle"
        else tag("polygon", points=_SHAPES[mine.marker], style=fill)
    )
    return tag(
        "svg",
        tag("line", x1="0", y1="7", x2="36", y2="7", style=line),
        shape,
        viewBox="0 0 36 14",
        aria_hidden="true",
    )


def pairs(entries: Sequence[tuple[str, str]]) -> Markup:
    """Return names with their values."""
    return tag("dl", *(join([tag("dt", name), tag("dd", value)]) for name, value in entries))


def folded(title: str, *children: Markup, name: str | None = None) -> Markup:
    """Return something that opens when it is asked for."""
    return tag("details", tag("summary", title), *children, id=name)


def _row(cells: Sequence[Cell], text_columns: Sequence[int]) -> Markup:
    first, *rest = cells
    made = [tag("th", first.text, scope="row")]
    for index, cell in enumerate(rest, start=1):
        is_text = index in text_columns
        known = "" if cell.value is None else f"{cell.value:.9g}"
        made.append(
            tag(
                "td",
                cell.text,
                tag("small", cell.detail) if cell.detail else None,
                _called(cell) if cell.call else None,
                data_sort=None if is_text else known,
                class_="text" if is_text else None,
            )
        )
    return tag("tr", *made)


def _called(cell: Cell) -> Markup:
    return tag("small", tag("strong", cell.call), f", {cell.chance}" if cell.chance else None)


def _runs() -> Markup:
    summary = tag("summary", "Single runs")
    return tag("details", summary, tag("div", class_="box"), class_="runs")

"""The answer in the terminal: verdict and table, in whatever width there is."""

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from mars.metrics.display import printable
from mars.report.analysis import Analysis
from mars.report.cells import Cell, Column, columns
from mars.report.summary import ArmSummary

_PLAIN = {"\N{MINUS SIGN}": "-", "\N{EN DASH}": "-", "\N{INFINITY}": "inf", "±": "+-"}
_STYLES = {"lower": "green", "higher": "red"}


def show(analysis: Analysis, console: Console) -> None:
    """Print the verdict and the table."""
    console.print(_text(analysis.results.title, console, style="bold underline"))
    for sentence in analysis.verdict:
        console.print(_text(sentence, console))
    console.print()
    made = columns(analysis)
    # What matters least goes first where the terminal is narrow; names and losses stay.
    dropped: list[str] = []
    table = _table(analysis, made, console)
    while _width(table, console) > console.width and any(column.rank for column in made):
        least = max(made, key=lambda column: column.rank)
        made = [column for column in made if column is not least]
        dropped.insert(0, least.title.lower())
        table = _table(analysis, made, console)
    console.print(table)
    if dropped:
        where = "shown on a wider terminal and on the page"
        console.print(_text(f"{', '.join(dropped).capitalize()}: {where}.", console, style="dim"))


def _table(analysis: Analysis, made: list[Column], console: Console) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(made):
        first = index == 0
        table.add_column(
            column.short,
            justify="left" if first else "right",
            overflow="fold",
            no_wrap=not first,
            max_width=max(12, console.width // 4) if first else None,
            vertical="top",
        )
    for arm in analysis.arms:
        table.add_row(*(_cell(column.cell(arm), arm, console) for column in made))
    return table


def _cell(cell: Cell, arm: ArmSummary, console: Console) -> Text:
    text = _text(cell.text, console)
    if cell.margin:
        text.append(" ").append_text(_text(cell.margin, console, style="dim"))
    if cell.call:
        text.append(" ").append(arm.call, style=_STYLES.get(arm.call, "dim"))
    return text


def _text(text: str, console: Console, *, style: str = "") -> Text:
    """Return text as the console can show it; brackets in it are no markup."""
    if not console.encoding.lower().startswith("utf"):
        for sign, plain in _PLAIN.items():
            text = text.replace(sign, plain)
    return Text(printable(text, encoding=console.encoding), style=style)


def _width(table: Table, console: Console) -> int:
    return Measurement.get(console, console.options.update(max_width=10_000), table).maximum

"""The answer as GitHub Markdown: verdict, table, limits."""

import re

from mars.report.analysis import Analysis
from mars.report.cells import Cell, columns

_SPECIAL = "\\`*_{}[]<>#|!~$&"


def markdown(analysis: Analysis) -> str:
    """Return verdict, table and what the data do not show, to be pasted."""
    made = columns(analysis)
    rows = [[_cell(column.cell(arm)) for column in made] for arm in analysis.arms]
    rule = ["---", *["---:"] * (len(made) - 1)]
    lines = [
        f"### {plain(analysis.results.title)}",
        "",
        *(_item(sentence) for sentence in analysis.verdict),
        "",
        *(_row(row) for row in ([plain(column.title) for column in made], rule, *rows)),
        "",
        "Intervals are 95 % over seeds.",
        "",
        "What the data do not show:",
        "",
        *(_item(caveat) for caveat in analysis.caveats),
    ]
    if analysis.results.command is not None:
        lines += ["", *_code(analysis.results.command)]
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """Return text that Markdown shows as it is, in one line."""
    return "".join(f"\\{c}" if c in _SPECIAL else c for c in " ".join(text.split()))


def _item(text: str) -> str:
    """Return an entry of a list, which begins no list of its own."""
    return "- " + re.sub(r"^([+-]|\d+(?=[.)]))", _escaped_start, plain(text))


def _escaped_start(start: re.Match[str]) -> str:
    return f"\\{start[0]}" if start[0] in "+-" else f"{start[0]}\\"


def _cell(cell: Cell) -> str:
    chance = f"{cell.call}, {cell.chance}" if cell.chance else cell.call
    small = "; ".join(plain(part) for part in (cell.detail, chance) if part)
    return f"{plain(cell.text)} ({small})" if small else plain(cell.text)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> list[str]:
    """Return a block of code that no backticks inside it can end."""
    fence = "```"
    while fence in text:
        fence += "`"
    return [f"{fence}sh", text, fence]

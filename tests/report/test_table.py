"""The answer in the terminal."""

import io
import math

import pytest
from rich.console import Console

from mars.report.table import show
from report.example import FINALS, in_memory


def shown(analysis, *, width, encoding="utf-8", color=False):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    system = "standard" if color else None
    console = Console(
        file=file, width=width, highlight=False, force_terminal=color, color_system=system
    )
    show(analysis, console)
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def rows(text):
    """Return the lines of the table, by their first word."""
    lines = text[text.index("\n\n") :].splitlines()
    return {line.split()[0]: line for line in lines if line.strip()}


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(width):
    text = shown(in_memory(), width=width)
    assert max(map(len, text.splitlines())) <= width
    table = rows(text)
    for label in FINALS:
        assert label in table
    # One line an arm: nothing is wrapped.
    assert list(table)[: len(FINALS) + 1] == ["arm", *FINALS]


def test_at_120_columns_everything_is_there():
    table = rows(shown(in_memory(), width=120))
    assert table["arm"].split() == [
        *("arm", "rate", "val", "loss", "seeds", "difference"),
        *("tokens", "seconds", "step", "memory", "diverged"),
    ]
    assert table["mars-m"].split()[:4] == ["mars-m", "0.016", "1.5200", "±0.0373"]
    assert "\N{MINUS SIGN}0.1000 ±0.0124 lower" in table["mars-m"]
    assert table["mars-lion"].endswith("1 of 6")
    assert "wider" not in " ".join(table.values())


def test_at_80_columns_what_matters_stays_and_the_rest_is_named():
    text = shown(in_memory(), width=80)
    table = rows(text)
    assert table["arm"].split()[:6] == ["arm", "rate", "val", "loss", "difference", "tokens"]
    assert "memory" not in table["arm"]
    told = " ".join(text.split())
    assert "seeds, optimizer memory, diverged: shown on a wider terminal" in told


def test_the_verdict_comes_before_the_table():
    analysis = in_memory()
    text = shown(analysis, width=100)
    joined = " ".join(text.split())
    places = [joined.index(" ".join(sentence.split())) for sentence in analysis.verdict]
    assert places == sorted(places)
    assert places[-1] < joined.index("arm rate")


def test_what_is_lower_is_green_and_what_is_higher_red():
    text = shown(in_memory(), width=120, color=True)
    assert "\x1b[32mlower" in text
    assert "\x1b[31mhigher" in text


def test_a_terminal_without_signs_gets_letters():
    text = shown(in_memory(), width=120, encoding="ascii")
    assert "-0.1000 +-0.0124 lower" in text
    assert "?" not in text


def test_brackets_in_a_label_are_no_markup():
    text = shown(in_memory(title="[red]title[/red] \x1b[2J"), width=100)
    assert text.startswith("[red]title[/red]  [2J")


def test_nothing_finished_is_shown_as_that():
    text = shown(in_memory({"adamw": {0.002: {0: math.nan}}}, baseline=None), width=100)
    assert rows(text)["adamw"].split() == [
        "adamw",
        *["\N{EN DASH}"] * 2,
        "0",
        "\N{EN DASH}",
        "unfinished",
        *["\N{EN DASH}"] * 4,
        "0",
        "of",
        "1",
    ]

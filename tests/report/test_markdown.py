"""The answer as Markdown, to be pasted."""

import re

from hypothesis import given
from hypothesis import strategies as st

from mars.report.markdown import markdown, plain
from report.example import FINALS, in_memory


def table(text):
    """Return the cells of the table, row by row."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [re.split(r"(?<!\\) ?\| ?", line)[1:-1] for line in lines]


def test_every_arm_is_a_row_with_the_numbers_of_the_page():
    head, rule, *rows = table(markdown(in_memory()))
    assert head[:5] == ["Arm", "Best rate", "Validation loss", "Seeds", "Difference"]
    assert rule == ["---", *["---:"] * 9]
    assert [row[0] for row in rows] == list(FINALS)
    assert all(len(row) == len(head) for row in rows)
    best = dict(zip(head, rows[2], strict=True))
    assert best["Validation loss"] == "1.5200 (1.4827 to 1.5573)"
    assert best["Difference"].startswith("\N{MINUS SIGN}0.1000 (")
    assert "lower, p" in best["Difference"]


def test_verdict_and_limits_are_lists():
    analysis = in_memory(command="mars compare quickstart --out `x`")
    text = markdown(analysis)
    items = [line[2:] for line in text.splitlines() if line.startswith("- ")]
    assert items == [plain(each) for each in (*analysis.verdict, *analysis.caveats)]
    assert text.endswith("```sh\nmars compare quickstart --out `x`\n```\n")
    assert text.startswith("### synthetic\n")


def test_a_command_cannot_end_its_block():
    assert markdown(in_memory(command="```")).endswith("````sh\n```\n````\n")


def test_without_a_command_there_is_no_block():
    assert "```" not in markdown(in_memory())


@given(st.text())
def test_text_stays_in_its_line_and_cell(text):
    made = plain(text)
    assert "\n" not in made
    # Every sign that Markdown could obey is escaped, and no other is.
    unescaped = re.sub(r"\\([\\`*_{}\[\]<>#|!~$&])", "", made)
    assert not re.search(r"[\\`*_{}\[\]<>#|!~$&]", unescaped)
    assert re.sub(r"\\([\\`*_{}\[\]<>#|!~$&])", r"\1", made) == " ".join(text.split())


def test_a_hostile_title_is_text():
    text = markdown(in_memory(title="<img src=x> | *a* [b](c)\n# d"))
    assert text.splitlines()[0] == r"### \<img src=x\> \| \*a\* \[b\](c) \# d"


def test_an_entry_begins_no_list_of_its_own():
    failures = ("+ a", "- b", "3. c")
    lines = markdown(in_memory(failures=failures, pending=3)).splitlines()
    assert not [line for line in lines if re.match(r"- ([+-]|\d+[.)]) ", line)]

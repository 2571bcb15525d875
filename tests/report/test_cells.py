"""The cells of the table, which the page, the terminal and Markdown share."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mars.report.cells import (
    bytes_text,
    columns,
    interval,
    margin,
    number,
    rate_text,
    seconds_text,
    shortened,
)
from mars.report.statistics import Estimate
from report.example import FINALS, in_memory

MINUS = "\N{MINUS SIGN}"
DASH = "\N{EN DASH}"


def cells(analysis, label):
    arm = next(arm for arm in analysis.arms if arm.label == label)
    return {column.title: column.cell(arm) for column in columns(analysis)}


@pytest.mark.parametrize(
    ("value", "given", "text"),
    [
        (1.23456, {}, "1.2346"),
        (-0.5, {}, f"{MINUS}0.5000"),
        (0.5, {"sign": True}, "+0.5000"),
        (-0.00001, {"sign": True}, "0.0000"),
        (0.0, {"sign": True}, "0.0000"),
        (12.3456, {"digits": 0}, "12"),
        (math.inf, {}, "∞"),
        (-math.inf, {}, f"{MINUS}∞"),
        (math.nan, {}, DASH),
    ],
)
def test_numbers_read_as_people_write_them(value, given, text):
    assert number(value, **given) == text


@given(st.floats(-1e6, 1e6))
def test_a_number_is_what_it_says_to_its_last_digit(value):
    assert float(number(value).replace(MINUS, "-")) == pytest.approx(value, abs=0.5001e-4)


def test_an_interval_needs_two_seeds():
    assert interval(Estimate(1.0, 0.9, 1.1, 3)) == "0.9000 to 1.1000"
    assert margin(Estimate(1.0, 0.9, 1.1, 3)) == "±0.1000"
    assert interval(Estimate(1.0, None, None, 1)) == ""
    assert margin(Estimate(1.0, None, None, 1)) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, DASH),
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1 kB"),
        (6.61e6, "6.61 MB"),
        (4e15, "4e+03 TB"),
    ],
)
def test_bytes_have_three_digits(value, text):
    assert bytes_text(value) == text


def test_short_times_and_rates():
    assert [seconds_text(s) for s in (0.0404, 1.234, 0.00051)] == ["40.4 ms", "1.23 s", "0.51 ms"]
    assert [rate_text(lr) for lr in (0.003, 1e-5, 0.0001)] == ["0.003", "1e-05", "0.0001"]


@given(st.text(max_size=80), st.integers(3, 40))
def test_a_shortened_label_fits_and_keeps_both_ends(label, length):
    short = shortened(label, length=length)
    assert len(short) == min(len(label), length)
    if len(label) > length:
        head, tail = short.split("…")[0], short.split("…")[-1]
        assert label.startswith(head)
        assert label.endswith(tail)


def test_an_arm_that_is_better_says_by_how_much_and_how_surely():
    found = cells(in_memory(), "mars-m")
    assert found["Validation loss"].text == "1.5200"
    assert found["Validation loss"].detail == "1.4827 to 1.5573"
    assert found["Difference"].text == f"{MINUS}0.1000"
    assert found["Difference"].call == "lower"
    assert found["Difference"].chance.startswith("p ")
    assert 0 < found["Tokens to baseline"].value < 1
    assert found["Tokens to baseline"].text == f"{100 * found['Tokens to baseline'].value:.0f} %"


def test_the_baseline_is_its_own_measure():
    found = cells(in_memory(), "adamw")
    assert (found["Difference"].text, found["Difference"].call) == ("0", "baseline")
    assert found["Difference"].value == 0
    assert found["Tokens to baseline"].text == found["Seconds to baseline"].text == "100 %"


def test_an_arm_that_is_worse_never_gets_there():
    found = cells(in_memory(), "mars-lion")
    assert found["Difference"].call == "higher"
    assert found["Tokens to baseline"].text == "never"
    assert found["Tokens to baseline"].value is None
    assert found["Diverged"].text == "1 of 6"


def test_some_seeds_that_get_there_are_counted():
    finals = {"adamw": {0.002: {0: 1.5, 1: 1.5}}, "muon": {0.02: {0: 1.4, 1: 1.6}}}
    found = cells(in_memory(finals), "muon")["Tokens to baseline"]
    assert (found.text, found.detail) == ("1 of 2 seeds", "reached it")
    assert found.value is None


def test_seeds_too_few_make_no_claim():
    for seeds, words in ((1, "one seed: no claim"), (2, "two seeds: no claim")):
        finals = {
            label: {lr: dict(list(by.items())[:seeds]) for lr, by in rates.items()}
            for label, rates in FINALS.items()
        }
        found = cells(in_memory(finals), "mars-m")["Difference"]
        assert (found.call, found.chance) == (words, "")
        assert bool(found.detail) == (seeds == 2)


def test_what_is_not_known_is_a_dash_and_sorts_last():
    finals = {"adamw": {0.002: {0: 1.5}}, "muon": {0.02: {0: math.nan}}}
    found = cells(in_memory(finals), "muon")
    for title in ("Best rate", "Validation loss", "Difference", "Step time", "Optimizer memory"):
        assert found[title].text == DASH, title
        assert found[title].value is None, title
    assert found["Difference"].call == "unfinished"
    assert found["Seeds"].text == "0"


def test_a_rate_on_the_edge_of_its_grid_says_so():
    found = cells(in_memory(), "mars-m")
    assert found["Best rate"].detail == "edge of grid"
    inside = {"adamw": {0.001: {0: 2.0}, 0.002: {0: 1.5}, 0.004: {0: 2.0}}}
    assert cells(in_memory(inside, baseline=None), "adamw")["Best rate"].detail == ""

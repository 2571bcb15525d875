import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mars.metrics.quantities import (
    count_text,
    duration_text,
    loss_text,
    percent_text,
    rate_text,
    sparkline,
)


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        (loss_text, 2.4314, "2.431"),
        (loss_text, 0.0, "0.000"),
        (loss_text, 0.00123, "1.2e-03"),
        (loss_text, 123456.0, "1.2e+05"),
        (loss_text, math.nan, "nan"),
        (loss_text, math.inf, "inf"),
        (loss_text, None, "-"),
        (rate_text, 0.0051, "5.1e-03"),
        (rate_text, 0.0, "0.0e+00"),
        (rate_text, None, "-"),
        (percent_text, 0.0314, "3.1%"),
        (percent_text, math.nan, "nan%"),
        (percent_text, None, "-"),
        (count_text, 0, "0"),
        (count_text, 2, "2"),
        (count_text, 1.25, "1.2"),
        (count_text, 999, "999"),
        (count_text, 12345.6, "12.3k"),
        (count_text, 999_960, "1.0M"),
        (count_text, 1_000_000, "1.0M"),
        (count_text, 1_557_611_200, "1.6B"),
        (count_text, math.inf, "inf"),
        (count_text, None, "-"),
        (duration_text, 0.2, "0:00"),
        (duration_text, 62, "1:02"),
        (duration_text, 3599.7, "1:00:00"),
        (duration_text, 3661, "1:01:01"),
        (duration_text, 100 * 3600, "100:00:00"),
        (duration_text, -1, "0:00"),
        (duration_text, math.nan, "-"),
        (duration_text, None, "-"),
    ],
)
def test_a_quantity_reads_so(text, value, expected):
    assert text(value) == expected


@given(st.floats(0, 1e15))
def test_a_count_is_right_to_a_twentieth(value):
    text = count_text(value)
    scale = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}.get(text[-1], 1)
    shown = float(text.rstrip("kMBT")) * scale
    # One decimal below ten, none or one above: half a unit of the last place shown.
    assert abs(shown - value) <= max(0.05 * scale, 0.5 if 10 <= value < 1000 else 0) * (1 + 1e-9)


@given(st.lists(st.floats(-1e6, 1e6), max_size=80))
def test_a_sparkline_has_a_bar_a_value_in_their_order(values):
    bars = sparkline(values)
    assert len(bars) == len(values)
    by_value = [bar for _, bar in sorted(zip(values, bars, strict=True))]
    assert by_value == sorted(by_value)


def test_a_sparkline_shows_the_fall_of_a_loss():
    assert sparkline([9.0, 8, 7, 6, 5, 4, 3, 2, 1]) == "██▇▆▅▄▃▂▁"
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([5.0, *[1.0] * 20]) == "█" + "▁" * 20

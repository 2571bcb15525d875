"""Colours that everybody can read and tell apart."""

from itertools import combinations

import numpy as np
import pytest

from mars.report.palette import (
    ARMS_DARK,
    ARMS_LIGHT,
    DARK,
    DASHES,
    LIGHT,
    MARKERS,
    custom_properties,
    style,
    styles,
)
from report.browser import contrast
from report.example import FINALS, in_memory

# How the three kinds of cones' absence mixes linear red, green and blue: Machado et al. 2009.
SIGHT = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
MODES = [(LIGHT, ARMS_LIGHT), (DARK, ARMS_DARK)]


def channels(color):
    return tuple(int(color[start : start + 2], 16) for start in (1, 3, 5))


def seen(color, sight):
    """Return a colour in CIELAB as eyes of a kind see it."""
    parts = np.array(channels(color)) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ np.clip(SIGHT[sight] @ linear, 0, 1) / [0.9505, 1, 1.089]
    root = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


@pytest.mark.parametrize(("colors", "_"), MODES, ids=["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks_for(colors, _):
    for text in ("text", "muted", "accent"):
        for behind in ("background", "surface"):
            assert contrast(channels(colors[text]), channels(colors[behind])) >= 4.5, (text, behind)
    # The chosen part of a control is written in the background's colour.
    assert contrast(channels(colors["background"]), channels(colors["accent"])) >= 4.5


@pytest.mark.parametrize(("colors", "arms"), MODES, ids=["light", "dark"])
def test_lines_and_borders_have_the_contrast_of_graphics(colors, arms):
    for color in (*arms, colors["edge"], colors["focus"]):
        assert contrast(channels(color), channels(colors["background"])) >= 3, color


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("arms", [ARMS_LIGHT, ARMS_DARK], ids=["light", "dark"])
def test_arms_are_told_apart_by_every_kind_of_sight(arms, sight):
    apart = [
        np.linalg.norm(seen(first, sight) - seen(second, sight))
        for first, second in combinations(arms, 2)
    ]
    # Two colours 2.3 apart are just noticed as different side by side; lines lie apart.
    assert min(apart) > 12


def test_thirty_arms_differ_in_colour_or_dash():
    made = [style(index) for index in range(30)]
    assert len({(each.color, each.dash) for each in made}) == 30
    assert {each.dash for each in made} == set(DASHES)
    assert {each.marker for each in made} == set(MARKERS)


def test_the_baseline_is_neutral_wherever_it_stands():
    for baseline in FINALS:
        look = styles(in_memory(baseline=baseline))
        assert look[baseline] == style(0)
        assert sorted(each.color for each in look.values()) == [0, 1, 2, 3]
    assert style(0).color_name == "--arm-0"
    red, green, blue = channels(ARMS_LIGHT[0])
    assert max(red, green, blue) - min(red, green, blue) < 20


def test_without_a_baseline_no_arm_is_neutral():
    assert [each.color for each in styles(in_memory(baseline=None)).values()] == [1, 2, 3, 4]


def test_the_sheet_has_every_colour_in_both_modes():
    light, dark = custom_properties().split("@media")
    for name, color in LIGHT.items():
        assert f"--{name}:{color};" in light
    for name, color in DARK.items():
        assert f"--{name}:{color};" in dark
    for index, (bright, dim) in enumerate(zip(ARMS_LIGHT, ARMS_DARK, strict=True)):
        assert f"--arm-{index}:{bright};" in light
        assert f"--arm-{index}:{dim};" in dark
        assert f"--arm-{index}-soft:rgba({','.join(map(str, channels(dim)))},0.16);" in dark
    assert dark.startswith(" screen and (prefers-color-scheme:dark)")

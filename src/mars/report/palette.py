"""Colours, dashes and markers: of the page in light and dark, and of the arms in every figure.

Six colours that people with any colour blindness tell apart; a dash and a marker repeat what the
colour says, and tell apart what shares one. The first, neutral, is the baseline's.
"""

from dataclasses import dataclass

from mars.report.analysis import Analysis

LIGHT = {
    "background": "#ffffff",
    "surface": "#f3f5f8",
    "text": "#1d2127",
    "muted": "#565e6a",
    "rule": "#d9dde3",
    "edge": "#7b838f",
    "accent": "#0b5cad",
    "focus": "#b3460a",
}
DARK = {
    "background": "#15181d",
    "surface": "#1f242c",
    "text": "#e6e9ee",
    "muted": "#a8b0bc",
    "rule": "#353c47",
    "edge": "#7f8896",
    "accent": "#7db7ff",
    "focus": "#ffb27a",
}
ARMS_LIGHT = ("#30353f", "#0b6fb8", "#d9480f", "#00926a", "#a83279", "#7454d8")
ARMS_DARK = ("#d8dee9", "#5aa5f5", "#f0743a", "#3ddc9b", "#d06a9a", "#8a63ff")

# As plotly calls them, and as lengths for matplotlib and SVG in units of the line's width.
DASHES: dict[str, tuple[float, ...]] = {
    "solid": (),
    "dash": (6, 2),
    "dot": (1.2, 1.6),
    "dashdot": (6, 2, 1.2, 2),
    "longdash": (11, 3),
}
# As plotly calls them, and as matplotlib does.
MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "triangle-down": "v",
    "cross": "P",
    "star": "*",
}
_SOFT = 0.16  # opacity of a band


@dataclass(frozen=True, slots=True)
class Style:
    """How one arm is drawn, everywhere."""

    color: int
    """Index of its colour."""
    dash: str
    marker: str

    @property
    def color_name(self) -> str:
        """The custom property of its colour."""
        return f"--arm-{self.color}"

    @property
    def soft_name(self) -> str:
        """The custom property of its band's colour."""
        return f"{self.color_name}-soft"


def style(index: int) -> Style:
    """Return the style of an index; the baseline's is 0. Thirty differ in colour or dash."""
    dashes, markers, colors = tuple(DASHES), tuple(MARKERS), len(ARMS_LIGHT)
    turn = index // colors
    return Style(
        color=index % colors,
        dash=dashes[(index + turn) % len(dashes)],
        marker=markers[index % len(markers)],
    )


def styles(analysis: Analysis) -> dict[str, Style]:
    """Return the style of every arm by its label."""
    labels = [arm.label for arm in analysis.results.arms]
    others = [label for label in labels if label != analysis.results.baseline]
    return {
        label: style(0 if label == analysis.results.baseline else others.index(label) + 1)
        for label in labels
    }


def custom_properties() -> str:
    """Return the colours as a style sheet, for light and dark; paper is always light."""
    light, dark = (
        "".join(f"--{name}:{color};" for name, color in colors.items())
        for colors in (_named(LIGHT, ARMS_LIGHT), _named(DARK, ARMS_DARK))
    )
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


def _named(colors: dict[str, str], arms: tuple[str, ...]) -> dict[str, str]:
    named = dict(colors)
    for index, color in enumerate(arms):
        red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
        named[f"arm-{index}"] = color
        named[f"arm-{index}-soft"] = f"rgba({red},{green},{blue},{_SOFT})"
    return named

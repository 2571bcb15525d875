"""Numbers as people read them. None is shown as a dash: not known, or not measured."""

import math

_DASH = "-"
_THOUSANDS = ("", "k", "M", "B", "T")
_BARS = "▁▂▃▄▅▆▇█"


def loss_text(value: float | None) -> str:
    """Return a loss or norm with three decimals, or in powers of ten where those say nothing."""
    if value is None:
        return _DASH
    plain = not math.isfinite(value) or value == 0 or 0.01 <= abs(value) < 1e5
    return f"{value:.3f}" if plain else f"{value:.1e}"


def rate_text(value: float | None) -> str:
    """Return a learning rate: ``5.1e-03``."""
    return _DASH if value is None else f"{value:.1e}"


def percent_text(fraction: float | None) -> str:
    """Return a fraction in percent: ``3.1%``."""
    return _DASH if fraction is None else f"{100 * fraction:.1f}%"


def count_text(value: float | None) -> str:
    """Return a count with at most four digits and its thousands as a letter: ``12.3k``."""
    if value is None:
        return _DASH
    if not math.isfinite(value):
        return str(value)
    if abs(value) < 1000:
        return f"{value:.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.1f}"
    power = min(int(math.log10(abs(value)) / 3), len(_THOUSANDS) - 1)
    # 999.96k would be rounded to 1000.0k.
    if round(abs(value) / 1000**power, 1) >= 1000 and power + 1 < len(_THOUSANDS):
        power += 1
    return f"{value / 1000**power:.1f}{_THOUSANDS[power]}"


def duration_text(seconds: float | None) -> str:
    """Return a time as ``1:02`` or ``1:01:01``."""
    if seconds is None or not math.isfinite(seconds):
        return _DASH
    minutes, second = divmod(round(max(seconds, 0)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def sparkline(values: list[float]) -> str:
    """Return a bar a value, higher for more.

    The scale ends at the ninth decile: a loss falls so fast at first that on a full scale all the
    rest would lie flat.
    """
    if not values:
        return ""
    low, high = min(values), sorted(values)[int(0.9 * (len(values) - 1))]
    top = len(_BARS) - 1
    if high <= low:
        return "".join(_BARS[top if value > low else 0] for value in values)
    return "".join(_BARS[min(top, round((value - low) / (high - low) * top))] for value in values)

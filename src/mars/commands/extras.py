"""Refusing a command whose packages are not installed, before it does anything."""

from importlib.util import find_spec

from mars.config.errors import RefusedError

REPORT = ("numpy", "scipy", "plotly", "matplotlib")


def check_extra(packages: tuple[str, ...], *, command: str, extra: str) -> None:
    """Refuse a command if one of the packages of its extra is missing."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise RefusedError(
            f"mars {command} needs {', '.join(missing)}: pip install 'mars-optimizer[{extra}]'"
        )

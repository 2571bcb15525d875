"""MARS: variance-reduced optimizers for PyTorch.

Importing this package needs torch and nothing else, and torch is imported when a name is first
used: the command line can show its help without waiting for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from mars._version import __version__

if TYPE_CHECKING:
    from mars.optim.groups import param_groups
    from mars.optim.migration import from_adamw
    from mars.optim.optimizer import MARS

__all__ = ["MARS", "__version__", "from_adamw", "param_groups"]

_HOMES = {
    "MARS": "mars.optim.optimizer",
    "from_adamw": "mars.optim.migration",
    "param_groups": "mars.optim.groups",
}


def __getattr__(name: str) -> object:
    """Return a public name, importing the module it lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted({*globals(), *__all__})

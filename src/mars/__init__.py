"""MARS: variance-reduced optimizers for PyTorch.

Importing this package needs torch and nothing else.
"""

from mars._version import __version__
from mars.optim.groups import param_groups
from mars.optim.migration import from_adamw
from mars.optim.optimizer import MARS

__all__ = ["MARS", "__version__", "from_adamw", "param_groups"]

"""MARS: variance-reduced optimizers for PyTorch.

Importing this package needs torch and nothing else.
"""

from mars._version import __version__
from mars.optim.groups import param_groups
from mars.optim.optimizer import MARS

__all__ = ["MARS", "__version__", "param_groups"]

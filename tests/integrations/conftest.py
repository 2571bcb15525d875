"""The recipes of examples/ as modules, and trainers that stay offline."""

import importlib.util
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# Read when transformers is imported, so set before any test module can do so.
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@cache
def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def recipe(request) -> ModuleType:
    """The recipe that a test module names in RECIPE; a missing library is a failure, not a skip."""
    return load(request.module.RECIPE)

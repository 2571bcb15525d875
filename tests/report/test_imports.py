"""The report reads files: it runs where torch is not, and knows no room that needs it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mars.report

FOLDER = Path(mars.report.__file__).parent
ALLOWED = ("mars.config", "mars.metrics", "mars.report", "mars._version")
MODULES = sorted(FOLDER.rglob("*.py"))


def test_importing_every_module_of_the_report_imports_no_torch():
    names = [f"mars.report.{path.stem}" for path in MODULES if path.stem != "__init__"]
    assert "mars.report.analysis" in names
    program = "import sys, importlib\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
    program += "print([name for name in sys.modules if name.split('.')[0] == 'torch'])"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *names],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_module_imports_only_rooms_without_torch(path):
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
    ours = {name for name in found if name.split(".")[0] == "mars"}
    assert all(name.startswith(ALLOWED) for name in ours), ours
    assert "torch" not in {name.split(".")[0] for name in found}

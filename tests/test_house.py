"""The layout of the house: who may import whom, and what importing costs."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "mars"
STDLIB = sys.stdlib_module_names

# Lower rooms first; a room may import from those before it. Importing upwards is refused.
ROOMS = [
    *("optim", "config", "data", "models"),
    *("checkpoint", "metrics", "training", "bench", "planning"),
    *("diagnosis", "evaluation", "report", "comparison", "commands"),
]


def imports(path: Path) -> set[str]:
    """Return the modules a file imports at any level, by full name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import by full name"
            found.add(node.module or "")
    return found


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def test_every_room_is_known():
    rooms = {p.relative_to(SOURCE).parts[0] for p in modules() if p.parent != SOURCE}
    assert rooms == set(ROOMS)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_module_imports_upwards(path):
    room = path.relative_to(SOURCE).parts[0] if path.parent != SOURCE else None
    for name in imports(path):
        if name.startswith("mars.") and name != "mars._version" and room is not None:
            target = name.split(".")[1]
            assert target in ROOMS[: ROOMS.index(room) + 1], f"{path} imports {name}"


@pytest.mark.parametrize("path", sorted((SOURCE / "optim").rglob("*.py")), ids=lambda p: p.name)
def test_the_library_needs_torch_alone(path):
    outside = {name.split(".")[0] for name in imports(path)} - STDLIB
    # The kernels alone import Triton, and only the engine that starts them imports the kernels.
    allowed = {"triton"} if path.name == "triton_kernels.py" else set()
    assert outside <= {"torch", "mars"} | allowed


def test_mars_imports_with_every_extra_blocked():
    program = """
import sys
for name in sys.argv[1:]:
    sys.modules[name] = None  # importing it now raises ModuleNotFoundError
import mars, torch
param = torch.nn.Parameter(torch.ones(2, 2))
param.grad = torch.ones(2, 2)
mars.MARS([param]).step()
print(mars.__version__, float(param.detach().sum()) < 4)
"""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    names = [
        re.split(r"[^\w-]", r)[0].replace("-", "_") for every in extras.values() for r in every
    ]
    assert "numpy" in names
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *names],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[1] == "True"


def test_training_does_not_import_the_compiler_until_it_compiles():
    program = "import sys, mars.training.assemble; print('torch._dynamo' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_there_is_one_newton_schulz():
    copies = [p for p in modules() if re.search(r"3\.4445", p.read_text())]
    assert [p.name for p in copies] == ["orthogonalize.py", "reference.py"]


def test_nothing_loaded_is_executed():
    forbidden = re.compile(
        r"(?<!\.)\b(?:eval|exec)\(|import pickle|trust_remote_code|torch\.load\("
    )
    for path in modules():
        for line in path.read_text().splitlines():
            if forbidden.search(line):
                assert "weights_only=True" in line, f"{path}: {line}"


def test_every_public_name_has_a_docstring():
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            for child in (
                getattr(node, "body", []) if isinstance(node, ast.Module | ast.ClassDef) else []
            ):
                if isinstance(child, ast.FunctionDef | ast.ClassDef):
                    overload = any(getattr(d, "id", "") == "overload" for d in child.decorator_list)
                    private = child.name.startswith("_") or overload
                    assert private or ast.get_docstring(child), f"{path}: {child.name}"


@pytest.fixture(scope="module")
def made_once() -> None:
    """What marks the tests that ask for it as belonging to one worker."""


@pytest.mark.usefixtures("made_once")
def test_what_a_file_makes_once_is_made_by_one_worker(request):
    # Some versions of pytest and xdist do not know each other's groups, and say nothing.
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("tests are not grouped: one process, or another way to distribute them")
    assert request.node.nodeid.endswith("@tests/test_house")


PAGES = ["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").glob("*.md")))]


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(page, tmp_path):
    text = (ROOT / page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert blocks
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr

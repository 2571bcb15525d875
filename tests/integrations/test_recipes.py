"""Every recipe of examples/ runs as it stands, from any directory, and stays short."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

RECIPES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def test_there_is_a_recipe_for_every_integration():
    assert [path.stem for path in RECIPES] == [
        "accelerate_loop",
        "compiled_model",
        "hf_trainer",
        "lightning_module",
        "plain_loop",
        "step_in_backward",
        "weight_averaging",
    ]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_under_sixty_lines_and_says_how_to_run_it(path):
    text = path.read_text()
    assert len(text.splitlines()) < 60
    assert f"Run: python examples/{path.name}" in text


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_runs_as_a_script_and_lowers_its_loss(path, tmp_path):
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = [float(number) for number in re.findall(r"\d+\.\d{3}\b", done.stdout)]
    assert max(printed) == printed[0] > printed[-1], done.stdout
    assert list(tmp_path.iterdir()) == []

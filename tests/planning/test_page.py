"""The table of docs/planning.md is what the command computes."""

import re
from pathlib import Path

import pytest

from mars.commands.plan_display import _gb
from mars.planning.estimate import estimate, inventory_of
from mars.planning.gpus import gpu_of
from mars.planning.request import make_request

PAGE = Path(__file__).parents[2] / "docs" / "planning.md"
LEAN = ["lean=true", "clip=none", "second_moment=gradient"]
COLUMNS = [("adamw", []), ("mars-adamw", []), ("mars-adamw", LEAN), ("mars-m", [])]


@pytest.mark.parametrize("gpus", [8, 16, 32, 64])
def test_the_page_has_the_peaks_that_are_computed(gpus):
    title = re.escape("| GPUs | mode | AdamW | mars-adamw | mars-adamw lean | mars-m |")
    table = re.search(rf"^{title}\n(.*?)\n\n", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[1].splitlines()]
    written = {row[1]: row[2:] for row in rows if row[0] == str(gpus)}
    computed: dict[str, list[str]] = {}
    for optimizer, settings in COLUMNS:
        request = make_request(
            "gpt3-13b", gpus=gpus, gpu=gpu_of("h100"), optimizer=optimizer, settings=settings
        )
        inventory = inventory_of(request)
        for layout in request.layouts:
            made = estimate(request, layout, inventory)
            shards = f" {layout.replicas}x{layout.shards}" if layout.mode == "hsdp" else ""
            cell = _gb(made.memory.peak) + ("" if made.fits else " ✗")
            computed.setdefault(layout.mode + shards, []).append(cell)
    assert written == computed

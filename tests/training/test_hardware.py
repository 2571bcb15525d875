"""Memory of a run: what its optimizer holds, and the most the process has held."""

import json
import sys
from pathlib import Path

import pytest
import torch

from mars.training import hardware
from mars.training.hardware import PeakMemory, optimizer_bytes
from mars.training.optimizers import Together
from training.runs import make_corpus, records, run, write_config

LEAN = ("optimizer.lean=true", "optimizer.clip=none", "optimizer.second_moment=gradient")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


# Of the tiny model: 257 rows of embedding and 16 of positions, four matrices, three norms.
EMBEDDING, MATRICES, VECTORS = (257 + 16) * 16, 12 * 16 * 16, 3 * 16
ALL = EMBEDDING + MATRICES + VECTORS


@pytest.mark.parametrize(
    ("optimizer", "settings", "expected"),
    [
        ("adamw", (), 8 * ALL),
        ("nadamw", (), 8 * ALL),
        ("lion", (), 4 * ALL),
        ("mars-adamw", (), 12 * (EMBEDDING + MATRICES) + 8 * VECTORS),
        ("mars-adamw", LEAN, 8 * ALL),
        # Muon beside AdamW: two optimizers that step as one.
        ("muon", (), 4 * MATRICES + 8 * (EMBEDDING + VECTORS)),
        ("mars-m", (), 8 * MATRICES + 8 * (EMBEDDING + VECTORS)),
    ],
)
def test_validation_records_say_how_many_bytes_the_optimizer_holds(
    optimizer, settings, expected, corpus, tmp_path
):
    run(write_config(tmp_path, corpus, optimizer=optimizer), tmp_path / "run", *settings)
    found = records(tmp_path / "run")
    assert [r["optimizer_bytes"] for r in found if r["split"] == "val"] == 3 * [expected]
    assert not any("optimizer_bytes" in r for r in found if r["split"] == "train")


def test_counts_are_no_state():
    param = torch.nn.Parameter(torch.ones(3, 2))
    param.grad = torch.ones(3, 2)
    parts = [torch.optim.AdamW([param]), torch.optim.SGD([param], momentum=0.9)]
    for part in parts:
        part.step()
    assert optimizer_bytes(parts[0]) == 2 * 24
    assert optimizer_bytes(Together(parts)) == 3 * 24
    assert optimizer_bytes(torch.optim.SGD([param])) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_peak_is_that_of_the_time_since_the_beginning():
    size = 200_000_000
    before = PeakMemory(CPU).measured()
    memory = PeakMemory(CPU)
    held = torch.ones(size, dtype=torch.uint8)
    del held
    assert memory.measured() >= before + 0.9 * size
    # What was freed before counts no more.
    assert PeakMemory(CPU).measured() < before + 0.5 * size


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_memory_that_was_freed_in_small_pieces_counts_no_more():
    before = PeakMemory(CPU).measured()
    for size in (1_000_000, 4_000_000, 7_000_000):
        torch.ones(size)  # glibc keeps blocks of a size that was freed once
    pieces = [torch.ones(1_000_000) for _ in range(60)] + [torch.ones(1000) for _ in range(20_000)]
    kept = pieces[60::50]
    del pieces
    assert len(kept) == 400
    assert PeakMemory(CPU).measured() < before + 120_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_validation_records_say_the_peak(corpus, tmp_path):
    run(write_config(tmp_path, corpus), tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    peaks = [r["peak_memory_bytes"] for r in map(json.loads, lines) if r["split"] == "val"]
    assert len(peaks) == 3
    assert peaks == sorted(peaks)
    assert 10_000_000 < peaks[0] < peaks[-1] + 1 < 20_000_000_000


def test_what_cannot_be_known_is_left_out(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, "_FORGET", Path("/nowhere/clear_refs"))
    assert PeakMemory(CPU).measured() is None
    assert PeakMemory(torch.device("mps")).measured() is None
    run(write_config(tmp_path, corpus), tmp_path / "run")
    assert "peak_memory_bytes" not in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_on_a_gpu_the_peak_is_that_of_its_tensors(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: calls.append(device))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 7 * len(calls))
    device = torch.device("cuda", 1)
    assert PeakMemory(device).measured() == 7
    assert calls == [device]

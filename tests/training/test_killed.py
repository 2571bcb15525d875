"""A run that is killed and resumed is the run that never stopped."""

import subprocess
import sys
import time
from pathlib import Path

import torch

from training.runs import assert_same_run, make_corpus, run, write_config

PROGRAM = Path(__file__).with_name("killed_program.py")
KILLS = 30


def test_thirty_kills_at_random_moments_change_nothing(tmp_path):
    corpus = make_corpus(tmp_path)
    config = write_config(tmp_path, corpus, steps=240, every=4, validate_every=20)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        start = time.perf_counter()
        run(config, tmp_path / "whole")
        seconds = time.perf_counter() - start
    finally:
        torch.set_num_threads(threads)
    killed = tmp_path / "killed"
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(config), str(killed), str(KILLS), str(seconds)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(PROGRAM.parents[1]), "OMP_NUM_THREADS": "1"},
    )
    alive, writing = map(int, done.stdout.split())
    assert alive == KILLS, "the run ended before all kills; make it longer"
    assert writing == KILLS // 3
    assert_same_run(killed, tmp_path / "whole")

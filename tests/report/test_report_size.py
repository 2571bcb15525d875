"""A hundred runs of ten thousand records: one page, small and soon."""

import time

from mars.report.analysis import analyze
from mars.report.page import write_page
from mars.report.results import collect
from report.synthetic import Shape, write_comparison

LABELS = ("adamw", "mars-adamw", "mars-m", "muon", "mars-lion")


def test_a_page_of_a_hundred_long_runs_is_small_and_made_soon(tmp_path):
    rates = (0.001, 0.002, 0.004, 0.008)
    finals = {
        label: {lr: {seed: 1.5 + 0.01 * i + 0.001 * seed for seed in range(5)} for lr in rates}
        for i, label in enumerate(LABELS)
    }
    shape = Shape(records=9900, validations=100)
    folder = write_comparison(
        tmp_path / "study", finals, shapes=dict.fromkeys(LABELS, shape), steps=99_000
    )
    start = time.process_time()
    results = collect([folder])
    write_page(analyze(results), tmp_path / "report.html")
    # Time of this process alone: what others do on the machine does not count. It takes 9 s.
    assert time.process_time() - start < 30
    assert (tmp_path / "report.html").stat().st_size < 15_000_000
    assert len(results.trials) == 100
    assert sum(len(t.train.steps) + len(t.validation.steps) for t in results.trials) == 1_000_000

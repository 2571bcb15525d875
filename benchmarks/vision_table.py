"""The table of a comparison on images: accuracy and loss, mean and standard error over seeds.

Run with `python benchmarks/vision_table.py runs/vision-study` on what `mars compare` left there.
The rate of an arm is the one with the lowest validation loss on the seeds that rates were searched
on, as in the comparison's own page; runs that have not ended are left out.
"""

import argparse
import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mars.config.load import load_file
from mars.metrics.jsonl import read_records


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that came to its end."""

    arm: str
    lr: float
    seed: int
    loss: float
    accuracy: float
    seconds: float


def ended_runs(folder: Path, plan: dict[str, Any]) -> list[Ended]:
    """Return the runs of a comparison that came to their end."""
    found = []
    for trial in plan["trials"]:
        path = folder / trial["path"]
        if not (path / "run.toml").exists():
            continue
        steps = load_file(path / "run.toml").training.steps
        validated = [r for r in read_records(path / "metrics.jsonl") if r.split == "val"]
        if validated and validated[-1].step == steps:
            last = validated[-1]
            found.append(
                Ended(
                    *(trial["arm"], trial["lr"], trial["seed"]),
                    *(last.loss, last.extra["accuracy"], last.seconds),
                )
            )
    return found


def best_rate(runs: list[Ended], *, searched: list[int]) -> float:
    """Return the rate whose mean loss over the searched seeds is lowest."""
    rates = sorted({run.lr for run in runs})

    def mean_loss(lr: float) -> float:
        losses = [run.loss for run in runs if run.lr == lr and run.seed in searched]
        return statistics.fmean(losses) if losses else math.inf

    return min(rates, key=mean_loss)


def with_error(values: list[float], *, digits: int) -> str:
    """Return a mean and its standard error."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    if len(values) < 2:
        return mean
    return f"{mean} ± {statistics.stdev(values) / math.sqrt(len(values)):.{digits}f}"


def row(label: str, runs: list[Ended], *, searched: list[int]) -> str:
    """Return the line of an arm."""
    lr = best_rate(runs, searched=searched)
    best = [run for run in runs if run.lr == lr]
    tried = sorted({run.lr for run in runs})
    each = ", ".join(
        f"{rate:g}: {100 * next(r.accuracy for r in runs if r.lr == rate):.1f}" for rate in tried
    )
    cells = [
        label,
        f"{lr:g}",
        with_error([100 * run.accuracy for run in best], digits=2),
        with_error([run.loss for run in best], digits=3),
        str(len(best)),
        each,
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    plan = json.loads((folder / "comparison.json").read_text())
    runs = ended_runs(folder, plan)
    searched = plan["seeds"][: plan["search_seeds"]]
    print(f"{len(runs)} runs ended")
    print("| optimizer | lr | accuracy, % | test loss | seeds | accuracy by rate, seed 0 |")
    print("|---|---|---|---|---|---|")
    for arm in plan["arms"]:
        own = [run for run in runs if run.arm == arm["label"]]
        if own:
            print(row(arm["label"], own, searched=searched))


if __name__ == "__main__":
    main()

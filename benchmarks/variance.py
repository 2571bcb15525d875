"""How near the momentum is to the true gradient: exact, approx, and the plain average.

Usage: python benchmarks/variance.py [--figure docs/figures/variance.svg]

Every seed trains on a stochastic quadratic f_t(x) = 1/2 sum h_t (x - a_t)^2 whose curvature h_t and
centre a_t are drawn anew at each step; the true gradient E[h] (x - E[a]) is known (h and a are
independent). What is measured is the squared error |m_t - gradient(x_t)|^2, mean over steps and
coordinates, one figure a seed. All modes see the same samples; only gamma and the mode differ.
"""

import argparse
import statistics
from pathlib import Path

import torch
from torch import Tensor, nn

from mars import MARS

COORDINATES, STEPS, WARMUP = 16, 200, 50
CURVATURE, CENTRE = 1.0, 0.0
CURVATURE_SPREAD, CENTRE_SPREAD = 0.3, 1.0
LEARNING_RATE = 0.1


def errors(mode: str, *, seeds: int, gamma: float = 0.25) -> Tensor:
    """Return each seed's mean squared error of m for "exact", "approx" or "average" (gamma 0).

    The rows of one parameter are the seeds: the Lion rule with the clip off is elementwise, so they
    do not see each other, and it steps as far whatever the momentum's scale.
    """
    generator = torch.Generator().manual_seed(0)
    x = nn.Parameter(torch.full((seeds, COORDINATES), 3.0, dtype=torch.float64))
    optimizer = MARS(
        [x],
        lr=LEARNING_RATE,
        gamma=0.0 if mode == "average" else gamma,
        clip=None,
        is_approx=mode != "exact",
        mars_type="mars-lion",
    )
    squared = torch.zeros(seeds, dtype=torch.float64)
    for step in range(STEPS):
        noise = torch.randn(2, seeds, COORDINATES, generator=generator, dtype=torch.float64)
        h = CURVATURE + CURVATURE_SPREAD * noise[0]
        a = CENTRE + CENTRE_SPREAD * noise[1]
        truth = CURVATURE * (x.detach() - CENTRE)

        def closure(h: Tensor = h, a: Tensor = a) -> float:
            x.grad = h * (x.detach() - a)
            return 0.0

        optimizer.step(closure)
        if step >= WARMUP:
            squared += (optimizer.state[x]["exp_avg"] - truth).square().mean(dim=1)
    return squared / (STEPS - WARMUP)


def interval(ratios: Tensor) -> tuple[float, float, float]:
    """Return the geometric mean of ratios and its 95 % confidence interval."""
    logs = ratios.log().tolist()
    centre = statistics.fmean(logs)
    half = 1.96 * statistics.stdev(logs) / len(logs) ** 0.5
    low, mid, high = torch.tensor([centre - half, centre, centre + half]).exp().tolist()
    return mid, low, high


def main() -> None:
    """Print the table, and draw it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=256)
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    average = errors("average", seeds=arguments.seeds)
    gammas = (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
    curves: dict[str, list[tuple[float, float, float]]] = {"exact": [], "approx": []}
    print(f"error of m relative to the average, {arguments.seeds} seeds, 95 % intervals")
    print(f"{'gamma':>6}  {'exact':^24}  {'approx':^24}")
    for gamma in gammas:
        for mode, points in curves.items():
            ratios = errors(mode, seeds=arguments.seeds, gamma=gamma) / average
            points.append(interval(ratios))
        cells = [f"{m:.3f} [{lo:.3f}, {hi:.3f}]" for m, lo, hi in (c[-1] for c in curves.values())]
        print(f"{gamma:6}  {cells[0]:^24}  {cells[1]:^24}")
    if arguments.figure:
        draw(gammas, curves, arguments.figure)


def draw(gammas: tuple[float, ...], curves: dict[str, list[tuple[float, ...]]], path: Path) -> None:
    """Draw error ratio against gamma."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "mars"  # the same picture gives the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.6))
    for (mode, points), colour in zip(curves.items(), ("#0b6e4f", "#b3541e"), strict=True):
        middle, low, high = zip(*points, strict=True)
        axes.plot(gammas, middle, marker="o", color=colour, label=mode)
        axes.fill_between(gammas, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.axhline(1.0, color="#555555", linestyle="--", label="average of gradients (gamma = 0)")
    axes.set(xlabel="gamma", ylabel="squared error of m / that of the average", yscale="log")
    ticks = (0.1, 0.2, 0.5, 1, 2, 4)
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()

"""Models whose gradients, noise and path are known, so that every figure has a closed form."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mars.diagnosis.estimators import Correction
from mars.diagnosis.figures import StepFigures, step_figures
from mars.diagnosis.gradients import Gradients, make_seed
from mars.diagnosis.kinds import indices, kinds_of
from mars.diagnosis.measure import Experiment, Measured
from mars.diagnosis.plan import Plan

COORDINATES, SIZE = 100, 4


class Coordinates(nn.Module):
    """A vector and a matrix of parameters, in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(COORDINATES // 2, COORDINATES // 2, bias=False)
        self.norm = nn.LayerNorm(COORDINATES, bias=False)
        self.double()

    def flat(self) -> Tensor:
        """Return the first half of the coordinates from each."""
        half = COORDINATES // 2
        return torch.cat([self.hidden.weight[0], self.norm.weight[:half]])


def additive(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Return a loss whose gradient is x + the mean of a batch's noise."""
    x = model.flat()
    return x.square().sum() / 2 + batch[0].mean(dim=0) @ x


def multiplicative(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Return a loss whose gradient is x times the mean of 1 + a batch's noise."""
    return (model.flat().square() * (1 + batch[0].mean(dim=0))).sum() / 2


def normal(seed: int):
    """Return independent normal samples; each range of numbers has its own."""

    def draw(numbers: Sequence[int]) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(make_seed(seed, numbers[0]))
        return (torch.randn(len(numbers), COORDINATES, generator=generator, dtype=torch.float64),)

    return draw


def silent(_: int):
    """Return samples without noise."""
    return lambda numbers: (torch.zeros(len(numbers), COORDINATES, dtype=torch.float64),)


def line(*, steps: int, start: float = 2.0, slope: float = 0.01) -> list[list[Tensor]]:
    """Return a path on which every coordinate is ``start`` + t * ``slope``."""
    shapes = [p.shape for p in Coordinates().parameters()]
    return [
        [torch.full(shape, start + t * slope, dtype=torch.float64) for shape in shapes]
        for t in range(steps + 1)
    ]


def make_correction(**values) -> Correction:
    """Return MARS's defaults without the clip, but for what is given."""
    return Correction(**{"beta1": 0.95, "gamma": 0.025, "clip": None, "max_norm": 1.0, **values})


def measure(loss, path, *, samples=normal, streams=32, large=256, seed=0, **values) -> Measured:
    """Measure on a known model along a path."""
    steps = len(path) - 1
    plan = Plan(
        steps=(steps,), streams=streams, history=steps, micro_batch_size=SIZE, large_batch=large
    )
    experiment = Experiment(
        gradients=Gradients(Coordinates(), loss, samples, part_size=3),
        correction=make_correction(**values),
        plan=plan,
        seed=seed,
    )
    return experiment.measure(path, step=steps, tick=lambda _: None)


def figures(measured: Measured) -> StepFigures:
    """Return the figures by kind: all, matrix and vector."""
    return step_figures(measured, indices(kinds_of(Coordinates())))


def plain_variance(*, beta1: float, steps: int) -> float:
    """Return the variance of the average over that of a gradient, from a start without noise."""
    return (1 - beta1) / (1 + beta1) * (1 - beta1 ** (2 * steps))

"""Averages of weights from torch.optim.swa_utils against averages taken by hand."""

import torch

from problems import assert_close

RECIPE = "weight_averaging"
STEPS, START, DECAY = 8, 3, 0.75
# Float32 averages of eight numbers near 1, taken in another order.
TOLERANCE = 1e-6


def trajectory(recipe):
    """Return the weights after each step: a run of n steps starts like one of n + 1."""
    return [weights(recipe, steps)["model"] for steps in range(1, STEPS + 1)]


def weights(recipe, steps):
    models = recipe.train(steps, decay=DECAY, swa_start=START)
    return {name: [p.detach() for p in model.parameters()] for name, model in models.items()}


def test_the_exponential_average_is_that_of_the_trajectory(recipe):
    points = trajectory(recipe)
    expected = [point.double() for point in points[0]]
    for point in points[1:]:
        expected = [DECAY * e + (1 - DECAY) * p for e, p in zip(expected, point, strict=True)]
    assert_close([p.double() for p in weights(recipe, STEPS)["ema"]], expected, TOLERANCE)


def test_the_equal_average_is_the_mean_of_the_last_weights(recipe):
    points = trajectory(recipe)[START:]
    expected = [torch.stack(tensors).mean(0) for tensors in zip(*points, strict=True)]
    assert_close(weights(recipe, STEPS)["swa"], expected, TOLERANCE)

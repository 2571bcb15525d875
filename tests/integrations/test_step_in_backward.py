"""One optimizer per parameter, stepped by hooks in the backward pass."""

import pytest
import torch
from torch.nn.functional import mse_loss

from mars import MARS
from problems import LEAN, assert_equal

RECIPE = "step_in_backward"
STEPS = 8


def plain_loop(recipe, **options):
    """Return the model that one optimizer, stepped after the backward pass, makes of the data."""
    model = recipe.build()
    optimizer = MARS(model.parameters(), lr=1e-2, lr_1d=1e-2, **options)
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        inputs = torch.randn(64, 8, generator=generator)
        optimizer.zero_grad()
        mse_loss(model(inputs), inputs[:, :2] * inputs[:, 2:4]).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("mars_type", ["mars-adamw", "mars-m"])
@pytest.mark.parametrize("options", [{"clip": "tensor"}, LEAN], ids=["tensor", "lean"])
def test_a_step_in_the_backward_pass_equals_one_after_it(recipe, options, mars_type):
    options = {**options, "mars_type": mars_type, "max_norm": 0.05}
    model, losses, most = recipe.train(STEPS, **options)
    assert_equal(list(model.parameters()), list(plain_loop(recipe, **options).parameters()))
    assert len(losses) == STEPS
    assert most == 1


def test_a_global_clip_in_the_backward_pass_would_be_another_clip(recipe):
    options = {"clip": "global", "max_norm": 0.05}
    model, _, _ = recipe.train(STEPS, **options)
    plain = plain_loop(recipe, **options)
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    assert any(not torch.equal(left, right) for left, right in pairs)

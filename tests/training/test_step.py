"""One step: what is done to gradients before the optimizer sees them."""

import pytest
import torch

from mars.config.schema import Model, Optimizer, Training
from mars.models.gpt2 import GPT2
from mars.training.optimizers import build_optimizer
from mars.training.step import Stepper

SHAPE = Model(layers=1, heads=2, width=16, context_length=8, vocab_size=32)
TOKENS = torch.arange(24).reshape(3, 8)
BATCH = [(TOKENS, (TOKENS + 1) % 32)]


class NextToken:
    """As much of a task as a step needs."""

    def loss(self, model, batch):
        return model(*batch)


def stepper(**options) -> Stepper:
    model = GPT2(SHAPE, generator=torch.Generator().manual_seed(0))
    optimizer = build_optimizer(Optimizer(name="adamw", fused=False), model)
    return Stepper(model, optimizer, NextToken(), config=Training(**options))


def gradient_norm(taken_by: Stepper) -> float:
    grads = [p.grad for group in taken_by.optimizer.param_groups for p in group["params"]]
    return float(torch.nn.utils.get_total_norm(grads))


def test_gradients_are_limited_and_their_own_norm_is_told():
    free, limited = stepper(grad_clip=0.0), stepper(grad_clip=0.01)
    before = float(free(BATCH, measure=False).grad_norm)
    assert gradient_norm(free) == pytest.approx(before)
    assert float(limited(BATCH, measure=False).grad_norm) == pytest.approx(before)
    assert before > 0.1
    assert gradient_norm(limited) == pytest.approx(0.01, rel=1e-3)


def test_gradients_below_the_limit_are_not_touched():
    free, limited = stepper(grad_clip=0.0), stepper(grad_clip=1e6)
    for each in (free, limited):
        each(BATCH, measure=False)
    groups = zip(free.optimizer.param_groups, limited.optimizer.param_groups, strict=True)
    for ours, theirs in groups:
        for a, b in zip(ours["params"], theirs["params"], strict=True):
            assert torch.equal(a.grad, b.grad)


def test_the_scale_of_the_loss_is_part_of_the_state():
    scaled, fresh = stepper(precision="float16"), stepper(precision="float16")
    scaled(BATCH, measure=False)
    scaled._scaler.update(1024.0)
    fresh.load_state_dict(scaled.state_dict())
    assert fresh._scaler.get_scale() == 1024.0

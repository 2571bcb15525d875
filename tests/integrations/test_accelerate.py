"""Accelerate, the real one, on CPU."""

import pytest
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch.nn.functional import mse_loss

from mars import MARS
from problems import assert_equal

RECIPE = "accelerate_loop"
BATCHES = 12
OPTIONS = {"lr": 1e-2, "lr_1d": 1e-2}
# Accelerate's own warnings are not ours to fix; those of mars stay errors.
pytestmark = pytest.mark.filterwarnings("ignore", "error:::mars")


@pytest.fixture(autouse=True)
def fresh_accelerate():
    """Accelerate keeps its settings in class attributes: leave none to the next test."""
    yield
    for shared in (AcceleratorState, GradientState, PartialState):
        shared._reset_state()


def prepared(recipe, **options):
    """Return an accelerator with a prepared model, optimizer and data."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, data = recipe.problem(BATCHES)
    optimizer = MARS(model.parameters(), **OPTIONS, **options)
    return accelerator, *accelerator.prepare(model, optimizer, data)


def advance(accelerator, model, optimizer, batches):
    for inputs, targets in batches:
        with accelerator.accumulate(model):
            accelerator.backward(mse_loss(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()


def plain_loop(recipe, *, exact):
    """Return the model that accumulation written by hand makes of the same batches."""
    model, data = recipe.problem(BATCHES)
    optimizer = MARS(model.parameters(), **OPTIONS, is_approx=not exact)
    batches = list(data)
    for pair in zip(batches[::2], batches[1::2], strict=True):

        def closure(pair=pair):
            optimizer.zero_grad()
            for inputs, targets in pair:
                (mse_loss(model(inputs), targets) / 2).backward()

        optimizer.step(closure)
    return model


@pytest.mark.parametrize("exact", [False, True], ids=["approx", "exact"])
def test_accumulation_equals_a_plain_loop_bit_for_bit(recipe, exact):
    model = recipe.train(BATCHES, exact=exact)
    assert_equal(list(model.parameters()), list(plain_loop(recipe, exact=exact).parameters()))


def test_the_state_dict_of_a_prepared_optimizer_round_trips(recipe):
    accelerator, model, optimizer, data = prepared(recipe, mars_type="mars-m")
    batches = list(data)
    advance(accelerator, model, optimizer, batches[:6])
    _, twin, twin_optimizer, _ = prepared(recipe, mars_type="mars-m")
    twin.load_state_dict(model.state_dict())
    twin_optimizer.load_state_dict(optimizer.state_dict())
    saved, loaded = optimizer.state_dict(), twin_optimizer.state_dict()
    assert saved["param_groups"] == loaded["param_groups"]
    for state, twin_state in zip(saved["state"].values(), loaded["state"].values(), strict=True):
        assert state.keys() == twin_state.keys()
        assert_equal(list(state.values()), list(twin_state.values()))
    for net, its_optimizer in ((model, optimizer), (twin, twin_optimizer)):
        advance(accelerator, net, its_optimizer, batches[6:])
    assert_equal(list(twin.parameters()), list(model.parameters()))


def test_a_run_resumed_from_save_state_is_bitwise_identical(recipe, tmp_path):
    accelerator, whole, optimizer, data = prepared(recipe)
    advance(accelerator, whole, optimizer, data)

    accelerator, model, optimizer, data = prepared(recipe)
    advance(accelerator, model, optimizer, list(data)[:6])
    accelerator.save_state(tmp_path)

    accelerator, model, optimizer, data = prepared(recipe)
    with torch.no_grad():
        for param in model.parameters():
            param.zero_()
    accelerator.load_state(tmp_path)
    advance(accelerator, model, optimizer, skip_first_batches(data, 6))
    assert_equal(list(model.parameters()), list(whole.parameters()))


def test_exact_mode_under_accumulate_is_refused(recipe):
    accelerator, model, optimizer, data = prepared(recipe, is_approx=False)
    with pytest.raises(RuntimeError, match="no gradient at the previous point"):
        advance(accelerator, model, optimizer, data)

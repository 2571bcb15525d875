"""Lightning, the real one, on CPU."""

import logging

import lightning
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_

from mars import MARS
from problems import assert_equal

RECIPE = "lightning_module"
BATCHES = 5
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
# Lightning's own warnings are not ours to fix; those of mars stay errors.
pytestmark = pytest.mark.filterwarnings("ignore", "error:::mars")
MODES = pytest.mark.parametrize("exact", [False, True], ids=["approx", "exact"])


def make(recipe, *, exact):
    """Return the recipe's module; dropout follows the step, as Lightning saves no random state."""

    class Seeded(recipe.Regression):
        def on_train_batch_start(self, *_):
            torch.manual_seed(self.global_step)

    torch.manual_seed(0)
    return Seeded(exact=exact)


def fit(recipe, module, folder, *, checkpoint=None, **options):
    options = {"accelerator": "cpu", "max_epochs": 2, "default_root_dir": folder, **options}
    trainer = lightning.Trainer(**recipe.QUIET, enable_checkpointing=False, **options)
    trainer.fit(module, recipe.loader(BATCHES), ckpt_path=checkpoint)
    return trainer


def plain_loop(recipe, *, exact, max_norm=None, bf16=False):
    """Return the network that a loop written by hand makes of the same batches."""
    model = make(recipe, exact=exact).net
    optimizer = MARS(model.parameters(), lr=1e-2, lr_1d=1e-2, is_approx=not exact)
    optimizer.track_buffers(model)
    for step, (inputs, targets) in enumerate(2 * list(recipe.loader(BATCHES))):
        torch.manual_seed(step)

        def closure(inputs=inputs, targets=targets):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = mse_loss(model(inputs), targets)
            loss.backward()
            if max_norm is not None:
                clip_grad_norm_(model.parameters(), max_norm)

        optimizer.step(closure)
    return model


def everything(module):
    """Return parameters and buffers: BatchNorm statistics must agree as well."""
    return list(module.state_dict().values())


@MODES
@pytest.mark.parametrize(
    ("of_lightning", "of_the_loop"),
    [
        ({}, {}),
        ({"gradient_clip_val": 0.1}, {"max_norm": 0.1}),
        ({"precision": "bf16-mixed"}, {"bf16": True}),
    ],
    ids=["plain", "clipped", "bf16"],
)
def test_automatic_optimization_equals_a_plain_loop_bit_for_bit(
    recipe, exact, of_lightning, of_the_loop, tmp_path
):
    module = make(recipe, exact=exact)
    fit(recipe, module, tmp_path, **of_lightning)
    plain = plain_loop(recipe, exact=exact, **of_the_loop)
    assert_equal(everything(module.net), everything(plain))
    assert len(module.losses) == 2 * BATCHES


@MODES
def test_a_run_resumed_at_an_epoch_end_is_bitwise_identical(recipe, exact, tmp_path):
    whole = make(recipe, exact=exact)
    fit(recipe, whole, tmp_path, max_epochs=4)
    checkpoint = tmp_path / "two_epochs.ckpt"
    fit(recipe, make(recipe, exact=exact), tmp_path).save_checkpoint(checkpoint)
    resumed = make(recipe, exact=exact)
    fit(recipe, resumed, tmp_path, max_epochs=4, checkpoint=checkpoint)
    assert_equal(everything(resumed), everything(whole))
    assert resumed.losses == whole.losses[2 * BATCHES :]


def test_exact_mode_with_accumulated_batches_is_refused_before_it_trains(recipe, tmp_path):
    module = make(recipe, exact=True)
    before = [param.clone() for param in module.parameters()]
    with pytest.raises(RuntimeError, match="gradients from outside the closure"):
        fit(recipe, module, tmp_path, accumulate_grad_batches=2)
    assert_equal(list(module.parameters()), before)


def test_exact_mode_with_the_float16_plugin_is_refused_at_the_second_step(recipe, tmp_path):
    module = make(recipe, exact=True)
    with pytest.raises(RuntimeError, match="no gradient at the previous point"):
        fit(recipe, module, tmp_path, plugins=[MixedPrecision("16-mixed", "cpu")])
    assert len(module.losses) == 1

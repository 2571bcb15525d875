"""Hugging Face Trainer, the real one, on CPU."""

import pytest
import torch
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import default_collate
from transformers.utils.logging import disable_progress_bar

import mars
from problems import assert_equal

RECIPE = "hf_trainer"
STEPS, BATCH = 6, 8
disable_progress_bar()
# The Trainer's own warnings are not ours to fix; those of mars stay errors.
pytestmark = pytest.mark.filterwarnings("ignore", "error:::mars")


def run(recipe, way, folder, *, resume=None, **arguments):
    """Return the Trainer after its run."""
    arguments = {"max_steps": STEPS, "weight_decay": 0.1, "warmup_steps": 2, **arguments}
    trainer = recipe.trainer(way, str(folder), **arguments)
    # The loss is then the mean over a batch, as in a plain loop, not a sum over a counted number.
    trainer.model_accepts_loss_kwargs = False
    trainer.train(resume_from_checkpoint=resume and str(resume))
    return trainer


def plain_loop(recipe, way, *, accumulation=1, bf16=False):
    """Return the model that a loop written by hand makes of the same batches in their order."""
    model = recipe.build(dropout=0.0)
    if way == "optimizers":
        optimizer = mars.MARS(mars.param_groups(model), mars_type="mars-m", **recipe.OPTIONS)
        factors = [min(1, step / 5) for step in range(STEPS + 1)]
    else:
        decayed = [p for p in model.parameters() if p.ndim >= 2]
        others = [p for p in model.parameters() if p.ndim < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0}]
        optimizer = mars.MARS(groups, **recipe.OPTIONS)
        factors = [step / 2 if step < 2 else (STEPS - step) / 4 for step in range(STEPS + 1)]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factors.__getitem__)
    rows = recipe.sequences(64)
    batches = [default_collate(rows[i : i + BATCH]) for i in range(0, len(rows), BATCH)]
    batches = (batches * 2)[: STEPS * accumulation]
    for step in range(STEPS):
        for batch in batches[step * accumulation : (step + 1) * accumulation]:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = model(**batch).loss
            (loss / accumulation).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        model.zero_grad()
    return model


@pytest.mark.parametrize("way", ["optimizers", "optimizer_cls_and_kwargs"])
@pytest.mark.parametrize(
    ("accumulation", "bf16"), [(1, False), (2, False), (1, True)], ids=["plain", "acc", "bf16"]
)
def test_the_trainer_equals_a_plain_loop_bit_for_bit(recipe, way, accumulation, bf16, tmp_path):
    trainer = run(
        recipe,
        way,
        tmp_path,
        dropout=0.0,
        train_sampling_strategy="sequential",
        gradient_accumulation_steps=accumulation,
        bf16=bf16,
    )
    model = plain_loop(recipe, way, accumulation=accumulation, bf16=bf16)
    assert trainer.state.global_step == STEPS
    assert_equal(list(trainer.model.parameters()), list(model.parameters()))


@pytest.mark.parametrize("way", ["optimizers", "optimizer_cls_and_kwargs"])
def test_a_resumed_run_is_bitwise_identical(recipe, way, tmp_path):
    whole = run(recipe, way, tmp_path / "whole")
    run(recipe, way, tmp_path / "part", save_strategy="steps", save_steps=3)
    checkpoint = tmp_path / "part" / "checkpoint-3"
    resumed = run(recipe, way, tmp_path / "resumed", resume=checkpoint)
    assert resumed.state.global_step == STEPS
    assert_equal(list(resumed.model.parameters()), list(whole.model.parameters()))
    states = (trainer.optimizer.state.values() for trainer in (resumed, whole))
    for left, right in zip(*states, strict=True):
        assert left.keys() == right.keys()
        assert_equal(list(left.values()), list(right.values()))


def test_decay_groups_of_the_trainer_reach_matrices_and_vectors_follow_their_own(recipe, tmp_path):
    trainer = run(recipe, "optimizer_cls_and_kwargs", tmp_path, max_steps=1)
    decayed, others = trainer.optimizer.param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert {p.ndim for p in decayed["params"]} == {2}
    assert {p.ndim for p in others["params"]} == {1}
    assert decayed["weight_decay_1d"] == others["weight_decay_1d"] == 0.0


def test_the_learning_rate_is_that_of_the_options_not_of_the_arguments(recipe, tmp_path):
    trainer = run(
        recipe, "optimizer_cls_and_kwargs", tmp_path, max_steps=1, warmup_steps=0, learning_rate=1.0
    )
    assert {group["initial_lr"] for group in trainer.optimizer.param_groups} == {6e-3}


def test_exact_mode_without_a_closure_is_refused_at_the_second_step(recipe, tmp_path, monkeypatch):
    monkeypatch.setitem(recipe.OPTIONS, "is_approx", False)
    with pytest.raises(RuntimeError, match="no gradient at the previous point"):
        run(recipe, "optimizer_cls_and_kwargs", tmp_path)

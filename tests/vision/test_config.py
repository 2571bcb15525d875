"""Configs on images: what goes together, and what a run on text or images cannot have."""

import pytest

from mars.config import presets
from mars.config.check import check
from mars.config.errors import RefusedError
from mars.config.load import differences, loads, override
from mars.config.vision import require_text


def image_run(*settings):
    run = loads('[vision]\nnetwork = "resnet18"')
    return override(run, settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.layers=3"], r"model.layers = 3 has no meaning: it is of a GPT-2"),
        (["data.prepare=stdlib"], r'data.prepare = "stdlib" is text'),
        (["training.activation_checkpointing=true"], r"is for GPT-2 alone"),
        (["training.parallel=fsdp2"], r'training.parallel = "fsdp2" divides a GPT-2 alone'),
        (["vision.blocks=2"], r"vision.blocks = 2 has no meaning for resnet18"),
        (["vision.patch_size=2"], r"vision.patch_size = 2 has no meaning for resnet18"),
        (["vision.channels_last=true", "vision.channels=4"], r"crashes in torch below 8 channels"),
        (["vision.network=vit", "vision.channels_last=true"], r"no meaning for vit"),
        (["vision.network=vit", "vision.channels=100"], r"not divisible by .* = 3; use 102"),
        (["vision.channels=0"], r"vision.channels must be at least 1, got 0"),
        (["vision.crop_padding=-1"], r"vision.crop_padding must be at least 0"),
        (["vision.target_accuracy=94"], r"vision.target_accuracy must be in \(0, 1\]"),
        (["optimizer.name=adamw", "optimizer.convolutions=vectors"], r"has no meaning for adamw"),
    ],
)
def test_what_images_cannot_have_is_refused(settings, message):
    check(image_run())
    with pytest.raises(RefusedError, match=message):
        check(image_run(*settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["vision.channels=3"], r"vision.channels = 3 has no meaning: vision.network is not set"),
        (["vision.flip=false"], r"vision.flip = false has no meaning"),
        (["data.prepare=digits"], r'data.prepare = "digits" holds images'),
    ],
)
def test_what_text_cannot_have_is_refused(settings, message):
    with pytest.raises(RefusedError, match=message):
        check(override(presets.preset("quickstart"), settings))


def test_what_needs_text_names_the_run():
    require_text(presets.preset("quickstart"), what="mars sample")
    with pytest.raises(RefusedError, match="mars sample is for runs on text, and vision"):
        require_text(image_run(), what="mars sample")


def test_a_step_counts_images_or_tokens():
    assert image_run("training.batch_size=7").count_per_step == 7
    assert presets.preset("quickstart").count_per_step == 16 * 128


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
@pytest.mark.parametrize("network", ["resnet18", "vit"])
def test_the_presets_give_every_optimizer_the_same_budget_data_and_decay(dataset, network):
    first = presets.preset(f"{dataset}-{network}-mars-adamw")
    for optimizer in ("mars-lion", "mars-shampoo", "mars-m", "adamw", "nadamw", "lion", "muon"):
        other = presets.preset(f"{dataset}-{network}-{optimizer}")
        changed = {each.key for each in differences(first, other)}
        assert all(
            key.startswith("optimizer.") or key in ("name", "description") for key in changed
        )
        assert other.optimizer.weight_decay == first.optimizer.weight_decay == 0.1
        assert not other.optimizer.weight_decay_1d
    # 200 epochs of 50,000 images, as the paper trains.
    assert first.training.steps * first.training.batch_size == 200 * 50_000
    assert first.training.validation_sequences == 10_000
    assert first.optimizer.convolutions is None


def test_the_resnets_have_the_papers_schedule():
    schedule = presets.preset("cifar100-resnet18-muon").schedule
    assert (schedule.kind, schedule.milestones, schedule.decay_factor) == (
        "multistep",
        (0.5, 0.75),
        0.1,
    )


def test_the_literal_presets_are_the_authors_script():
    mars = presets.preset("cifar10-literal-mars-adamw").optimizer
    baseline = presets.preset("cifar10-literal-adamw").optimizer
    assert (mars.convolutions, mars.weight_decay_1d) == ("vectors", 0.1)
    assert baseline.weight_decay == 0.0
    # The script leaves the rate of what AdamW trains at the constructor's default.
    assert (mars.lr, mars.lr_1d) == (baseline.lr, 3e-3)

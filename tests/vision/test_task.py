"""The task of classifying images: what it shows a model, and what it measures."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from mars.config.load import load_file, override
from mars.training.build import build
from mars.training.vision import Pictures
from vision.image_runs import make_images, patterns, write_config


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    return load_file(write_config(folder, make_images(folder)))


def built(config, *settings):
    return build(override(config, settings), tell=lambda _: None)


def test_pixels_have_mean_zero_and_deviation_one(config):
    data = built(config).data
    pictures = Pictures(
        data, "train", device=torch.device("cpu"), memory_format=torch.channels_last
    )
    seen = pictures.seen(pictures.images)
    assert seen.mean((0, 2, 3)).tolist() == pytest.approx([0] * 3, abs=1e-5)
    assert seen.std((0, 2, 3), correction=0).tolist() == pytest.approx([1] * 3, abs=1e-5)
    assert seen.is_contiguous(memory_format=torch.channels_last)
    assert pictures.images.dtype == torch.uint8


def test_without_augmentation_the_loss_is_that_of_the_images_themselves(config):
    made = built(config, "vision.crop_padding=0", "vision.flip=false")
    (batch,) = next(made.task.batches)
    places, _ = batch
    images, labels = (torch.from_numpy(part) for part in patterns(20, seed=0))
    shown = made.task.train.seen(images[places])
    model = made.model.eval()
    expected = F.cross_entropy(model(shown), labels[places].long())
    assert torch.equal(made.task.loss(model, batch), expected)


def test_augmented_images_are_those_of_their_numbers(config):
    seen = []

    def model(images, targets):
        seen.append(images)
        return targets.sum().float()

    whole, parts = built(config), built(config, "training.micro_batch_size=2")
    for _ in range(4):
        for made in (whole, parts):
            for micro in next(made.task.batches):
                made.task.loss(model, micro)
        both = torch.cat(seen).chunk(2)
        assert torch.equal(*both)
        seen.clear()


def fixed_logits(scores):
    """Return a model that gives rows of scores, one after another."""
    left = list(scores)

    def model(images):
        return torch.stack([left.pop(0) for _ in images])

    return model


def test_accuracy_and_loss_are_those_of_the_logits(config):
    task = built(config, "training.micro_batch_size=4").task
    labels = torch.from_numpy(patterns(30, seed=1).labels).long()
    places = torch.arange(24) * 30 // 24
    scores = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
    found = task.validate(fixed_logits(scores))
    assert found["accuracy"] == (scores.argmax(1) == labels[places]).float().mean().item()
    expected = F.cross_entropy(scores.double(), labels[places]).item()
    assert found["loss"] == pytest.approx(expected, rel=1e-6)
    assert set(found) == {"loss", "accuracy"}


def test_the_flip_accuracy_is_that_of_the_mean_of_two_views(config):
    task = built(config, "vision.test_flip=true", "training.batch_size=24").task
    labels = torch.from_numpy(patterns(30, seed=1).labels).long()[torch.arange(24) * 30 // 24]
    scores = torch.randn(2, 24, 4, generator=torch.Generator().manual_seed(1))
    found = task.validate(fixed_logits(scores.flatten(0, 1)))
    assert found["accuracy"] == (scores[0].argmax(1) == labels).double().mean().item()
    mean = scores.mean(0).argmax(1)
    assert found["accuracy_flip"] == (mean == labels).double().mean().item()


def test_the_second_view_is_the_mirror_image(config):
    task = built(config, "vision.test_flip=true", "training.batch_size=24").task
    seen = []

    def model(images):
        seen.append(images)
        return torch.zeros(len(images), 4)

    task.validate(model)
    assert len(seen) == 2
    assert torch.equal(seen[0].flip(3), seen[1])
    assert not torch.equal(seen[0], seen[1])


def test_the_goal_carries_the_accuracy_in_its_name(config):
    assert built(config).task.goals == {"seconds_to_94": ("accuracy", 0.94)}
    task = built(config, "vision.target_accuracy=0.925").task
    assert task.goals == {"seconds_to_92.5": ("accuracy", 0.925)}


def test_the_weights_depend_on_the_seed_alone(config):
    first, again, other = (
        built(config),
        built(config, "training.batch_size=4"),
        built(config, "seed=4"),
    )
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name
    assert not torch.equal(first.model.conv1.weight, other.model.conv1.weight)


def test_channels_last_is_chosen_from_eight_channels_on(config):
    narrow, wide = built(config), built(config, "vision.channels=8")
    weight = "layer1.0.conv1.weight"
    is_last = [
        made.model.get_parameter(weight).is_contiguous(memory_format=torch.channels_last)
        for made in (narrow, wide)
    ]
    assert is_last == [False, True]

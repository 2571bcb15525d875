"""ResNet-18 for small images: its shape, its roles, its initial weights, its memory format."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import mars
from mars.config.errors import RefusedError
from mars.models.resnet import ResNet18


def made(seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return ResNet18(**{"classes": 10, "width": 4, **options}, generator=generator)


def test_the_published_size_is_that_of_the_papers_network():
    with torch.device("meta"):
        model = ResNet18(classes=10)
    # 11,173,962 is what every 3x3-stem ResNet-18 for CIFAR-10 has.
    assert model.parameter_count() == 11_173_962
    with torch.device("meta"):
        assert ResNet18(classes=100).parameter_count() == 11_173_962 + 90 * 513


def test_features_halve_in_size_three_times_and_never_in_the_stem():
    model = made()
    sizes = {}
    for name in ("bn1", "layer1", "layer2", "layer3", "layer4"):
        model.get_submodule(name).register_forward_hook(
            lambda module, inputs, output, name=name: sizes.update({name: output.shape[1:]})
        )
    model(torch.zeros(2, 3, 32, 32))
    assert [tuple(size) for size in sizes.values()] == [
        (4, 32, 32),
        (4, 32, 32),
        (8, 16, 16),
        (16, 8, 8),
        (32, 4, 4),
    ]


def test_the_output_is_that_of_the_layers_written_out():
    torch.manual_seed(0)
    model = made(width=2).eval()
    x = torch.randn(3, 3, 8, 8)

    def conv(x, name, stride=1):
        weight = model.get_parameter(f"{name}.weight")
        return F.conv2d(x, weight, stride=stride, padding=weight.shape[2] // 2)

    def norm(x):  # fresh statistics: mean 0, variance 1
        return x / math.sqrt(1 + 1e-5)

    h = F.relu(norm(conv(x, "conv1")))
    for stage in range(1, 5):
        for block in range(2):
            name = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            inner = F.relu(norm(conv(h, f"{name}.conv1", stride)))
            around = norm(conv(h, f"{name}.downsample.0", stride)) if stride == 2 else h
            h = F.relu(norm(conv(inner, f"{name}.conv2")) + around)
    expected = h.mean((2, 3)) @ model.fc.weight.T + model.fc.bias
    torch.testing.assert_close(model(x), expected)


def test_convolutions_are_matrices_and_the_last_layer_is_the_head():
    groups = {group["role"]: group["param_names"] for group in mars.param_groups(made())}
    assert set(groups) == {"matrix", "head", "vector"}
    convolutions = [n for n, m in made().named_modules() if isinstance(m, nn.Conv2d)]
    assert groups["matrix"] == [f"{name}.weight" for name in convolutions]
    assert len(groups["matrix"]) == 20
    assert groups["head"] == ["fc.weight"]


@pytest.mark.parametrize("mars_type", ["mars-m", "mars-shampoo"])
def test_the_matrix_rules_orthogonalise_flattened_convolutions(mars_type):
    model = made()
    model(torch.randn(8, 3, 8, 8), torch.arange(8)).backward()
    weight = model.layer2[0].conv2.weight
    before = weight.detach().clone()
    mars.MARS(mars.param_groups(model), lr=1e-2, mars_type=mars_type, weight_decay=0.0).step()
    moved = (before - weight.detach()).flatten(1)
    values = torch.linalg.svdvals(moved)
    # Five Newton-Schulz steps bring singular values to about 0.7 ... 1.2 of one another.
    assert values.min() / values.max() > 0.5


def test_initial_weights_depend_on_the_generator_alone():
    first = made()
    torch.manual_seed(99)
    again, other = made(), made(seed=1)
    for (name, left), right in zip(
        first.state_dict().items(), again.state_dict().values(), strict=True
    ):
        assert torch.equal(left, right), name
    assert not torch.equal(first.conv1.weight, other.conv1.weight)
    weight = made(width=32).layer3[1].conv1.weight
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (128 * 9)), rel=0.02)


def test_the_loss_is_the_cross_entropy_of_the_logits():
    model = made().eval()
    images, targets = torch.randn(5, 3, 8, 8), torch.arange(5)
    assert torch.equal(model(images, targets), F.cross_entropy(model(images), targets))


@pytest.mark.parametrize("width", [8, 16])
def test_channels_last_computes_the_same(width):
    # Seeded: with some images a ReLU stands so near zero that rounding decides what passes.
    generator = torch.Generator().manual_seed(1)
    images, targets = torch.randn(8, 3, 16, 16, generator=generator), torch.arange(8)
    plain = made(width=width)
    last = made(width=width).to(memory_format=torch.channels_last)
    assert last.layer1[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)
    plain(images, targets).backward()
    last(images.to(memory_format=torch.channels_last), targets).backward()
    for (name, left), right in zip(plain.named_parameters(), last.parameters(), strict=True):
        # Sums in another order: float32 rounding through twenty layers.
        torch.testing.assert_close(left.grad, right.grad, rtol=2e-3, atol=2e-5, msg=name)


def test_narrow_networks_keep_to_the_plain_format():
    # torch's channels-last kernels of 1x1 convolutions read past fewer than 8 channels on CPUs.
    assert not made(width=4).prefers_channels_last
    assert made(width=8).prefers_channels_last


def test_an_impossible_width_is_refused():
    with pytest.raises(RefusedError, match="width must be at least 1, got 0"):
        made(width=0)


def test_it_learns_by_heart():
    torch.manual_seed(0)
    model = made()
    images, targets = torch.randn(16, 3, 8, 8), torch.arange(16) % 10
    optimizer = mars.MARS(mars.param_groups(model), lr=1e-2, lr_1d=1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        loss = model(images, targets)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1

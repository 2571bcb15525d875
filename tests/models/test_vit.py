"""A small vision transformer: its patches, its roles, its size, its initial weights."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

import mars
from mars.config.errors import RefusedError
from mars.models.vit import ViT


def made(seed=0, **options):
    sizes = {"classes": 10, "image_size": 8, "width": 16, "layers": 2, "heads": 2}
    return ViT(**{**sizes, **options}, generator=torch.Generator().manual_seed(seed))


def test_the_size_is_that_of_its_layers():
    width, layers = 192, 6
    block = 2 * 2 * width + (width + 1) * 3 * width + (width + 1) * width
    block += (width + 1) * 4 * width + (4 * width + 1) * width
    expected = (48 + 1) * width + 64 * width + layers * block + 2 * width + (width + 1) * 10
    assert ViT(classes=10).parameter_count() == expected


def test_a_patch_is_four_by_four_pixels_as_a_convolution_sees_them():
    model = made()
    images = torch.randn(2, 3, 8, 8)
    seen = []
    model.patch.register_forward_hook(lambda module, inputs, output: seen.append(output))
    model(images)
    kernel = model.patch.weight.view(16, 3, 4, 4)
    expected = F.conv2d(images, kernel, model.patch.bias, stride=4).flatten(2).transpose(1, 2)
    torch.testing.assert_close(seen[0], expected)
    assert seen[0].shape == (2, 4, 16)


def test_without_positions_the_order_of_patches_does_not_matter():
    model = made().eval()
    images = torch.randn(2, 3, 8, 8)
    swapped = torch.cat([images[:, :, 4:], images[:, :, :4]], dim=2)
    assert not torch.allclose(model(images), model(swapped), atol=1e-4)
    torch.nn.init.zeros_(model.position.weight)
    torch.testing.assert_close(model(images), model(swapped))


def test_attention_is_the_formula():
    block = made().blocks[0]
    x = torch.randn(3, 5, 16)
    query, key, value = (part.view(3, 5, 2, 8) for part in block.qkv(x).split(16, dim=2))
    weights = torch.einsum("bqhd,bkhd->bhqk", query, key).div(8**0.5).softmax(-1)
    mixed = torch.einsum("bhqk,bkhd->bqhd", weights, value).reshape(3, 5, 16)
    torch.testing.assert_close(block.attention(x), block.proj(mixed))


def test_roles_are_matrices_positions_head_and_vectors():
    groups = {group["role"]: group["param_names"] for group in mars.param_groups(made())}
    assert groups["embedding"] == ["position.weight"]
    assert groups["head"] == ["head.weight"]
    inner = [f"blocks.{i}.{n}.weight" for i in range(2) for n in ("qkv", "proj", "fc1", "fc2")]
    assert groups["matrix"] == ["patch.weight", *inner]
    assert all(name.endswith(".bias") or "norm" in name for name in groups["vector"])


def test_initial_weights_depend_on_the_generator_alone():
    first = made()
    torch.manual_seed(99)
    again = made()
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    assert not torch.equal(first.head.weight, made(seed=1).head.weight)


def test_the_loss_is_the_cross_entropy_of_the_logits():
    model = made()
    images, targets = torch.randn(5, 3, 8, 8), torch.arange(5)
    assert torch.equal(model(images, targets), F.cross_entropy(model(images), targets))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 10}, "patch_size 4 does not divide images of 10 pixels"),
        ({"heads": 3}, "3 heads do not divide the width 16"),
    ],
)
def test_impossible_shapes_are_refused(options, message):
    with pytest.raises(RefusedError, match=message):
        made(**options)


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

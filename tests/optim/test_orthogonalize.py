"""Newton-Schulz."""

import pytest
import torch

from mars import MARS
from mars.optim import orthogonalize as module
from mars.optim.orthogonalize import default_dtype, orthogonalize
from mars.optim.reference import newton_schulz
from problems import parameters, train


def random(*shape, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


@pytest.mark.parametrize("shape", [(1, 1), (3, 8), (8, 3), (6, 6), (1, 9), (9, 1)])
def test_equals_the_reference(shape):
    matrix = random(*shape)
    (ours,) = orthogonalize([matrix])
    torch.testing.assert_close(ours, newton_schulz(matrix), rtol=1e-12, atol=1e-12)


def test_a_batch_equals_its_members():
    matrices = list(random(5, 8, 3))
    for alone, together in zip(matrices, orthogonalize(matrices), strict=True):
        torch.testing.assert_close(together, orthogonalize([alone])[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(16, 48), (48, 16), (24, 24)])
def test_singular_values_come_near_one(shape):
    (orthogonal,) = orthogonalize([random(*shape)])
    values = torch.linalg.svdvals(orthogonal)
    assert values.min() > 0.3
    assert values.max() < 1.3


def test_matrices_worked_on_in_blocks_of_columns_are_the_same(monkeypatch):
    matrices = [random(6, 50), 2 * random(6, 50)]
    whole = orthogonalize(matrices)
    monkeypatch.setattr(module, "_BLOCK_ELEMENTS", 40)
    for a, b in zip(orthogonalize(matrices), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_inputs_are_left_alone():
    matrix = random(4, 6)
    orthogonalize([matrix])
    assert torch.equal(matrix, random(4, 6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_zero_stays_zero_and_tiny_is_normal(dtype):
    zero = torch.zeros(3, 4, dtype=dtype)
    assert torch.equal(orthogonalize([zero])[0], zero)
    normal, tiny, nothing = (
        orthogonalize([random(3, 4).to(dtype) * scale])[0] for scale in (1, 1e-16, 1e-30)
    )
    # 1e-5: the rounding of a product by 1e-16.
    torch.testing.assert_close(tiny, normal, rtol=1e-5, atol=1e-5)
    assert nothing.isfinite().all()


def test_convolutions_are_flattened_by_rows():
    kernel = random(4, 3, 2, 2)
    (ours,) = orthogonalize([kernel])
    assert ours.shape == kernel.shape
    torch.testing.assert_close(ours.flatten(1), newton_schulz(kernel.flatten(1)))


def test_the_dtype_of_the_products_can_be_chosen_per_group():
    def run(dtype):
        params = parameters((8, 8))
        optimizer = MARS(
            [{"params": params, "orthogonalize_dtype": dtype}], mars_type="mars-m", lr=0.1
        )
        train(optimizer, params, 3)
        return params[0].detach()

    default, narrow = run(None), run(torch.bfloat16)
    assert torch.equal(default, run(default_dtype(torch.device("cpu"))))
    gap = (default - narrow).norm() / (default - parameters((8, 8))[0]).norm()
    assert 1e-5 < gap < 0.1


def test_bfloat16_is_the_default_where_it_is_fast(monkeypatch):
    cpu = torch.device("cpu")
    for fast, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda fast=fast: fast)
        assert default_dtype(cpu) == dtype
    cuda = torch.device("cuda", 0)
    for capability, dtype in (((7, 5), torch.float32), ((8, 0), torch.bfloat16)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        assert default_dtype(cuda) == dtype
    assert default_dtype(torch.device("mps")) == torch.float32

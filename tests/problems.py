"""Small problems with known gradients, shared by the tests."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mars import MARS

TYPES = ("mars-adamw", "mars-lion", "mars-shampoo", "mars-m")
LEAN = {"lean": True, "clip": None, "second_moment": "gradient"}


def parameters(
    *shapes: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float32
) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(s, generator=generator, dtype=dtype)) for s in shapes]


def gradients(params: list[nn.Parameter], steps: int, seed: int = 1) -> Iterator[list[Tensor]]:
    """Yield a list of random gradients a step; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        yield [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in params]


def train(
    optimizer: torch.optim.Optimizer, params: list[nn.Parameter], steps: int, seed: int = 1
) -> None:
    for grads in gradients(params, steps, seed):
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        optimizer.step()


def trained(steps: int = 6, shapes: tuple[tuple[int, ...], ...] = ((6, 4), (4,)), **options):
    """Return parameters after some steps of MARS, and the optimizer."""
    dtype = options.pop("dtype", torch.float32)
    params = parameters(*shapes, dtype=dtype)
    optimizer = MARS(params, **options)
    train(optimizer, params, steps)
    return params, optimizer


def assert_equal(left: list[Tensor], right: list[Tensor]) -> None:
    for a, b in zip(left, right, strict=True):
        assert torch.equal(a, b), f"largest difference {(a - b).abs().max()}"


def assert_close(left: list[Tensor], right: list[Tensor], tolerance: float) -> None:
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)

"""Accelerate: a prepared MARS with gradient accumulation, which exact mode does in its closure.

Run: python examples/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from mars import MARS


def problem(batches: int) -> tuple[nn.Module, DataLoader]:
    """Return a small network and batches in a fixed order, the same at every call."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    inputs = torch.randn(32 * batches, 8)
    return model, DataLoader(TensorDataset(inputs, inputs[:, :2] * inputs[:, 2:4]), batch_size=32)


def train(batches: int = 300, *, exact: bool = False) -> nn.Module:
    """Return a model trained on two batches a step."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, data = problem(batches)
    optimizer = MARS(model.parameters(), lr=1e-2, lr_1d=1e-2, is_approx=not exact)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)

    def backward(batch: tuple[Tensor, Tensor]) -> None:  # also divides by the accumulation steps
        accelerator.backward(nn.functional.mse_loss(model(batch[0]), batch[1]))

    def closure(*pair: tuple[Tensor, Tensor]) -> None:
        optimizer.zero_grad()
        for batch in pair:
            backward(batch)

    if exact:
        for pair in zip(*[iter(data)] * 2, strict=True):
            optimizer.step(lambda pair=pair: closure(*pair))
        return model
    for batch in data:
        with accelerator.accumulate(model):
            backward(batch)
            optimizer.step()
            optimizer.zero_grad()
    return model


def main() -> None:
    """Train in both modes and print the loss on the first batch, before and after."""
    untrained, data = problem(1)
    inputs, targets = next(iter(data))
    for name, model in {"start": untrained, "approx": train(), "exact": train(exact=True)}.items():
        print(f"{name:6}  loss {nn.functional.mse_loss(model(inputs), targets).item():.3f}")


if __name__ == "__main__":
    main()

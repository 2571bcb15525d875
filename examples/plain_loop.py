"""A plain PyTorch loop: MARS in the place of AdamW, then exact mode, which takes a closure.

Exact mode evaluates each batch at two points. `track_buffers` lets BatchNorm's running statistics
advance once a step all the same; dropout is the same in both evaluations without any help.

Run: python examples/plain_loop.py
"""

import torch
from torch import Tensor, nn

from mars import MARS


def build() -> nn.Module:
    """Return a small network with BatchNorm and dropout, the same at every call."""
    torch.manual_seed(0)
    norm, dropout = nn.BatchNorm1d(32), nn.Dropout(0.1)
    return nn.Sequential(nn.Linear(8, 32), norm, nn.ReLU(), dropout, nn.Linear(32, 2))


def batches(steps: int) -> list[tuple[Tensor, Tensor]]:
    """Return inputs and targets, the same at every call."""
    inputs = torch.randn(steps, 64, 8, generator=torch.Generator().manual_seed(1))
    return list(zip(inputs, inputs[..., :2] * inputs[..., 2:4], strict=True))


def train(steps: int = 200, *, exact: bool = False) -> tuple[nn.Module, list[float]]:
    """Return the trained model and the loss of every step."""
    model, losses = build(), []
    optimizer = MARS(model.parameters(), lr=1e-2, lr_1d=1e-2, is_approx=not exact)
    optimizer.track_buffers(model)  # has no effect in approx mode
    for inputs, targets in batches(steps):

        def closure(inputs: Tensor = inputs, targets: Tensor = targets) -> float:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            return loss.item()

        if exact:
            losses.append(optimizer.step(closure))
        else:
            losses.append(closure())
            optimizer.step()
    return model, losses


def main() -> None:
    """Train in both modes and print the first and the last loss of each."""
    for name, exact in {"approx": False, "exact": True}.items():
        _, losses = train(exact=exact)
        print(f"{name:6}  loss {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    main()

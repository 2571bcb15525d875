"""A model under torch.compile, in approx mode and in exact mode.

MARS changes parameters in place, at a step and at a visit to the previous point, so the compiled
graph sees every change and is compiled once.

Run: python examples/compiled_model.py
"""

import torch
from torch import Tensor, nn

from mars import MARS


def train(
    steps: int = 100, *, exact: bool = False, compiled: bool = True
) -> tuple[nn.Module, list[float]]:
    """Return the trained model and the loss of every step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 2))
    optimizer = MARS(model.parameters(), lr=1e-2, lr_1d=1e-2, is_approx=not exact)
    forward = torch.compile(model) if compiled else model
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        inputs = torch.randn(64, 8, generator=generator)

        def closure(inputs: Tensor = inputs) -> float:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(forward(inputs), inputs[:, :2] * inputs[:, 2:4])
            loss.backward()
            return loss.item()

        losses.append(optimizer.step(closure))  # approx mode takes a closure as well
    return model, losses


def main() -> None:
    """Train in both modes and print the first and the last loss of each."""
    for name, exact in {"approx": False, "exact": True}.items():
        _, losses = train(exact=exact)
        print(f"{name:6}  loss {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    main()

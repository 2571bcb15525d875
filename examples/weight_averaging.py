"""Averages of weights: an exponential one of every step, and an equal one of the last steps.

Both come from torch.optim.swa_utils. SWALR anneals ``lr``; ``lr_1d`` follows it by itself.

Run: python examples/weight_averaging.py
"""

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from mars import MARS


def build() -> nn.Module:
    """Return a small network, the same at every call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))


def error(model: nn.Module, inputs: Tensor, *, noise: float) -> Tensor:
    """Return the mean squared error on products of inputs, observed with noise."""
    targets = inputs[:, :2] * inputs[:, 2:4]
    return nn.functional.mse_loss(model(inputs), targets + noise * torch.randn_like(targets))


def train(steps: int = 300, *, decay: float = 0.98, swa_start: int = 200) -> dict[str, nn.Module]:
    """Return the model and its two averages."""
    model = build()
    optimizer = MARS(model.parameters(), lr=2e-2, lr_1d=2e-2)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    swa = AveragedModel(model)
    schedule = SWALR(optimizer, swa_lr=1e-2, anneal_epochs=10)
    for step in range(steps):
        error(model, torch.randn(32, 8), noise=1.0).backward()
        optimizer.step()
        optimizer.zero_grad()
        ema.update_parameters(model)
        if step >= swa_start:
            swa.update_parameters(model)
            schedule.step()
    return {"model": model, "ema": ema, "swa": swa}


def main() -> None:
    """Print the error of the last weights and of their averages, on fresh inputs."""
    models = {"start": build(), **train()}
    inputs = torch.randn(4096, 8)
    for name, model in models.items():
        print(f"{name:5}  error {error(model, inputs, noise=0.0).item():.3f}")


if __name__ == "__main__":
    main()

"""Step inside the backward pass: each gradient is used and freed as soon as it exists.

Every parameter has an optimizer of its own. This is right for options that look at one tensor at a
time: clip="tensor", clip=None and lean. With clip="global" each optimizer would take its own tensor
for the whole model, and nonfinite="skip" would leave out tensors instead of steps.

Run: python examples/step_in_backward.py
"""

import torch
from torch import Tensor, nn

from mars import MARS

LEAN = {"lean": True, "clip": None, "second_moment": "gradient"}


def build() -> nn.Module:
    """Return a small network, the same at every call."""
    torch.manual_seed(0)
    hidden = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
    return nn.Sequential(hidden, nn.Linear(32, 2))


def train(steps: int = 200, **options) -> tuple[nn.Module, list[float], int]:
    """Return the model, the loss of every step and the most gradients there were at a time."""
    model, losses, most = build(), [], 0
    options = {"lr": 1e-2, "lr_1d": 1e-2, **options}
    optimizers = {param: MARS([param], **options) for param in model.parameters()}

    def step_and_free(param: Tensor) -> None:
        nonlocal most
        most = max(most, sum(p.grad is not None for p in optimizers))
        optimizers[param].step()
        optimizers[param].zero_grad()

    for param in optimizers:
        param.register_post_accumulate_grad_hook(step_and_free)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        inputs = torch.randn(64, 8, generator=generator)
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :2] * inputs[:, 2:4])
        loss.backward()  # steps
        losses.append(loss.item())
    return model, losses, most


def main() -> None:
    """Train with a clip per tensor and in lean form; print losses and gradients held."""
    for name, options in {"tensor": {"clip": "tensor"}, "lean": LEAN}.items():
        model, losses, most = train(**options)
        held = f"{most} of {len(list(model.parameters()))} gradients at a time"
        print(f"{name:6}  loss {losses[0]:.3f} -> {losses[-1]:.3f}, {held}")


if __name__ == "__main__":
    main()

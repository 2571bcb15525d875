"""Lightning: automatic optimization; exact mode needs nothing but its option.

Lightning hands the optimizer a closure. Exact mode calls it twice a step, so `training_step` runs
twice: what must happen once a step goes to another hook, as the list of losses does here.

Run: python examples/lightning_module.py
"""

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from mars import MARS

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


class Regression(lightning.LightningModule):
    """A small network with BatchNorm and dropout."""

    def __init__(self, *, exact: bool = False) -> None:
        super().__init__()
        hidden = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1))
        self.net = nn.Sequential(hidden, nn.Linear(32, 2))
        self.exact, self.losses = exact, []

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:  # noqa: D102
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def on_train_batch_end(self, outputs: dict, *_: object) -> None:  # noqa: D102
        self.losses.append(outputs["loss"].item())  # the one at the present point

    def configure_optimizers(self) -> MARS:  # noqa: D102
        optimizer = MARS(self.parameters(), lr=1e-2, lr_1d=1e-2, is_approx=not self.exact)
        optimizer.track_buffers(self)  # runs again at every restart, as it has to
        return optimizer


def loader(batches: int) -> DataLoader:
    """Return batches in a fixed order, the same at every call."""
    inputs = torch.randn(64 * batches, 8, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(inputs, inputs[:, :2] * inputs[:, 2:4]), batch_size=64)


def main() -> None:
    """Train in both modes and print the first and the last loss of each."""
    for name, exact in {"approx": False, "exact": True}.items():
        torch.manual_seed(0)
        model = Regression(exact=exact)
        trainer = lightning.Trainer(**QUIET, enable_checkpointing=False, max_epochs=4)
        trainer.fit(model, loader(50))
        print(f"{name:6}  loss {model.losses[0]:.3f} -> {model.losses[-1]:.3f}")


if __name__ == "__main__":
    main()

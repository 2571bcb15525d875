"""What exact mode costs: a training step of a small GPT, exact against approx, in one run.

Usage: python benchmarks/exact_cost.py [--steps 30]

The two are timed in turn, step by step, so that a noisy machine is equally noisy for both.
"""

import argparse
import statistics
import time

import torch
from torch import Tensor, nn

from mars import MARS


class SmallGPT(nn.Module):
    """A byte-level decoder: 4 layers, width 128, context 128, about 0.8 million parameters."""

    def __init__(self, width: int = 128, layers: int = 4, context: int = 128) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.positions = nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256, bias=False)
        mask = nn.Transformer.generate_square_subsequent_mask(context)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the loss of predicting each next token."""
        x = self.tokens(tokens) + self.positions.weight
        logits = self.head(self.blocks(x, mask=self.mask, is_causal=True))
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def trainer(*, is_approx: bool):
    """Return a function that takes one training step on a batch."""
    torch.manual_seed(0)
    model = SmallGPT()
    optimizer = MARS(model.parameters(), is_approx=is_approx)

    def step(batch: Tensor) -> float:
        def closure() -> float:
            optimizer.zero_grad()
            loss = model(batch)
            loss.backward()
            return loss.item()

        return optimizer.step(closure)

    return step


def main() -> None:
    """Print the median step times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    trainers = {"approx": trainer(is_approx=True), "exact": trainer(is_approx=False)}
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    generator = torch.Generator().manual_seed(0)
    for index in range(arguments.steps + 3):
        batch = torch.randint(256, (16, 128), generator=generator)
        for name, step in trainers.items():
            start = time.perf_counter()
            step(batch)
            if index >= 3:
                seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, median in medians.items():
        spread = statistics.quantiles(seconds[name], n=4)
        print(
            f"{name:7} {1e3 * median:7.1f} ms  "
            f"(quartiles {1e3 * spread[0]:.1f} to {1e3 * spread[2]:.1f})"
        )
    print(f"exact / approx = {medians['exact'] / medians['approx']:.2f}")


if __name__ == "__main__":
    main()

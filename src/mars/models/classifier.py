"""What the image models share: the loss in the forward pass, and initial weights."""

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Classifier(nn.Module):
    """A model whose forward pass gives logits or, given the targets, their mean loss."""

    def logits(self, images: Tensor) -> Tensor:
        """Return the scores of the classes, ``(images, classes)``."""
        raise NotImplementedError

    def forward(self, images: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the logits of the images or, given the targets, their mean loss.

        The loss is part of the forward pass so that compilers and wrappers (DDP) see it.
        """
        logits = self.logits(images)
        if targets is None:
            return logits
        # At least float32, as in the language models.
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(logits, targets)

    @property
    def prefers_channels_last(self) -> bool:
        """Whether images and weights in the channels-last format are faster."""
        return False

    def parameter_count(self) -> int:
        """Return the number of parameters."""
        return sum(param.numel() for param in self.parameters())


def draw_convolution_(layer: nn.Conv2d, generator: torch.Generator) -> None:
    """Fill a convolution before a ReLU with He's normal numbers, by its outputs."""
    fan_out = layer.out_channels * math.prod(layer.kernel_size)
    _normal_(layer.weight, math.sqrt(2 / fan_out), generator)
    if layer.bias is not None:
        layer.bias.zero_()


def draw_linear_(layer: nn.Linear, generator: torch.Generator) -> None:
    """Fill a linear layer with normal numbers that keep the size of its inputs."""
    _normal_(layer.weight, 1 / math.sqrt(layer.in_features), generator)
    if layer.bias is not None:
        layer.bias.zero_()


def _normal_(weight: Tensor, std: float, generator: torch.Generator) -> None:
    # In float32 where the generator lives: device and dtype of the model change nothing.
    drawn = torch.empty(weight.shape, device=generator.device)
    weight.copy_(drawn.normal_(std=std, generator=generator))

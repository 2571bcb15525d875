"""ResNet-18 for small images: a 3 by 3 stem and no pooling before the blocks.

Modules carry the names of torchvision's model (``layer1.0.conv1``), so that anyone's state dict can
be read beside ours.
"""

from typing import Self

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mars.config.errors import RefusedError
from mars.models.classifier import Classifier, draw_convolution_, draw_linear_

_STRIDES = (1, 2, 2, 2)
_BLOCKS = 2
_LEAST_CHANNELS = 8


class BasicBlock(nn.Module):
    """Two convolutions around which the input is added, projected where the shape changes."""

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's features."""
        around = x if self.downsample is None else self.downsample(x)
        hidden = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(hidden)) + around)


class ResNet18(Classifier):
    """A ResNet-18 with initial weights.

    Args:
        classes: outputs.
        image_channels: channels of the images.
        width: channels of the stem and the first stage; each later stage has twice as many.
        generator: what the initial weights are drawn from, as in `initialize_`.

    Example:
        >>> model = ResNet18(classes=10, generator=torch.Generator().manual_seed(0))
        >>> model(images, targets).backward()
    """

    def __init__(
        self,
        *,
        classes: int,
        image_channels: int = 3,
        width: int = 64,
        generator: torch.Generator | None = None,
    ) -> None:
        if width < 1:
            raise RefusedError(f"width must be at least 1, got {width}; ResNet-18's is 64")
        super().__init__()
        self.conv1 = nn.Conv2d(image_channels, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for stage, stride in enumerate(_STRIDES):
            outputs = width << stage
            blocks = [BasicBlock(inputs, outputs, stride=stride)]
            blocks += [BasicBlock(outputs, outputs, stride=1) for _ in range(_BLOCKS - 1)]
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
            inputs = outputs
        self.fc = nn.Linear(inputs, classes)
        self.initialize_(generator)

    @property
    def prefers_channels_last(self) -> bool:
        """Whether the channels-last format is right for it, and so faster.

        torch's 1x1 convolutions in that format read past fewer than 8 channels on CPUs, and crash.
        """
        return self.conv1.out_channels >= _LEAST_CHANNELS

    @torch.no_grad()
    def initialize_(self, generator: torch.Generator | None = None) -> Self:
        """Draw the initial weights; they depend on the generator's state and nothing else."""
        generator = generator or torch.default_generator
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                draw_convolution_(module, generator)
            elif isinstance(module, nn.BatchNorm2d):
                module.reset_parameters()
            elif isinstance(module, nn.Linear):
                draw_linear_(module, generator)
        return self

    def logits(self, images: Tensor) -> Tensor:
        """Return the scores of the classes, ``(images, classes)``."""
        x = F.relu(self.bn1(self.conv1(images)))
        for stage in range(len(_STRIDES)):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        scores: Tensor = self.fc(x.mean((2, 3)))
        return scores

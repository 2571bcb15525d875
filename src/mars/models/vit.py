"""A small vision transformer: patches, pre-norm blocks, and the mean of what they give."""

from typing import Self

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mars.config.errors import RefusedError
from mars.models.classifier import Classifier, draw_linear_

_POSITION_STD = 0.02


class Block(nn.Module):
    """Attention among all patches, then an MLP, each normed before and added to the stream."""

    def __init__(self, width: int, *, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the stream after this block."""
        x = x + self.attention(self.norm1(x))
        after: Tensor = x + self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return after

    def attention(self, x: Tensor) -> Tensor:
        """Return what each patch reads from all of them."""
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        read: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return read


class ViT(Classifier):
    """A vision transformer with initial weights.

    Args:
        classes: outputs.
        image_channels: channels of the images.
        image_size: their height and width, which patches divide.
        patch_size: height and width of a patch.
        width, layers, heads: size of the stream, blocks, attention heads; heads divide the width.
        generator: what the initial weights are drawn from, as in `initialize_`.
    """

    def __init__(
        self,
        *,
        classes: int,
        image_channels: int = 3,
        image_size: int = 32,
        patch_size: int = 4,
        width: int = 192,
        layers: int = 6,
        heads: int = 3,
        generator: torch.Generator | None = None,
    ) -> None:
        if image_size % patch_size:
            raise RefusedError(
                f"patch_size {patch_size} does not divide images of {image_size} pixels"
            )
        if width % heads:
            raise RefusedError(f"{heads} heads do not divide the width {width}")
        super().__init__()
        self.patch_size = patch_size
        patches = (image_size // patch_size) ** 2
        self.patch = nn.Linear(image_channels * patch_size**2, width)
        # An embedding, as the positions of a GPT are: the matrix rules leave it to AdamW.
        self.position = nn.Embedding(patches, width)
        self.blocks = nn.ModuleList(Block(width, heads=heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        self.initialize_(generator)

    @torch.no_grad()
    def initialize_(self, generator: torch.Generator | None = None) -> Self:
        """Draw the initial weights; they depend on the generator's state and nothing else."""
        generator = generator or torch.default_generator
        for module in self.modules():
            if isinstance(module, nn.Linear):
                draw_linear_(module, generator)
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Embedding):
                drawn = torch.empty(module.weight.shape, device=generator.device)
                module.weight.copy_(drawn.normal_(std=_POSITION_STD, generator=generator))
        return self

    def logits(self, images: Tensor) -> Tensor:
        """Return the scores of the classes, ``(images, classes)``."""
        # A convolution whose stride is its size, written as the linear map it is.
        patches = F.unfold(images, self.patch_size, stride=self.patch_size).transpose(1, 2)
        x = self.patch(patches) + self.position.weight
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(self.norm(x).mean(1))
        return scores

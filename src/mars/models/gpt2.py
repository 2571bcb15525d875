"""GPT-2 as the MARS paper ran it: the nanoGPT recipe, pre-norm blocks and a tied embedding.

Modules carry the names of the published checkpoints (``h.0.attn.c_attn``), so that anyone's state
dict can be read beside ours.
"""

import math
from typing import Self

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mars.config.errors import RefusedError
from mars.config.schema import Model

_INIT_STD = 0.02


class Attention(nn.Module):
    """Causal self-attention of the block number ``layer``, counted from 0."""

    def __init__(self, config: Model, *, layer: int) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        divisor = layer + 1 if config.scale_attention_by_layer else 1
        self.scale = 1 / math.sqrt(config.width // config.heads) / divisor
        self.c_attn = nn.Linear(config.width, 3 * config.width, bias=config.bias)
        self.c_proj = nn.Linear(config.width, config.width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return what each position reads from itself and those before it."""
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.c_attn(x).split(width, dim=2)
        )
        mixed = F.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
            scale=self.scale,
        )
        mixed = mixed.transpose(1, 2).reshape(batch, length, width)
        return F.dropout(self.c_proj(mixed), self.dropout, self.training)


class MLP(nn.Module):
    """The position-wise half of a block: four times as wide inside."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.c_fc = nn.Linear(config.width, 4 * config.width, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.width, config.width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the update of each position."""
        hidden = F.gelu(self.c_fc(x), approximate="tanh")
        return F.dropout(self.c_proj(hidden), self.dropout, self.training)


class Block(nn.Module):
    """Attention, then MLP, each normed before and added to the residual stream."""

    def __init__(self, config: Model, *, layer: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.width, bias=config.bias)
        self.attn = Attention(config, layer=layer)
        self.ln_2 = nn.LayerNorm(config.width, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream after this block."""
        x = x + self.attn(self.ln_1(x))
        after: Tensor = x + self.mlp(self.ln_2(x))
        return after


class GPT2(nn.Module):
    """A GPT-2 of the shape that ``config`` gives, with initial weights.

    Built under ``torch.device("meta")`` it has no weights: ``to_empty`` and ``initialize_`` then
    give it the same ones.

    Args:
        config: the shape.
        generator: what the initial weights are drawn from, as in `initialize_`.
        activation_checkpointing: keep the input of each block only and compute the rest again in
            the backward pass; an attribute too.

    Example:
        >>> model = GPT2(Model(), generator=torch.Generator().manual_seed(0))
        >>> model(inputs, targets).backward()
    """

    def __init__(
        self,
        config: Model,
        *,
        generator: torch.Generator | None = None,
        activation_checkpointing: bool = False,
    ) -> None:
        _check(config)
        super().__init__()
        self.config = config
        self.activation_checkpointing = activation_checkpointing
        self.wte = nn.Embedding(config.vocab_size, config.width)
        self.wpe = nn.Embedding(config.context_length, config.width)
        self.h = nn.ModuleList(Block(config, layer=layer) for layer in range(config.layers))
        self.ln_f = nn.LayerNorm(config.width, bias=config.bias)
        self.initialize_(generator)

    @torch.no_grad()
    def initialize_(self, generator: torch.Generator | None = None) -> Self:
        """Draw the initial weights; they depend on the generator's state and nothing else.

        Numbers are drawn in float32 where the generator lives, for whole matrices in a fixed
        order: device, dtype and sharding of the model do not change them.
        """
        generator = generator or torch.default_generator
        residual_std = _INIT_STD / math.sqrt(2 * self.config.layers)
        for name, param in self.named_parameters():
            if param.ndim == 1:
                param.fill_(0.0 if name.endswith(".bias") else 1.0)
            else:
                std = residual_std if name.endswith(".c_proj.weight") else _INIT_STD
                _draw_(param, std=std, generator=generator)
        return self

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the logits of every next token or, given the targets, their mean loss.

        The loss is part of the forward pass so that compilers and wrappers (DDP, FSDP) see it.
        """
        # The head is the embedding itself and no second module: a tie cannot come undone when
        # weights are materialised, sharded or loaded.
        logits = F.linear(self.features(tokens), self.wte.weight)
        if targets is None:
            return logits
        # At least float32: the sum over a vocabulary in half precision is not a loss.
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def features(self, tokens: Tensor) -> Tensor:
        """Return the normed residual stream that the head reads, ``(batch, length, width)``."""
        length = tokens.shape[1]
        if length > self.config.context_length:
            raise ValueError(
                f"{length} tokens exceed the context of {self.config.context_length}; crop them"
            )
        x = self.wte(tokens) + self.wpe.weight[:length]
        x = F.dropout(x, self.config.dropout, self.training)
        recompute = self.activation_checkpointing and torch.is_grad_enabled()
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        normed: Tensor = self.ln_f(x)
        return normed

    def get_output_embeddings(self) -> nn.Module:
        """Return the head: the token embedding. ``mars.param_groups`` asks for it."""
        return self.wte

    def parameter_count(self) -> int:
        """Return the number of parameters, the tied embedding counted once."""
        return sum(param.numel() for param in self.parameters())

    def flops_per_token(self) -> int:
        """Return the FLOPs of a training step per token: PaLM's formula for MFU, appendix B.

        Six per parameter that multiplies (positions are looked up and added), and 12 times layers,
        width and length for attention, at full context and without discount for causality.
        """
        multiplying = self.parameter_count() - self.wpe.weight.numel()
        shape = self.config
        return 6 * multiplying + 12 * shape.layers * shape.width * shape.context_length


def _draw_(param: Tensor, *, std: float, generator: torch.Generator) -> None:
    """Fill a parameter with normal numbers; one without memory is left alone."""
    if param.is_meta:
        return
    drawn = torch.empty(param.shape, dtype=torch.float32, device=generator.device)
    drawn.normal_(std=std, generator=generator)
    if hasattr(param, "device_mesh"):
        # Importing this takes half as long as torch itself: only for those who shard.
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(param, DTensor)
        # Every rank has drawn the same matrix and keeps its part: nothing is sent.
        drawn = distribute_tensor(
            drawn.to(param.device), param.device_mesh, param.placements, src_data_rank=None
        )
    param.copy_(drawn)


def _check(config: Model) -> None:
    """Refuse a shape that no model has."""
    for name in ("layers", "heads", "width", "context_length", "vocab_size"):
        value = getattr(config, name)
        if value < 1:
            raise RefusedError(f"model.{name} must be at least 1, got {value}")
    if config.width % config.heads:
        raise RefusedError(
            f"model.heads must divide model.width, got {config.heads} heads for {config.width}"
        )
    if not 0 <= config.dropout < 1:
        raise RefusedError(f"model.dropout must lie in [0, 1), got {config.dropout}")

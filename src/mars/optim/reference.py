"""The paper's algorithm, slowly: float64, one tensor at a time, every line an equation.

The oracle of every other path, to be read beside the paper (arXiv 2411.10438, Algorithms 1 to 4;
MARS-M: arXiv 2510.21800). It never takes a short cut: the previous gradient is always stored, the
norm is always taken of the corrected gradient itself, Newton-Schulz works on one matrix.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Settings:
    """The numbers of one step, named as `mars.MARS` names them; lr_1d is already scheduled."""

    mars_type: str = "mars-adamw"
    lr: float = 3e-3
    betas: tuple[float, float] = (0.95, 0.99)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False
    gamma: float = 0.025
    optimize_1d: bool = False
    lr_1d: float = 3e-3
    betas_1d: tuple[float, float] = (0.9, 0.95)
    weight_decay_1d: float = 0.1
    clip: Literal["tensor", "global"] | None = "tensor"
    max_norm: float = 1.0
    second_moment: str = "corrected"
    maximize: bool = False


@dataclass(slots=True)
class Track:
    """One parameter x_t with its moments, its previous gradient and its own step count t."""

    x: Tensor
    m: Tensor = field(init=False)
    v: Tensor = field(init=False)
    v_max: Tensor = field(init=False)
    g_prev: Tensor = field(init=False)
    t: int = 0

    def __post_init__(self) -> None:
        self.x = self.x.detach().to(torch.float64, copy=True)
        self.m, self.g_prev = torch.zeros_like(self.x), torch.zeros_like(self.x)
        self.v, self.v_max = torch.zeros_like(self.x), torch.zeros_like(self.x)


def step(
    tracks: list[Track],
    gradients: list[Tensor | None],
    settings: list[Settings],
    *,
    previous_gradients: list[Tensor | None] | None = None,
) -> None:
    """Take one step on every track that has a gradient.

    ``previous_gradients`` are those of exact mode: of this step's sample at the previous point.
    """
    previous = previous_gradients or [None] * len(tracks)
    moved = []
    for track, gradient, g_before, s in zip(tracks, gradients, previous, settings, strict=True):
        if gradient is None or gradient.numel() == 0:
            continue
        sign = -1 if s.maximize else 1
        g = sign * gradient.detach().double()
        if g_before is not None:
            track.g_prev = sign * g_before.detach().double()
        moved.append((track, g, s, corrected_gradient(g, track.g_prev, s)))

    everyone = [
        c.norm() for track, _, s, c in moved if is_reduced(track.x, s) and s.clip == "global"
    ]
    total = torch.stack(everyone).norm() if everyone else torch.zeros(())
    for track, g, s, c in moved:
        track.t += 1
        if is_reduced(track.x, s):
            norm = {"tensor": c.norm(), "global": total, None: torch.zeros(())}[s.clip]
            c_clipped = c / max(1.0, float(norm) / s.max_norm)
            _move(track, c_clipped, g if s.second_moment == "gradient" else c_clipped, s)
        else:
            plain = replace(s, lr=s.lr_1d, betas=s.betas_1d, weight_decay=s.weight_decay_1d)
            _move(track, g, g, replace(plain, mars_type="mars-adamw"))
        track.g_prev = g


def corrected_gradient(g: Tensor, g_prev: Tensor, s: Settings) -> Tensor:
    """c_t = g_t + gamma * beta1 / (1 - beta1) * (g_t - g_prev)."""
    beta1 = s.betas[0]
    return g + s.gamma * beta1 / (1 - beta1) * (g - g_prev)


def is_reduced(x: Tensor, s: Settings) -> bool:
    """Whether x is moved by the variance-reduced rule rather than by plain AdamW."""
    return x.ndim >= 2 or s.optimize_1d


def _move(track: Track, c: Tensor, squared: Tensor, s: Settings) -> None:
    """m_t, v_t, and x_{t+1} = x_t - lr * (direction + weight_decay * x_t)."""
    beta1, beta2 = s.betas
    track.m = beta1 * track.m + (1 - beta1) * c
    track.v = beta2 * track.v + (1 - beta2) * squared**2
    direction = _direction(track, s)
    track.x = track.x - s.lr * (direction + s.weight_decay * track.x)


def _direction(track: Track, s: Settings) -> Tensor:
    beta1, beta2 = s.betas
    if s.mars_type == "mars-lion":
        return track.m.sign()
    if track.x.ndim >= 2 and s.mars_type in ("mars-shampoo", "mars-m"):
        matrix = track.m.flatten(1)
        rows, cols = matrix.shape
        if s.mars_type == "mars-shampoo":
            scale = math.sqrt(max(1.0, rows / cols))
            return (newton_schulz(matrix / (1 - beta1)) * scale).reshape(track.x.shape)
        scale = 0.2 * math.sqrt(max(rows, cols))
        return (newton_schulz(matrix) * scale).reshape(track.x.shape)
    v = track.v
    if s.amsgrad:
        v = track.v_max = torch.maximum(track.v_max, track.v)
    m_hat = track.m / (1 - math.pow(beta1, track.t))
    v_hat = v / (1 - math.pow(beta2, track.t))
    return m_hat / (v_hat.sqrt() + s.eps)


def newton_schulz(matrix: Tensor) -> Tensor:
    """Five quintic Newton-Schulz steps on the wide orientation of matrix / |matrix|_F."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / max(float(x.norm()), math.sqrt(torch.finfo(torch.float64).tiny))
    for _ in range(5):
        gram = x @ x.T
        x = a * x + b * gram @ x + c * gram @ gram @ x
    return x.T if tall else x

"""Newton-Schulz: the nearest semi-orthogonal matrix, approximately, by matrix products alone.

Five quintic steps push the singular values of X into about [0.7, 1.2], all but those below some
0.002 of its norm, which end lower:

    X <- a X + (b A + c A A) X      A = X X^H

The iteration starts from X / |X|_F, so the scale of its input does not matter as long as the
squares of its entries are neither too small nor too large for its dtype.
"""

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5

# Larger batches are worked through in blocks of columns, so that one copy of the matrices is all
# the iteration holds beside squares of the short side.
_BLOCK_ELEMENTS = 2**21


def default_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype Newton-Schulz is fastest in: bfloat16 where the hardware multiplies it."""
    if device.type == "cuda":
        # Every ROCm device torch supports has bfloat16 matrix units; CUDA has them from 8.0 on.
        fast = torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)
    elif device.type == "cpu":
        fast = torch.cpu._is_amx_tile_supported()
    else:
        fast = device.type in ("xpu", "hpu", "mtia", "xla")
    return torch.bfloat16 if fast else torch.float32


def orthogonalize(
    matrices: list[Tensor], *, scale: float = 1.0, dtype: torch.dtype | None = None
) -> list[Tensor]:
    """Return equal-shaped matrices orthogonalised in one batch and multiplied by ``scale``.

    Tensors with more than two dimensions are flattened to (rows, everything else). A zero matrix
    stays zero. ``dtype`` is the precision of the products for float32 matrices; those of float64
    and complex matrices keep their own.
    """
    first = matrices[0]
    x = torch.stack([matrix_view(m) for m in matrices])
    tall = x.shape[-2] > x.shape[-1]
    x = x.mH if tall else x
    # Below the root of the smallest number, squares underflow and the norm means nothing.
    smallest = torch.finfo(first.dtype).tiny ** 0.5
    norm = torch.linalg.matrix_norm(x, keepdim=True).clamp(min=smallest)
    x = x / norm if x.requires_grad else x.div_(norm)
    if first.dtype == torch.float32:
        x = x.to(dtype or default_dtype(first.device))
    for _ in range(STEPS):
        x = _newton_schulz_step(x)
    x = (x.mH if tall else x).resolve_conj().to(first.dtype).mul_(scale)
    return [x[i].reshape(first.shape) for i in range(len(matrices))]


def matrix_view(tensor: Tensor) -> Tensor:
    """Return a tensor as the matrix (rows, everything else)."""
    return tensor.flatten(1)


def _newton_schulz_step(x: Tensor) -> Tensor:
    a, b, c = COEFFICIENTS
    gram = x @ x.mH
    polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    if x.requires_grad or x.numel() <= _BLOCK_ELEMENTS:
        return torch.baddbmm(x, polynomial, x, beta=a)
    # The columns of polynomial @ x are independent, so x can be overwritten block by block.
    columns = max(1, _BLOCK_ELEMENTS // (x.shape[0] * x.shape[1]))
    for block in torch.split(x, columns, dim=-1):
        block.copy_(torch.baddbmm(block, polynomial, block, beta=a))
    return x

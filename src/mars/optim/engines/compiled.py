"""The compiled engine: each tensor read and written once, by code that Inductor generates.

A kernel takes one parameter's tensors as flat views and does the whole step: the sum of squares of
the corrected gradient (pass one), then everything else (pass two) while a tensor that fits is still
in the cache. Numbers enter as a tensor, so that one compilation serves every size, learning rate,
beta, gamma and step. The arithmetic is that of `correction` and `rules`, written out for fusion.
"""

import contextlib
import warnings
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor.exc import InductorError

from mars.optim.buckets import Bucket, Tensors
from mars.optim.engines import eager
from mars.optim.routing import MATRIX_RULES, Recipe
from mars.optim.rules import RULES
from mars.optim.rules.adamw import bias_correction

# A function whose code object torch.compile gets a copy of; no type describes that.
Kernel = Any

# Below this a call costs more than the work; the eager engine batches such tensors.
_SMALLEST = 2**10

# The sum of squares adds this many parts of a tensor side by side before it accumulates: one
# accumulator would leave the memory waiting for the adder.
_PARTS = 4


class Numbers(NamedTuple):
    """The numbers of one step, in the order a kernel receives them."""

    sign: float | Tensor
    gain: float | Tensor  # 1 + k
    pull: float | Tensor  # k
    beta1: float | Tensor
    rest1: float | Tensor  # 1 - beta1
    beta2: float | Tensor
    rest2: float | Tensor  # 1 - beta2
    fold: float | Tensor  # 1 - beta1 + gamma * beta1
    next_gamma: float | Tensor
    shrink: float | Tensor  # 1 - lr * weight_decay
    length: float | Tensor  # lr; for AdamW over the bias correction of m
    root: float | Tensor  # 1 / sqrt(bias correction of v)
    eps: float | Tensor
    max_norm: float | Tensor


@dataclass(frozen=True, slots=True)
class Variant:
    """What distinguishes one compiled kernel from another, beside which tensors it is given."""

    folded: bool
    squares_gradient: bool


def run_(bucket: Bucket, scales: Tensor | None = None) -> None:
    """Take one step on a bucket, as `eager.run_` does.

    What the kernels are not made for (small tensors, tensors without one dense layout, complex
    matrices) goes to the eager engine; so does everything where no compiler works.
    """
    rows = list(bucket.tensors.rows())
    flat = [_flat(row, bucket) for row in rows]
    ours = [i for i, row in enumerate(flat) if row is not None]
    done: set[int] = set()
    with contextlib.suppress(NoCompilerError):
        if ours:
            _run_rows_(bucket, rows, flat, ours, scales, done=done)
    rest = [i for i in range(len(rows)) if i not in done]
    if rest:
        tensors = Tensors.of(rows[i] for i in rest)
        eager.run_(replace(bucket, tensors=tensors), None if scales is None else scales[rest])


def _flat(row: Tensors, bucket: Bucket) -> Tensors | None:
    """Return a parameter's flat tensors if the kernels are made for them."""
    param = row.params[0]
    if _compiler.is_broken or param.numel() < _SMALLEST or param.is_complex():
        return None
    # Directions of matrices come out in row-major order, and what a flag may undo is kept whole.
    plain = param.is_contiguous() and bucket.keep_flag is None
    if bucket.recipe.rule in MATRIX_RULES and not plain:
        return None
    return row.flat()


def _run_rows_(
    bucket: Bucket,
    rows: list[Tensors],
    flat: list[Tensors | None],
    ours: list[int],
    scales: Tensor | None,
    *,
    done: set[int],
) -> None:
    """Take one step on the rows that are ours, noting the indices of those that were done."""
    numbers = _numbers(bucket.recipe, like=rows[ours[0]].exp_avgs[0])
    variant = _variant(bucket.recipe)
    streams = {i: _streams(row) for i, row in enumerate(flat) if row is not None}
    given = {i: None if scales is None else scales[i] for i in ours}
    if bucket.recipe.rule in MATRIX_RULES:
        whole = {i: rows[i] for i in ours}
        _matrices_(whole, streams, given, numbers, variant, bucket=bucket)
        done.update(ours)
        return
    for i in ours:
        scale = _scale_of(bucket.recipe, given[i], streams[i], numbers)
        _compiler.call(_step, variant, *streams[i], numbers, scale, bucket.keep_flag)
        done.add(i)


def _scale_of(
    recipe: Recipe, given: Tensor | None, streams: list[Tensor | None], numbers: Tensor
) -> Tensor | None:
    """Return a tensor's clip scale: by a pass of its own, or what a global clip has given it."""
    if recipe.clip != "tensor":
        return given
    _, grad, last_grad, *_ = streams
    return _compiler.call(_scale, _variant(recipe), grad, last_grad, numbers)


def _matrices_(
    rows: dict[int, Tensors],
    streams: dict[int, list[Tensor | None]],
    scales: dict[int, Tensor | None],
    numbers: Tensor,
    variant: Variant,
    *,
    bucket: Bucket,
) -> None:
    """Take one step by a matrix rule: kernels around batched matrix products."""
    rule = RULES[bucket.recipe.rule]
    indices = list(rows)
    at_once = eager.matrices_at_once(rows[indices[0]].params[0].numel())
    for start in range(0, len(indices), at_once):
        batch = indices[start : start + at_once]
        for i in batch:
            _, grad, last_grad, exp_avg, _, _ = streams[i]
            scale = _scale_of(bucket.recipe, scales[i], streams[i], numbers)
            _compiler.call(_momentum, variant, grad, last_grad, exp_avg, numbers, scale)
        directions = rule(Tensors.of(rows[i] for i in batch), [], bucket.recipe)
        for i, direction in zip(batch, directions, strict=True):
            param, grad, _, exp_avg, _, _ = streams[i]
            flat_direction = direction.reshape(-1)
            _compiler.call(_move, variant, param, grad, exp_avg, flat_direction, numbers)


def _streams(flat: Tensors) -> list[Tensor | None]:
    """Return a parameter's flat tensors in the order of the kernels' arguments."""
    lists = (
        *(flat.params, flat.grads, flat.last_grads),
        *(flat.exp_avgs, flat.exp_avg_sqs, flat.max_exp_avg_sqs),
    )
    return [tensors[0] if tensors else None for tensors in lists]


def _variant(recipe: Recipe) -> Variant:
    return Variant(
        folded=recipe.previous == "folded",
        squares_gradient=recipe.second_moment == "gradient",
    )


def _numbers(recipe: Recipe, *, like: Tensor) -> Tensor:
    """Return the numbers of a step as a vector beside the moments."""
    length: float | Tensor = recipe.lr
    root: float | Tensor = 1.0
    if recipe.rule == "adamw":
        length = recipe.lr / bias_correction(recipe.beta1, recipe.step)
        root = bias_correction(recipe.beta2, recipe.step) ** -0.5
    numbers = Numbers(
        sign=-1.0 if recipe.maximize else 1.0,
        gain=1 + recipe.correction_weight,
        pull=recipe.correction_weight,
        beta1=recipe.beta1,
        rest1=1 - recipe.beta1,
        beta2=recipe.beta2,
        rest2=1 - recipe.beta2,
        fold=1 - recipe.beta1 + recipe.gamma * recipe.beta1,
        next_gamma=recipe.next_gamma,
        shrink=1 - recipe.lr * recipe.weight_decay,
        length=length,
        root=root,
        eps=recipe.eps,
        max_norm=recipe.max_norm,
    )
    if not any(isinstance(number, Tensor) for number in numbers):
        return torch.tensor(numbers, dtype=like.dtype, device=like.device)
    each = [torch.as_tensor(n, dtype=like.dtype, device=like.device) for n in numbers]
    return torch.stack(each)


# The kernels: functions of one parameter's tensors, which they write by copy_ at their end. The
# variant comes last, as the default that `_Compiler.kernel` gives it.


def _step(
    param: Tensor,
    grad: Tensor,
    last_grad: Tensor | None,
    exp_avg: Tensor,
    exp_avg_sq: Tensor | None,
    max_exp_avg_sq: Tensor | None,
    vector: Tensor,
    scale: Tensor | None,
    keep: Tensor | None,
    variant: Variant,
) -> None:
    n = Numbers(*vector.unbind())
    g = n.sign * grad.to(exp_avg.dtype)
    m, squared = _moment(variant, g, last_grad, exp_avg, n, scale)
    written = [(exp_avg, m - n.next_gamma * g if variant.folded else m)]
    if last_grad is not None:
        written.append((last_grad, g))
    if exp_avg_sq is None:
        direction = m.sign()
    else:
        v = n.beta2 * exp_avg_sq + n.rest2 * squared * squared
        written.append((exp_avg_sq, v))
        if max_exp_avg_sq is not None:
            v = torch.maximum(max_exp_avg_sq, v)
            written.append((max_exp_avg_sq, v))
        direction = m / (v.sqrt() * n.root + n.eps)
    written.append((param, n.shrink * param.to(m.dtype) - n.length * direction))
    for target, value in written:
        value = value.to(target.dtype)
        target.copy_(value if keep is None else torch.where(keep, value, target))


def _moment(
    variant: Variant,
    g: Tensor,
    last_grad: Tensor | None,
    exp_avg: Tensor,
    n: Numbers,
    scale: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return m_t and what the second moment is built from."""
    if variant.folded or last_grad is None:
        return n.beta1 * exp_avg + n.fold * g, g
    previous = last_grad.to(g.dtype)
    c = n.gain * g - n.pull * previous
    if scale is not None:
        c = c * scale
    return n.beta1 * exp_avg + n.rest1 * c, g if variant.squares_gradient else c


def _scale(grad: Tensor, last_grad: Tensor, vector: Tensor, variant: Variant) -> Tensor:
    """Return max_norm / max(|c|, max_norm), adding several parts of the tensor side by side.

    A pass of its own: in one graph with the step, Inductor would store c between the two.
    """
    del variant
    n = Numbers(*vector.unbind())
    # The tail has at least _PARTS elements: a size of 0 or 1 would be compiled apart.
    part = (grad.shape[0] - _PARTS) // _PARTS
    slices = [slice(i * part, (i + 1) * part) for i in range(_PARTS)]
    slices.append(slice(_PARTS * part, None))
    g, previous = grad.to(vector.dtype), last_grad.to(vector.dtype)
    *squares, tail = [(n.gain * g[s] - n.sign * n.pull * previous[s]).square() for s in slices]
    norm = (sum(squares[1:], squares[0]).sum() + tail.sum()).sqrt()
    return n.max_norm / torch.maximum(norm, vector[-1])


def _momentum(
    grad: Tensor,
    last_grad: Tensor | None,
    exp_avg: Tensor,
    vector: Tensor,
    scale: Tensor | None,
    variant: Variant,
) -> None:
    n = Numbers(*vector.unbind())
    g = n.sign * grad.to(exp_avg.dtype)
    m, _ = _moment(variant, g, last_grad, exp_avg, n, scale)
    exp_avg.copy_(m)
    if last_grad is not None:
        last_grad.copy_(g.to(last_grad.dtype))


def _move(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    direction: Tensor,
    vector: Tensor,
    variant: Variant,
) -> None:
    n = Numbers(*vector.unbind())
    moved = n.shrink * param.to(exp_avg.dtype) - n.length * direction
    param.copy_(moved.to(param.dtype))
    if variant.folded:
        exp_avg.copy_(exp_avg - n.next_gamma * n.sign * grad.to(exp_avg.dtype))


class NoCompilerError(Exception):
    """A kernel could not be compiled; nothing it was to write has been written."""


class _Compiler:
    """Compiles each kernel once a variant and dtypes, and remembers if that does not work here."""

    def __init__(self) -> None:
        self.is_broken = False
        self._kernels: dict[object, Kernel] = {}

    def call(self, function: Kernel, variant: Variant, *arguments: Tensor | None) -> Tensor | None:
        """Call a kernel; raise `NoCompilerError`, after one warning, if it cannot be compiled."""
        dtypes = tuple(None if tensor is None else tensor.dtype for tensor in arguments)
        key = (function, variant, dtypes)
        if key not in self._kernels:
            self._kernels[key] = self._compiled(function, variant)
        try:
            result: Tensor | None = self._kernels[key](*arguments)
        except (BackendCompilerFailed, InductorError) as error:
            self.is_broken = True
            reason = str(error).strip().splitlines()[0]
            warnings.warn(
                f"fused=True found no working compiler and runs on the eager engine: {reason}",
                stacklevel=2,
            )
            raise NoCompilerError from error
        return result

    def _compiled(self, function: Kernel, variant: Variant) -> Kernel:
        # dynamo allows a code object few compilations, so each kernel has a code object of its own.
        code = function.__code__.replace(co_name=f"{function.__name__}_{len(self._kernels)}")
        own = FunctionType(code, function.__globals__, code.co_name, (variant,))
        return torch.compile(own, dynamic=True, fullgraph=True)


_compiler = _Compiler()

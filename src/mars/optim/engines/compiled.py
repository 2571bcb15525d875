"""The compiled engine: each tensor read and written once, by code that Inductor generates.

A kernel takes one parameter's tensors as flat views and does the whole step: the sum of squares of
the corrected gradient (pass one), then everything else (pass two) while a tensor that fits is still
in the cache. Numbers enter as a tensor, so that one compilation serves every size, learning rate,
beta, gamma and step. The arithmetic is that of `correction` and `rules`, written out for fusion.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from mars.optim.buckets import Bucket
from mars.optim.engines import eager
from mars.optim.engines.compiler import Compiler, Kernel, NoCompilerError
from mars.optim.routing import MATRIX_RULES, Recipe
from mars.optim.rules import RULES
from mars.optim.rules.adamw import bias_correction

# One parameter's flat tensors in the order of the kernels' arguments; None for what it has not.
Streams = list[Tensor | None]

# The sum of squares goes through a tensor in rows, and adds the parts of a row before it
# accumulates: one accumulator would leave the memory waiting for the adder, and long rows leave the
# prefetcher behind. Rows in order give every core the part of the tensor that pass two gives it:
# what lies in one core's cache is slow to read for another.
_PARTS = 4
_PART = 16


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
    stored: bool
    squares_gradient: bool


def run_(bucket: Bucket, scales: Tensor | None = None) -> None:
    """Take one step on a bucket, as `eager.run_` does.

    What the kernels are not made for (tensors without one dense layout, complex matrices) goes to
    the eager engine; so does everything where no compiler works.
    """
    count = len(bucket.tensors.params)
    streams = {i: own for i in range(count) if (own := _streams(bucket, i)) is not None}
    if streams:
        run_rows_ = _matrices_ if bucket.recipe.rule in MATRIX_RULES else _elementwise_
        try:
            run_rows_(bucket, streams, scales)
        except NoCompilerError:
            streams = {}
    rest = [i for i in range(count) if i not in streams]
    if rest:
        others = replace(bucket, tensors=bucket.tensors.take(rest))
        eager.run_(others, None if scales is None else scales[rest])


def _streams(bucket: Bucket, index: int) -> Streams | None:
    """Return a parameter's flat tensors if the kernels are made for them."""
    tensors = bucket.tensors
    param = tensors.params[index]
    # Generated code reads memory: a sign that is yet to be applied would be lost.
    is_lazy = tensors.grads[index].is_neg()
    if _compiler.is_broken or is_lazy or param.is_complex():
        return None
    # Directions of matrices come out in row-major order, and what a flag may undo is kept whole.
    plain = param.is_contiguous() and bucket.keep_flag is None
    if bucket.recipe.rule in MATRIX_RULES and not plain:
        return None
    flat = tensors.take([index]).flat()
    if flat is None:
        return None
    lists = (
        *(flat.params, flat.grads, flat.last_grads),
        *(flat.exp_avgs, flat.exp_avg_sqs, flat.max_exp_avg_sqs),
    )
    return [each[0] if each else None for each in lists]


# Both of the following have all their kernels before the first of them runs: nothing is half done
# where one cannot be compiled, and Python's own data are still in the cache.


def _elementwise_(bucket: Bucket, streams: dict[int, Streams], scales: Tensor | None) -> None:
    """Take one step by an elementwise rule."""
    numbers = _numbers(bucket.recipe, like=bucket.tensors.exp_avgs[0])
    variant = _variant(bucket.recipe)
    keep = None if bucket.keep_flag is None else bucket.keep_flag.to(numbers.device)
    planned = []
    for i, own in streams.items():
        clip = _Clip(bucket.recipe, own, numbers, None if scales is None else scales[i : i + 1])
        step = _compiler.kernel(_step, variant, *own, numbers, clip.sample, keep)
        planned.append((own, clip, step))
    for own, clip, step in planned:
        step(*own, numbers, clip.scale(), keep)


def _matrices_(bucket: Bucket, streams: dict[int, Streams], scales: Tensor | None) -> None:
    """Take one step by a matrix rule: kernels around batched matrix products."""
    numbers = _numbers(bucket.recipe, like=bucket.tensors.exp_avgs[0])
    variant = _variant(bucket.recipe)
    rule = RULES[bucket.recipe.rule]
    planned = []
    for i, own in streams.items():
        param, grad, last_grad, exp_avg, _, _ = own
        clip = _Clip(bucket.recipe, own, numbers, None if scales is None else scales[i : i + 1])
        ahead = grad, last_grad, exp_avg, numbers
        momentum = _compiler.kernel(_momentum, variant, *ahead, clip.sample)
        move = _compiler.kernel(_move, variant, param, grad, exp_avg, exp_avg, numbers)
        planned.append((i, ahead, clip, momentum, move))
    at_once = eager.matrices_at_once(bucket.tensors.params[0].numel())
    for start in range(0, len(planned), at_once):
        batch = planned[start : start + at_once]
        for _, ahead, clip, momentum, _ in batch:
            momentum(*ahead, clip.scale())
        directions = rule(bucket.tensors.take([i for i, *_ in batch]), [], bucket.recipe)
        for (i, *_, move), direction in zip(batch, directions, strict=True):
            param, grad, _, exp_avg, _, _ = streams[i]
            move(param, grad, exp_avg, direction.reshape(-1), numbers)


class _Clip:
    """A tensor's clip scale: by a pass of its own, or what a global clip has given it."""

    def __init__(
        self, recipe: Recipe, streams: Streams, numbers: Tensor, given: Tensor | None
    ) -> None:
        self._given = given
        self._kernel: Kernel | None = None
        if recipe.clip == "tensor":
            _, grad, last_grad, *_ = streams
            self._tensors = grad, last_grad, numbers
            self._kernel = _compiler.kernel(_scale, _variant(recipe), *self._tensors)
            self._given = numbers[:1]

    @property
    def sample(self) -> Tensor | None:
        """A tensor such as the scale will be, if there is to be one.

        Of one element, not of none: the compiler would take a scalar for a constant.
        """
        return self._given

    def scale(self) -> Tensor | None:
        """Return what to multiply the corrected gradient by."""
        return self._given if self._kernel is None else self._kernel(*self._tensors)


def _variant(recipe: Recipe) -> Variant:
    return Variant(
        folded=recipe.previous == "folded",
        stored=recipe.previous == "stored",
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


# The kernels: functions of one parameter's tensors, which they write by copy_ at their end, and of
# a variant.


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
    if last_grad is not None and variant.stored:
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
    """Return max_norm / max(|c|, max_norm), in rows of several parts added side by side.

    A pass of its own: in one graph with the step, Inductor would store c between the two.
    """
    del variant
    n = Numbers(*vector.unbind())
    # The tail has at least _PARTS elements: a size of 0 or 1 would be compiled apart.
    rows = (grad.shape[0] - _PARTS) // (_PARTS * _PART)
    end = rows * _PARTS * _PART

    def squares(g: Tensor, previous: Tensor) -> Tensor:
        wide, previous = g.to(vector.dtype), previous.to(vector.dtype)
        return (n.gain * wide - n.sign * n.pull * previous).square()

    pairs = zip(
        grad[:end].view(rows, _PARTS, _PART).unbind(1),
        last_grad[:end].view(rows, _PARTS, _PART).unbind(1),
        strict=True,
    )
    first, *others = [squares(*pair) for pair in pairs]
    total = sum(others, first).sum() + squares(grad[end:], last_grad[end:]).sum()
    return (n.max_norm / torch.maximum(total.sqrt(), vector[-1])).reshape(1)


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
    if last_grad is not None and variant.stored:
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


_compiler = Compiler()

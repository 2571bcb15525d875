"""The compiled engine: each tensor read and written once, by code that Inductor generates.

A kernel takes one parameter's tensors as flat views and does the whole step: the sum of squares of
the corrected gradient (pass one), then everything else (pass two) while a tensor that fits is still
in the cache. Numbers enter as a tensor, so that one compilation serves every size, learning rate,
beta, gamma and step. The arithmetic is that of `correction` and `rules`, written out for fusion.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._inductor.exc import InductorError
from torch.fx.experimental.proxy_tensor import make_fx

from mars.optim.buckets import Bucket
from mars.optim.engines import eager
from mars.optim.routing import MATRIX_RULES, Recipe
from mars.optim.rules import RULES
from mars.optim.rules.adamw import bias_correction

# One parameter's flat tensors in the order of the kernels' arguments; None for what it has not.
Streams = list[Tensor | None]

# A kernel as it is written, with a variant as its last argument, and as it is called.
Function = Callable[..., Tensor | None]
Kernel = Callable[..., Tensor | None]

# Below this a call costs more than the work; the eager engine batches such tensors.
_SMALLEST = 2**15

# Kernels are compiled for tensors of this size at least. For few elements, and many cores, the
# compiler would leave the threads out and not say so when larger tensors come; and its cache on
# disk does not tell code for no row or one (see below) from code for any number of rows.
_TYPICAL = 2**20

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
    squares_gradient: bool


def run_(bucket: Bucket, scales: Tensor | None = None) -> None:
    """Take one step on a bucket, as `eager.run_` does.

    What the kernels are not made for (small tensors, tensors without one dense layout, complex
    matrices) goes to the eager engine; so does everything where no compiler works.
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
    if _compiler.is_broken or param.numel() < _SMALLEST or param.is_complex():
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
    keep = bucket.keep_flag
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
    """A kernel could not be compiled; nothing has been written."""


class _Compiled:
    """A kernel's machine code, and which tensors it is good for."""

    def __init__(
        self, function: Function, variant: Variant, arguments: Sequence[Tensor | None], *, size: int
    ) -> None:
        """Compile a kernel for tensors such as ``arguments``, but of so many elements."""
        # Imported here: it takes as long as torch itself, and the disk may have the code already.
        from torch._inductor.compile_fx import compile_fx

        self._places = [i for i, argument in enumerate(arguments) if argument is not None]

        def on_tensors(*tensors: Tensor) -> Tensor | None:
            whole: list[Tensor | None] = [None] * len(arguments)
            for place, tensor in zip(self._places, tensors, strict=True):
                whole[place] = tensor
            return function(*whole, variant)

        given = self._tensors(arguments)
        samples = [t.new_empty(size) if t.shape == given[0].shape else t for t in given]
        graph = make_fx(on_tensors, tracing_mode="symbolic")(*samples)
        self._symbols = [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"]
        self._shapes: Any = graph.shape_env
        self._run: Any = compile_fx(graph, self._symbols)

    def __call__(self, *arguments: Tensor | None) -> Tensor | None:
        result: Tensor | None = self._run(*[t for t in arguments if t is not None])
        return result

    def is_good_for(self, arguments: Sequence[Tensor | None]) -> bool:
        """Whether what the compiler assumed of sizes holds for these tensors."""
        tensors = self._tensors(arguments)
        return bool(self._shapes.evaluate_guards_for_args(self._symbols, tensors))

    def _tensors(self, arguments: Sequence[Tensor | None]) -> list[Tensor]:
        return [tensor for i in self._places if (tensor := arguments[i]) is not None]


class _Compiler:
    """Compiles each kernel once a variant and dtypes, and remembers if that does not work here.

    torch.compile would do the same, but check before every call that what it assumed of dtypes,
    sizes and threads still holds, which takes longer than the step of a small tensor. Here all but
    the sizes are part of the key, and a size is checked when it is first met.
    """

    def __init__(self) -> None:
        self.is_broken = False
        self.compilations = 0
        self._compiled: dict[object, list[_Compiled]] = {}
        self._chosen: dict[object, _Compiled] = {}

    def kernel(self, function: Function, variant: Variant, *arguments: Tensor | None) -> Kernel:
        """Return what runs a function on tensors such as these, of which the first is a large one.

        Raises `NoCompilerError`, after one warning, if it cannot be compiled.
        """
        if torch.compiler.is_compiling():  # the whole step, by somebody else
            return lambda *tensors: function(*tensors, variant)
        first = arguments[0]
        assert first is not None
        dtypes = tuple(None if tensor is None else tensor.dtype for tensor in arguments)
        key = (function, variant, dtypes, first.device, torch.get_num_threads())
        size = first.shape[0]
        chosen = self._chosen.get((key, size))
        if chosen is None:
            chosen = self._chosen[key, size] = self._choose(key, arguments, size=size)
        return chosen

    def _choose(
        self,
        key: tuple[Function, Variant, Any, Any, int],
        arguments: Sequence[Tensor | None],
        *,
        size: int,
    ) -> _Compiled:
        """Return the kernel for tensors of a new size, compiling it if it must be."""
        function, variant, *_ = key
        known = self._compiled.setdefault(key, [])
        for compiled in known:
            if compiled.is_good_for(arguments):
                return compiled
        try:
            compiled = _Compiled(function, variant, arguments, size=max(size, _TYPICAL))
        except InductorError as error:
            raise self._broken(str(error).strip().splitlines()[0]) from error
        if not compiled.is_good_for(arguments):
            raise self._broken(f"the code is not for {size} elements")
        self.compilations += 1
        known.append(compiled)
        return compiled

    def _broken(self, reason: str) -> NoCompilerError:
        self.is_broken = True
        warnings.warn(
            f"fused=True found no working compiler and runs on the eager engine: {reason}",
            stacklevel=2,
        )
        return NoCompilerError(reason)


_compiler = _Compiler()

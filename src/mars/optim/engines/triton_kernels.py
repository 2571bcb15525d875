"""The kernels of the Triton engine: what a step does with one block of one tensor.

Every kernel runs over the blocks of many tensors at once. Where a block belongs and where its
tensors are stands in a table on the device, and so do the numbers of the step. Which tables there
are and how they get to the device is the business of `triton_engine`. The arithmetic is that of
`correction`, `previous` and `rules`, in float32, rounded once to the dtype of each tensor.

Bytes moved for each float32 element, which the tests count in the compiled code:

    norms      reads g, g_prev                  8
    update     reads p, g, g_prev, m, v        20    writes p, m, v, g_prev    16
    - lean     reads p, g, m, v                16    writes p, m, v            12
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import triton  # type: ignore[import-untyped]  # Triton ships no types
import triton.language as tl  # type: ignore[import-untyped]  # as above
from triton.language import constexpr, tensor


class Kernel(Protocol):
    """A function that Triton compiles, and launches on a grid: ``kernel[grid](...)``."""

    def __getitem__(self, grid: tuple[int, ...], /) -> Callable[..., object]: ...

    def __call__(self, *values: Any) -> Any:
        """Call it from another kernel, where values have no static types."""


jit: Callable[[Callable[..., Any]], Kernel] = triton.jit


class Columns(NamedTuple):
    """A tensor's row of the table, int64: addresses, where its blocks are, whose numbers it takes.

    The last three are addresses of numbers that only the device knows.
    """

    params: int
    grads: int
    exp_avgs: int
    exp_avg_sqs: int
    max_exp_avg_sqs: int
    last_grads: int
    directions: int
    elements: int
    first_block: int
    blocks: int
    bucket: int
    lr: int
    step: int
    keep: int


class Numbers(NamedTuple):
    """A bucket's row of numbers, float32."""

    sign: float  # -1 to ascend
    pull: float  # k
    beta1: float
    gain: float  # of the gradient in m: 1 - beta1, or 1 - beta1 + gamma * beta1 in the lean form
    beta2: float
    rest2: float  # 1 - beta2
    eps: float
    next_gamma: float
    max_norm: float
    lr: float
    weight_decay: float
    shrink: float  # 1 - lr * weight_decay
    bias1: float  # 1 - beta1^t
    root_bias2: float  # sqrt(1 - beta2^t)
    log_beta1: float
    log_beta2: float


_COLUMN = constexpr(Columns(*range(len(Columns._fields))))
_NUMBER = constexpr(Numbers(*range(len(Numbers._fields))))
_COLUMNS = constexpr(len(Columns._fields))
_NUMBERS = constexpr(len(Numbers._fields))

# How many partial sums the reduction adds side by side.
_LANES = constexpr(4096)


@dataclass(frozen=True, slots=True)
class Form:
    """What a kernel is compiled for; everything else it reads from the tables.

    ``aligned`` promises that every tensor starts at a multiple of 16 bytes, which lets a thread
    load and store 128 bits at a time.
    """

    block: int
    aligned: bool
    param: tl.dtype
    grad: tl.dtype
    last_grad: tl.dtype
    adamw: bool = False
    corrects: bool = False
    remembers: bool = False
    clips: bool = False
    squares_gradient: bool = False
    amsgrad: bool = False
    lr_on_device: bool = False
    step_on_device: bool = False
    guarded: bool = False


class Place(NamedTuple):
    """Where a block is: the rows of its tensor and numbers, its first element, those left."""

    row: tensor
    numbers: tensor
    start: tensor
    left: tensor


@jit
def norm_kernel(
    table: tensor, numbers: tensor, owners: tensor, partials: tensor, form: constexpr
) -> None:
    """Write each block's sum of squares of c = g + k (g - g_prev)."""
    place = _place(table, numbers, owners, form)
    if place.left >= form.block:
        total = _square_sum(place, form, False)
    else:
        total = _square_sum(place, form, True)
    tl.store(partials + tl.program_id(0), total)


@jit
def reduce_kernel(
    table: tensor,
    numbers: tensor,
    partials: tensor,
    scales: tensor,
    form: constexpr,  # noqa: ARG001  # all kernels have one
) -> None:
    """Write each tensor's clip scale from its blocks' sums."""
    owner = tl.program_id(0)
    row = table + owner * _COLUMNS
    first = partials + tl.load(row + _COLUMN.value.first_block)
    blocks = tl.load(row + _COLUMN.value.blocks)
    lanes = tl.zeros((_LANES,), tl.float32)
    for start in range(0, blocks, _LANES):
        offsets = start + tl.arange(0, _LANES)
        lanes += tl.load(first + offsets, mask=offsets < blocks, other=0.0)
    norm = tl.sqrt_rn(tl.sum(lanes, 0))
    bucket = tl.load(row + _COLUMN.value.bucket)
    max_norm = tl.load(numbers + bucket * _NUMBERS + _NUMBER.value.max_norm)
    # NaN fails the comparison and becomes the scale, as in the eager engine.
    tl.store(scales + owner, tl.where(norm <= max_norm, 1.0, tl.div_rn(max_norm, norm)))


@jit
def update_kernel(
    table: tensor, numbers: tensor, owners: tensor, scales: tensor, form: constexpr
) -> None:
    """Take one step by an elementwise rule: momentum, direction, parameter, memory."""
    place = _place(table, numbers, owners, form)
    if _is_kept(place, form):
        scale = _scale(scales, owners, form)
        if place.left >= form.block:
            _update(place, scale, form, False)
        else:
            _update(place, scale, form, True)


@jit
def momentum_kernel(
    table: tensor, numbers: tensor, owners: tensor, scales: tensor, form: constexpr
) -> None:
    """Turn m_{t-1} into m_t and keep the gradient: a matrix rule before its products."""
    place = _place(table, numbers, owners, form)
    if _is_kept(place, form):
        scale = _scale(scales, owners, form)
        if place.left >= form.block:
            _accumulate(place, scale, form, False)
        else:
            _accumulate(place, scale, form, True)


@jit
def move_kernel(table: tensor, numbers: tensor, owners: tensor, form: constexpr) -> None:
    """Move along given directions: a matrix rule after its products."""
    place = _place(table, numbers, owners, form)
    if _is_kept(place, form):
        if place.left >= form.block:
            _move(place, form, False)
        else:
            _move(place, form, True)


# One block of each kernel. ``masked`` is for the last block of a tensor, which may be short; only
# without masks are loads and stores of 128 bits.


@jit
def _square_sum(place: Place, form: constexpr, masked: constexpr) -> tensor:
    g = _gradient(place, form, masked)
    last_at = _at(place, _COLUMN.value.last_grads, form.last_grad, form)
    c = _corrected(place, g, _read(last_at, place, form, masked))
    return tl.sum(c * c, 0)


@jit
def _update(place: Place, scale: tensor, form: constexpr, masked: constexpr) -> None:
    # All reads come before the first write, so that none has to wait for one.
    p_at = _at(place, _COLUMN.value.params, form.param, form)
    m_at = _at(place, _COLUMN.value.exp_avgs, tl.float32, form)
    p = _read(p_at, place, form, masked)
    g = _gradient(place, form, masked)
    source = g
    if form.corrects:
        last_at = _at(place, _COLUMN.value.last_grads, form.last_grad, form)
        source = _corrected(place, g, _read(last_at, place, form, masked)) * scale
    m = _accumulated(place, _read(m_at, place, form, masked), source)
    if form.adamw:
        if form.squares_gradient:
            source = g
        v_at = _at(place, _COLUMN.value.exp_avg_sqs, tl.float32, form)
        v = _number(place, _NUMBER.value.beta2) * _read(v_at, place, form, masked)
        v += _number(place, _NUMBER.value.rest2) * source * source
        peak = v
        if form.amsgrad:
            peak_at = _at(place, _COLUMN.value.max_exp_avg_sqs, tl.float32, form)
            peak = _larger(_read(peak_at, place, form, masked), v)
        direction = _adamw_direction(place, m, peak, form)
    else:
        # The sign of NaN is 0, as torch has it.
        direction = (m > 0).to(tl.float32) - (m < 0).to(tl.float32)
    p = _moved(place, p, direction, form)
    m = _handed_over(place, m, g, form)
    _write(p_at, p, place, form, masked)
    _write(m_at, m, place, form, masked)
    if form.adamw:
        _write(v_at, v, place, form, masked)
        if form.amsgrad:
            _write(peak_at, peak, place, form, masked)
    if form.remembers:
        _write(last_at, g, place, form, masked)


@jit
def _accumulate(place: Place, scale: tensor, form: constexpr, masked: constexpr) -> None:
    m_at = _at(place, _COLUMN.value.exp_avgs, tl.float32, form)
    g = _gradient(place, form, masked)
    source = g
    if form.corrects:
        last_at = _at(place, _COLUMN.value.last_grads, form.last_grad, form)
        source = _corrected(place, g, _read(last_at, place, form, masked)) * scale
    m = _accumulated(place, _read(m_at, place, form, masked), source)
    _write(m_at, m, place, form, masked)
    if form.remembers:
        _write(last_at, g, place, form, masked)


@jit
def _move(place: Place, form: constexpr, masked: constexpr) -> None:
    p_at = _at(place, _COLUMN.value.params, form.param, form)
    direction_at = _at(place, _COLUMN.value.directions, tl.float32, form)
    direction = _read(direction_at, place, form, masked)
    p = _moved(place, _read(p_at, place, form, masked), direction, form)
    if form.corrects:
        _write(p_at, p, place, form, masked)
    else:
        m_at = _at(place, _COLUMN.value.exp_avgs, tl.float32, form)
        g = _gradient(place, form, masked)
        m = _handed_over(place, _read(m_at, place, form, masked), g, form)
        _write(p_at, p, place, form, masked)
        _write(m_at, m, place, form, masked)


# The arithmetic.


@jit
def _gradient(place: Place, form: constexpr, masked: constexpr) -> tensor:
    """Return the gradient to descend along."""
    grad_at = _at(place, _COLUMN.value.grads, form.grad, form)
    return _number(place, _NUMBER.value.sign) * _read(grad_at, place, form, masked)


@jit
def _corrected(place: Place, g: tensor, g_prev: tensor) -> tensor:
    return g + _number(place, _NUMBER.value.pull) * (g - g_prev)


@jit
def _accumulated(place: Place, m: tensor, source: tensor) -> tensor:
    return _number(place, _NUMBER.value.beta1) * m + _number(place, _NUMBER.value.gain) * source


@jit
def _handed_over(place: Place, m: tensor, g: tensor, form: constexpr) -> tensor:
    """Return what to keep of m_t: in the lean form w_t = m_t - gamma_{t+1} * g_t."""
    if not form.corrects:
        next_gamma = _number(place, _NUMBER.value.next_gamma)
        m = tl.where(next_gamma == 0, m, m - next_gamma * g)
    return m


@jit
def _adamw_direction(place: Place, m: tensor, v: tensor, form: constexpr) -> tensor:
    """Return m^ / (sqrt(v^) + eps)."""
    if form.step_on_device:
        step = _number_at(place, _COLUMN.value.step, tl.float32)
        bias1 = _bias_correction(step, _number(place, _NUMBER.value.log_beta1))
        bias2 = _bias_correction(step, _number(place, _NUMBER.value.log_beta2))
        root_bias2 = tl.sqrt_rn(bias2)
    else:
        bias1 = _number(place, _NUMBER.value.bias1)
        root_bias2 = _number(place, _NUMBER.value.root_bias2)
    denominator = tl.div_rn(tl.sqrt_rn(v), root_bias2) + _number(place, _NUMBER.value.eps)
    return tl.div_rn(m, denominator * bias1)


@jit
def _bias_correction(step: tensor, log_beta: tensor) -> tensor:
    """Return 1 - beta^step = -expm1(step * log(beta))."""
    x = step * log_beta
    # 1 - exp(x) loses digits near 0, so there the series of expm1 is taken. At -0.5 the first
    # term left out, x^10 / 10!, is 5e-10 of x: float32 does not see it.
    series = 1 + x / 9
    for i in tl.static_range(7):
        series = 1 + x / (8 - i) * series
    return tl.where(x > -0.5, -x * series, 1 - tl.exp(x))


@jit
def _larger(a: tensor, b: tensor) -> tensor:
    """Return the larger of two values, or NaN if there is one."""
    return tl.where((a > b) | (a != a), a, b)


@jit
def _moved(place: Place, p: tensor, direction: tensor, form: constexpr) -> tensor:
    """Return x - lr * (direction + weight_decay * x)."""
    if form.lr_on_device:
        lr = _number_at(place, _COLUMN.value.lr, tl.float32)
        shrink = 1 - lr * _number(place, _NUMBER.value.weight_decay)
    else:
        lr = _number(place, _NUMBER.value.lr)
        shrink = _number(place, _NUMBER.value.shrink)
    return shrink * p - lr * direction


# The tables.


@jit
def _place(table: tensor, numbers: tensor, owners: tensor, form: constexpr) -> Place:
    block = tl.program_id(0)
    row = table + tl.load(owners + block) * _COLUMNS
    # In int64: a tensor may have more than 2^31 elements.
    start = (block - tl.load(row + _COLUMN.value.first_block)) * form.block
    left = tl.load(row + _COLUMN.value.elements) - start
    return Place(row, numbers + tl.load(row + _COLUMN.value.bucket) * _NUMBERS, start, left)


@jit
def _number(place: Place, which: constexpr) -> tensor:
    return tl.load(place.numbers + which)


@jit
def _number_at(place: Place, column: constexpr, dtype: constexpr) -> tensor:
    """Return a number that only the device knows."""
    return tl.load(tl.load(place.row + column).to(tl.pointer_type(dtype)))


@jit
def _is_kept(place: Place, form: constexpr) -> tensor:
    kept = True
    if form.guarded:
        kept = _number_at(place, _COLUMN.value.keep, tl.int8) != 0
    return kept


@jit
def _scale(scales: tensor, owners: tensor, form: constexpr) -> tensor:
    scale = 1.0
    if form.clips:
        scale = tl.load(scales + tl.load(owners + tl.program_id(0)))
    return scale


@jit
def _at(place: Place, column: constexpr, dtype: constexpr, form: constexpr) -> tensor:
    """Return the address of a block's first element in one of its tensors."""
    address = tl.load(place.row + column).to(tl.pointer_type(dtype))
    if form.aligned:
        address = tl.multiple_of(address, 16)
    return address + place.start


@jit
def _read(address: tensor, place: Place, form: constexpr, masked: constexpr) -> tensor:
    offsets = tl.arange(0, form.block)
    if masked:
        values = tl.load(address + offsets, mask=offsets < place.left, other=0.0)
    else:
        values = tl.load(address + offsets)
    return values.to(tl.float32)


@jit
def _write(
    address: tensor, values: tensor, place: Place, form: constexpr, masked: constexpr
) -> None:
    offsets = tl.arange(0, form.block)
    values = values.to(address.dtype.element_ty)
    if masked:
        tl.store(address + offsets, values, mask=offsets < place.left)
    else:
        tl.store(address + offsets, values)

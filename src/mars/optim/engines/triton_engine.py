"""The Triton engine: a step in a handful of launches, whatever the number of tensors.

Parameters that one compiled kernel can serve share a launch, whichever buckets they come from.
The launch finds them through a table on the device: addresses, sizes, and the row of numbers of
each one's bucket. Pass one takes the norms of the corrected gradients, pass two does everything
else; the matrix rules orthogonalise in between. A table is kept for as long as the addresses in
it recur. Nothing here reads a value back from a device.

What the kernels (`triton_kernels`) are not made for goes to the eager engine: other dtypes, other
devices, tensors of one parameter that do not share one dense layout, differentiable steps.
"""

import math
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import chain, groupby
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from mars.optim.buckets import Bucket, Tensors
from mars.optim.engines import eager
from mars.optim.options import Clip
from mars.optim.routing import MATRIX_RULES, Rule
from mars.optim.rules import RULES
from mars.optim.rules.adamw import bias_correction

if TYPE_CHECKING:
    from mars.optim.engines.triton_kernels import Columns, Form, Kernel, Numbers

# Elements of a block, and threads that share it. Four elements a thread are 128 bits of a float32
# stream; with eight, streams of 16 and 32 bits would meet by way of shared memory.
_BLOCK = 1024
_THREADS = 256

# Device memory for tables kept from step to step; one for 1.5 billion parameters has 12 MB.
_KEPT_BYTES = 2**26

# Triton's names of the dtypes that parameters, gradients and previous gradients may have.
_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}

# Whether a row's tensors all start at multiples of 16 bytes, and those three dtypes.
Streams = tuple[bool, tuple[torch.dtype, ...]]


@dataclass(frozen=True, slots=True)
class Job:
    """A bucket with the numbers that only the device knows as tensors of that device."""

    bucket: Bucket
    device: torch.device
    lr: float | Tensor
    step: float | Tensor
    keep: Tensor | None


@dataclass(frozen=True, slots=True)
class Row:
    """One parameter: its tensors and their addresses, its job, and its place in that bucket."""

    tensors: Tensors
    addresses: tuple[int, ...]
    job: int
    index: int


@dataclass(frozen=True, slots=True)
class Rest:
    """What the kernels leave of a job's bucket, and the indices of its tensors there."""

    job: int
    indices: list[int]
    bucket: Bucket


class Kind(NamedTuple):
    """What rows must have in common to share a launch."""

    device: torch.device
    rule: Rule
    clip: Clip | None
    form: "Form"


@dataclass(slots=True)
class Launch:
    """Rows that share a launch, and the tables that describe them to the kernels."""

    kind: Kind
    rows: list[Row]
    table: Tensor
    owners: Tensor  # of each block, the row of the table
    numbers: Tensor
    scales: Tensor


def is_available() -> bool:
    """Whether Triton is installed and has something to run on: a GPU, or its interpreter."""
    if find_spec("triton") is None:
        return False
    gpus = (torch.device("cuda", i) for i in range(torch.cuda.device_count()))
    return _is_interpreted() or any(_runs_on(gpu) for gpu in gpus)


def run_(buckets: list[Bucket], scales: list[Tensor | None]) -> None:
    """Take one step on every bucket, as `eager.run_` does on each; ``scales`` has each one's."""
    jobs = [_job(bucket) for bucket in buckets]
    rows, rest = _split(jobs)
    numbers = {device: _numbers(jobs, device) for device in {jobs[row.job].device for row in rows}}
    launches = _launches(rows, jobs, numbers)
    _clip_(launches, scales)
    for launch in launches:
        if launch.kind.rule in MATRIX_RULES:
            _run_matrices_(launch, jobs, numbers)
        else:
            _start(_kernels().update_kernel, launch, launch.owners, launch.scales)
    # Autograd must notice that what it may have saved is gone, though no operator wrote it.
    torch.autograd.graph.increment_version([row.tensors.params[0] for row in rows])
    for part in rest:
        eager.run_(part.bucket, _own(scales[part.job], part.indices))


def _kernels() -> ModuleType:
    # Imported where it is used: a machine without Triton must be able to import this module.
    from mars.optim.engines import triton_kernels

    return triton_kernels


def _is_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _runs_on(device: torch.device) -> bool:
    """Whether kernels run on a device: an AMD GPU, an NVIDIA GPU that Triton supports."""
    if device.type != "cuda":
        return device.type == "cpu" and _is_interpreted()
    return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Make a device the current one: Triton launches there."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


# What is worked on, and by whom.


def _job(bucket: Bucket) -> Job:
    recipe, device = bucket.recipe, bucket.tensors.params[0].device

    def local(number: float | Tensor) -> float | Tensor:
        if not isinstance(number, Tensor):
            return number
        if number.device.type == "cpu" and device.type != "cpu":
            return float(number)  # the host has it at no cost
        return number.detach().to(device, torch.float32)

    # The matrix rules have no bias to correct.
    step = local(recipe.step) if recipe.rule == "adamw" else 1.0
    keep = bucket.keep.to(device) if isinstance(bucket.keep, Tensor) else None
    return Job(bucket, device, lr=local(recipe.lr), step=step, keep=keep)


def _split(jobs: list[Job]) -> tuple[list[Row], list[Rest]]:
    """Return the rows for the kernels and what they leave; empty tensors are in neither."""
    ours: list[Row] = []
    rest: list[Rest] = []
    for number, job in enumerate(jobs):
        left: dict[int, Tensors] = {}
        suits = job.bucket.sliceable and _runs_on(job.device)
        for index, row in enumerate(job.bucket.tensors.rows()):
            if row.params[0].numel() == 0:
                continue
            if suits and _suits(row):
                ours.append(Row(row, _addresses(row), number, index))
            else:
                left[index] = row
        if left:
            bucket = replace(job.bucket, tensors=Tensors.of(left.values()))
            rest.append(Rest(number, list(left), bucket))
    return ours, rest


def _suits(row: Tensors) -> bool:
    """Whether the kernels, which see memory only, are made for a parameter: dtypes and layout."""
    wide = (*row.exp_avgs, *row.exp_avg_sqs, *row.max_exp_avg_sqs)
    streams = (*row.params, *row.grads, *row.last_grads, *wide)
    return (
        all(t.dtype in _DTYPES and not is_traceable_wrapper_subclass(t) for t in streams)
        and all(t.dtype == torch.float32 for t in wide)
        and all(t.device == streams[0].device and not t.is_neg() for t in streams)
        and (all(t.is_contiguous() for t in streams) or row.flat() is not None)
    )


def _addresses(row: Tensors) -> tuple[int, ...]:
    return tuple(tensors[0].data_ptr() if tensors else 0 for tensors in row.lists())


def _launches(
    rows: list[Row], jobs: list[Job], numbers: Mapping[torch.device, Tensor]
) -> list[Launch]:
    """Return the launches that rows take, with their tables on their devices."""
    by_kind: dict[Kind, list[Row]] = {}
    by_streams: dict[tuple[int, Streams], list[Row]] = {}
    for row in rows:
        key = row.job, _streams(row)
        if key not in by_streams:
            by_streams[key] = by_kind.setdefault(_kind(jobs[row.job], key[1]), [])
        by_streams[key].append(row)
    launches = []
    for kind, own in by_kind.items():
        table, owners = _tables(_columns(own, jobs), device=kind.device)
        # Where nothing is clipped, no kernel looks at the scales.
        every = numbers[kind.device]
        launches.append(Launch(kind, own, table, owners, numbers=every, scales=every))
    return launches


def _streams(row: Row) -> Streams:
    narrow = (row.tensors.params, row.tensors.grads, row.tensors.last_grads)
    dtypes = tuple(tensors[0].dtype if tensors else torch.float32 for tensors in narrow)
    return all(address % 16 == 0 for address in row.addresses), dtypes


def _kind(job: Job, streams: Streams) -> Kind:
    recipe, kernels = job.bucket.recipe, _kernels()
    aligned, dtypes = streams
    param, grad, last_grad = (getattr(kernels.tl, _DTYPES[dtype]) for dtype in dtypes)
    adamw = recipe.rule == "adamw"
    form: Form = kernels.Form(
        block=_BLOCK,
        aligned=aligned,
        param=param,
        grad=grad,
        last_grad=last_grad,
        adamw=adamw,
        corrects=recipe.previous != "folded",
        remembers=recipe.previous == "stored",
        clips=recipe.clip is not None,
        squares_gradient=adamw and recipe.second_moment == "gradient",
        amsgrad=adamw and recipe.amsgrad,
        lr_on_device=isinstance(job.lr, Tensor),
        step_on_device=isinstance(job.step, Tensor),
        guarded=job.keep is not None,
    )
    return Kind(job.device, recipe.rule, recipe.clip, form)


# The tables.


def _columns(rows: list[Row], jobs: list[Job]) -> "list[Columns]":
    """Return what the table of a launch says of each of its rows."""
    make = _kernels().Columns
    columns: list[Columns] = []
    first_block = 0
    for row in rows:
        job, elements = jobs[row.job], row.tensors.params[0].numel()
        place = (elements, first_block, -(-elements // _BLOCK), row.job)
        unknown = (job.lr, job.step, job.keep)
        sources = (n.data_ptr() if isinstance(n, Tensor) else 0 for n in unknown)
        columns.append(make(*row.addresses, *place, *sources))
        first_block += columns[-1].blocks
    return columns


_kept: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}


def _tables(columns: "list[Columns]", *, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the table of a launch and the owners of its blocks, kept from an earlier step or new.

    All of a table is in its key, so a kept one cannot be out of date. Streams share none: what one
    has copied, another may read too early. A captured graph has its own, in its own memory.
    """
    with _on(device):
        stream = torch.cuda.current_stream() if device.type == "cuda" else None
        key = (device, stream, *chain.from_iterable(columns))
        capturing = _is_capturing(device)
        if not capturing and key in _kept:
            _kept[key] = _kept.pop(key)  # the last to be dropped
            return _kept[key]
        table = _on_device(torch.tensor(columns, dtype=torch.int64, device="cpu"), device)
        blocks = table[:, columns[0]._fields.index("blocks")]
        owners = torch.repeat_interleave(blocks, output_size=sum(row.blocks for row in columns))
    if not capturing:
        _kept[key] = table, owners
        size = sum(t.nbytes for tables in _kept.values() for t in tables)
        while size > _KEPT_BYTES and len(_kept) > 1:
            size -= sum(t.nbytes for t in _kept.pop(next(iter(_kept))))
    return table, owners


def _numbers(jobs: list[Job], device: torch.device) -> Tensor:
    """Return the numbers of all buckets, a row each."""
    rows = torch.tensor([_numbers_of(job) for job in jobs], dtype=torch.float32, device="cpu")
    with _on(device):
        return _on_device(rows.view(torch.int64), device).view(torch.float32)


def _numbers_of(job: Job) -> "Numbers":
    """Return a bucket's numbers; what only the device knows is a placeholder."""
    recipe = job.bucket.recipe
    lr = 0.0 if isinstance(job.lr, Tensor) else job.lr
    step = 1.0 if isinstance(job.step, Tensor) else job.step
    fold = recipe.gamma * recipe.beta1 if recipe.previous == "folded" else 0.0
    numbers: Numbers = _kernels().Numbers(
        sign=-1.0 if recipe.maximize else 1.0,
        pull=recipe.correction_weight,
        beta1=recipe.beta1,
        gain=1 - recipe.beta1 + fold,
        beta2=recipe.beta2,
        rest2=1 - recipe.beta2,
        eps=recipe.eps,
        next_gamma=recipe.next_gamma,
        max_norm=recipe.max_norm,
        lr=lr,
        weight_decay=recipe.weight_decay,
        shrink=1 - lr * recipe.weight_decay,
        bias1=float(bias_correction(recipe.beta1, step)),
        root_bias2=float(bias_correction(recipe.beta2, step)) ** 0.5,
        log_beta1=_log(recipe.beta1),
        log_beta2=_log(recipe.beta2),
    )
    return numbers


def _log(beta: float) -> float:
    # Of 0 a stand-in: its exponential is 0 as well, and no infinity gets into a product.
    return math.log(beta) if beta else -1e4


def _on_device(host: Tensor, device: torch.device) -> Tensor:
    """Return an int64 tensor of the host on a device, without waiting for the device."""
    if device.type == "cpu":
        return host
    if _is_capturing(device):
        return _through_arguments(host, device)
    return host.pin_memory().to(device, non_blocking=True)


def _through_arguments(host: Tensor, device: torch.device) -> Tensor:
    """Return an int64 tensor of the host on a device, in a way that a graph can capture.

    A captured copy would read the host's memory anew at each replay. Numbers that a foreach
    operation adds travel as arguments of its kernels, and arguments are part of the graph.
    """
    target = torch.zeros_like(host, device=device)
    torch._foreach_add_(list(target.view(-1).unbind()), host.view(-1).tolist())
    return target


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


# The passes.


def _start(kernel: "Kernel", launch: Launch, *arguments: Tensor, blockwise: bool = True) -> None:
    """Launch a kernel: one program for each block, or else for each row."""
    programs = launch.owners.numel() if blockwise else len(launch.rows)
    warps = _THREADS // (32 if torch.version.hip is None else 64)
    with _on(launch.kind.device):
        kernel[(programs,)](
            launch.table, launch.numbers, *arguments, form=launch.kind.form, num_warps=warps
        )


def _clip_(launches: list[Launch], given: list[Tensor | None]) -> None:
    """Give each launch that clips its scales: those given, or by a pass over its gradients."""
    for launch in launches:
        if launch.kind.clip == "global":
            by_job = groupby(launch.rows, key=attrgetter("job"))
            own = [_own(given[job], [row.index for row in rows]) for job, rows in by_job]
            launch.scales = torch.cat([scales.float() for scales in own if scales is not None])
        elif launch.kind.clip is not None:
            partials = launch.numbers.new_empty(launch.owners.numel())
            launch.scales = launch.numbers.new_empty(len(launch.rows))
            _start(_kernels().norm_kernel, launch, launch.owners, partials)
            _start(_kernels().reduce_kernel, launch, partials, launch.scales, blockwise=False)


def _own(scales: Tensor | None, indices: list[int]) -> Tensor | None:
    """Return the scales of some of a bucket's tensors, without sending indices to a device."""
    if scales is None or indices == list(range(len(scales))):
        return scales
    return torch.stack([scales[i] for i in indices])


def _run_matrices_(launch: Launch, jobs: list[Job], numbers: Mapping[torch.device, Tensor]) -> None:
    """Take one step by a matrix rule: kernels around batched matrix products."""
    _start(_kernels().momentum_kernel, launch, launch.owners, launch.scales)
    for number, group in groupby(launch.rows, key=attrgetter("job")):
        rows, bucket = list(group), jobs[number].bucket
        at_once = eager.matrices_at_once(rows[0].tensors.params[0].numel()) if bucket.batched else 1
        for start in range(0, len(rows), at_once):
            batch = rows[start : start + at_once]
            momenta = Tensors.of(row.tensors for row in batch)
            directions = RULES[bucket.recipe.rule](momenta, [], bucket.recipe)
            directed = [_directed(*pair) for pair in zip(batch, directions, strict=True)]
            for move in _launches(directed, jobs, numbers):
                _start(_kernels().move_kernel, move, move.owners)


def _directed(row: Row, direction: Tensor) -> Row:
    """Return a row with its direction, laid out as the other tensors are."""
    like = row.tensors.exp_avgs[0]
    if direction.stride() != like.stride():
        direction = torch.empty_like(like).copy_(direction)
    tensors = replace(row.tensors, directions=[direction])
    return replace(row, tensors=tensors, addresses=_addresses(tensors))

"""What no run can be: values out of range, or that contradict each other.

`check` looks at a whole run, after every override and before anything is made. The options of the
optimizers are held to the same rules as in `mars.optim.options`, which a test compares.
"""

import math
import re
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import NoReturn, get_args

from mars.config.errors import RefusedError
from mars.config.keys import KEYS
from mars.config.schema import Optimizer, OptimizerName, Run, Schedule
from mars.config.toml import shown
from mars.config.vision import check_vision

_BASIC = frozenset({"name", "lr", "weight_decay", "fused"})
_BESIDE = frozenset({"lr_1d", "betas_1d", "weight_decay_1d"})
_LION = _BASIC | {"betas"}
_ADAMW = _LION | {"eps"}
_MUON = _ADAMW | _BESIDE
_MARS_LION = _MUON | {
    *("gamma", "exact", "optimize_1d", "clip", "max_norm", "lean", "last_grad_dtype"),
    "convolutions",
}
# The matrix rules have a second moment where vectors follow MARS-AdamW.
_MARS = _MARS_LION | {"second_moment"}

OPTIONS: Mapping[OptimizerName, frozenset[str]] = {
    "mars-adamw": _MARS,
    "mars-lion": _MARS_LION,
    "mars-shampoo": _MARS,
    "mars-m": _MARS,
    "adamw": _ADAMW,
    "nadamw": _ADAMW,
    "lion": _LION,
    "muon": _MUON,
}
"""The keys of section ``optimizer`` that have a meaning for each optimizer."""

# What a number must be, in words and as a test, and the keys it holds for. An array's numbers are
# looked at one by one. NaN is refused everywhere: it compares as false.
_RANGES: tuple[tuple[str, Callable[[float], bool], tuple[str, ...]], ...] = (
    (
        "at least 1",
        lambda value: value >= 1,
        (
            *("model.layers", "model.heads", "model.width", "model.context_length"),
            *("model.vocab_size", "training.steps", "training.batch_size"),
            *("training.micro_batch_size", "training.validate_every"),
            *("training.validation_sequences", "checkpoint.every", "checkpoint.keep"),
            *("metrics.log_every", "training.replicas", "vision.channels", "vision.blocks"),
            *("vision.attention_heads", "vision.patch_size"),
        ),
    ),
    ("from 1 to 86400", lambda value: 1 <= value <= 86400, ("training.timeout_seconds",)),
    (
        "at least 0",
        lambda value: value >= 0,
        ("seed", "data.workers", "schedule.warmup_steps", "vision.crop_padding"),
    ),
    (
        "positive and finite",
        lambda value: 0 < value < math.inf,
        ("optimizer.lr", "optimizer.max_norm"),
    ),
    (
        "finite and not negative",
        lambda value: 0 <= value < math.inf,
        (
            *("optimizer.lr_1d", "optimizer.eps", "optimizer.weight_decay"),
            *("optimizer.weight_decay_1d", "schedule.min_lr", "training.grad_clip"),
        ),
    ),
    ("in [0, 1]", lambda value: 0 <= value <= 1, ("optimizer.gamma",)),
    (
        "in [0, 1)",
        lambda value: 0 <= value < 1,
        ("optimizer.betas", "optimizer.betas_1d", "model.dropout"),
    ),
    (
        "in (0, 1]",
        lambda value: 0 < value <= 1,
        ("schedule.decay_fraction", "schedule.decay_factor", "vision.target_accuracy"),
    ),
    ("in (0, 1)", lambda value: 0 < value < 1, ("schedule.milestones",)),
)

_WAYS_OUT = {
    "optimizer.gamma": "; 0 turns the correction off",
    "optimizer.max_norm": '; optimizer.clip = "none" turns the clip off',
    "training.grad_clip": "; 0 is no limit",
    "training.micro_batch_size": "; leave it out to take the batch at once",
    "schedule.milestones": "; they are fractions of the run",
}

_DEVICES = ("auto", "cpu", "cuda", "mps", "xpu", "hpu", "mtia", "xla")


def check(run: Run) -> None:
    """Refuse a run that could not be made or trained as it says, naming the first key at fault."""
    _check_texts(run)
    _check_ranges(run)
    _check_shapes(run)
    check_vision(run)
    _check_schedule(run.schedule, steps=run.training.steps, lr=run.optimizer.lr)
    _check_options(run.optimizer)
    if run.optimizer.lean:
        _check_lean(run.optimizer)
    if run.optimizer.exact and run.training.precision == "float16":
        _refuse("training.precision", "float16", "does not go with optimizer.exact; use bfloat16")
    if run.training.precision == "float16" and not run.training.skip_nonfinite:
        reason = "does not go with float16, whose loss scale is found by steps that overflow"
        _refuse("training.skip_nonfinite", False, reason)


def _refuse(key: str, value: object, reason: str) -> NoReturn:
    raise RefusedError(f"{key} = {shown(value)} {reason}")


def _check_texts(run: Run) -> None:
    name = run.name
    if name in ("", ".", "..") or "/" in name or "\\" in name or not name.isprintable():
        _refuse("name", name, "cannot name a directory; use letters, digits, dashes and dots")
    if len(name.encode()) > 255:
        _refuse("name", name, "is longer than the 255 bytes a directory's name can have")
    if not run.data.path or "\0" in run.data.path:
        _refuse("data.path", run.data.path, "names no folder; name one that `mars prepare` made")
    if not run.metrics.wandb_project and run.metrics.wandb != "off":
        _refuse("metrics.wandb_project", "", "names no project; name one or leave it out")
    device = run.training.device
    kind, colon, index = device.partition(":")
    # An index has no meaning without a kind, and torch reads no leading zeros.
    is_index = not colon or (kind != "auto" and re.fullmatch("0|[1-9][0-9]?", index))
    if kind not in _DEVICES or not is_index:
        known = ", ".join(_DEVICES)
        _refuse("training.device", device, f"is no device; use one of {known}, as in cuda:1")


def _check_ranges(run: Run) -> None:
    for words, holds, keys in _RANGES:
        for key in keys:
            value = attrgetter(key)(run)
            numbers = value if isinstance(value, tuple) else () if value is None else (value,)
            if not all(holds(number) for number in numbers):
                way_out = _WAYS_OUT.get(key, "")
                raise RefusedError(f"{key} must be {words}, got {shown(value)}{way_out}")


def _check_shapes(run: Run) -> None:
    model, training = run.model, run.training
    if model.width % model.heads:
        _refuse(
            "model.width",
            model.width,
            f"is not divisible by model.heads = {model.heads}; "
            f"use {-(-model.width // model.heads) * model.heads}",
        )
    micro = training.micro_batch_size
    if micro is not None and training.batch_size % micro:
        _refuse(
            "training.micro_batch_size",
            micro,
            f"does not divide training.batch_size = {training.batch_size}; "
            f"use {math.gcd(micro, training.batch_size)}",
        )
    if training.replicas is not None and training.parallel != "hsdp":
        reason = 'has no meaning without training.parallel = "hsdp"'
        _refuse("training.replicas", training.replicas, f"{reason}; leave it out")


def _check_schedule(schedule: Schedule, *, steps: int, lr: float) -> None:
    if schedule.warmup_steps > steps:
        _refuse(
            "schedule.warmup_steps",
            schedule.warmup_steps,
            f"is more than training.steps = {steps}; warm up for fewer or train for more",
        )
    if schedule.min_lr > lr:
        _refuse(
            "schedule.min_lr",
            schedule.min_lr,
            f"is above the peak optimizer.lr = {lr}; a schedule ends at or below it",
        )
    milestones = schedule.milestones
    if list(milestones) != sorted(set(milestones)):
        _refuse(
            "schedule.milestones", milestones, "do not increase; sort them and leave out equals"
        )
    if schedule.kind == "multistep" and not milestones:
        _refuse("schedule.milestones", milestones, 'is empty; schedule.kind = "constant" has none')


def _check_options(optimizer: Optimizer) -> None:
    """Refuse options that have no meaning for the optimizer, or for the others given."""
    owned = OPTIONS[optimizer.name]
    section = (key for key in KEYS.values() if key.name.startswith("optimizer."))
    given = [key.last_part for key in section if getattr(optimizer, key.last_part) is not None]
    foreign = [option for option in given if option not in owned]
    if foreign:
        first, *others = foreign
        owners = ", ".join(name for name in get_args(OptimizerName) if first in OPTIONS[name])
        also = "".join(f", optimizer.{option} too" for option in others)
        _refuse(
            f"optimizer.{first}",
            getattr(optimizer, first),
            f"has no meaning for {optimizer.name}; it belongs to {owners}; leave it out "
            f"(--set optimizer.{first}=){also}",
        )
    if optimizer.max_norm is not None and optimizer.clip == "none":
        _refuse(
            "optimizer.max_norm",
            optimizer.max_norm,
            'has no meaning with optimizer.clip = "none"; leave one of them out',
        )
    if optimizer.second_moment is not None and not _has_second_moment(optimizer):
        _refuse(
            "optimizer.second_moment",
            optimizer.second_moment,
            f"has no meaning for {optimizer.name} without optimizer.optimize_1d = true; "
            "leave it out",
        )


def _has_second_moment(optimizer: Optimizer) -> bool:
    # Lion has none, and the matrix rules have none unless vectors follow MARS-AdamW.
    return optimizer.name == "mars-adamw" or (
        bool(optimizer.optimize_1d) and optimizer.name != "mars-lion"
    )


def _check_lean(optimizer: Optimizer) -> None:
    """Refuse what needs the previous gradient, which the lean form never stores."""
    if optimizer.exact:
        _refuse(
            "optimizer.lean",
            True,
            "needs optimizer.exact = false: exact mode evaluates the previous gradient",
        )
    if optimizer.clip != "none":
        _refuse(
            "optimizer.lean",
            True,
            'needs optimizer.clip = "none": the clip needs the corrected gradient',
        )
    if _has_second_moment(optimizer) and optimizer.second_moment != "gradient":
        _refuse(
            "optimizer.lean",
            True,
            'needs optimizer.second_moment = "gradient": no corrected gradient is built',
        )
    if optimizer.last_grad_dtype is not None:
        _refuse(
            "optimizer.last_grad_dtype",
            optimizer.last_grad_dtype,
            "has no meaning with optimizer.lean = true, which stores no gradient; leave it out",
        )

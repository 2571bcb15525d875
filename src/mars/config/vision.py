"""What no run on images can be, and no run on text."""

from dataclasses import fields
from typing import NoReturn

from mars.config.errors import RefusedError
from mars.config.schema import Model, Run, Vision
from mars.config.toml import shown

_VIT_KEYS = ("blocks", "attention_heads", "patch_size")


def check_vision(run: Run) -> None:
    """Refuse keys of images in a run on text, and the other way round."""
    if run.vision.network is None:
        _refuse_changed(run, "vision", Vision(), "vision.network is not set and the run is on text")
        if run.data.prepare == "digits":
            _refuse("data.prepare", "digits", 'holds images; set vision.network = "resnet18"')
        return
    _refuse_changed(run, "model", Model(), "it is of a GPT-2, and vision.network is none")
    if run.data.prepare == "stdlib":
        _refuse("data.prepare", "stdlib", "is text; a run with vision.network has images")
    if run.training.activation_checkpointing:
        reason = "is for GPT-2 alone; lower training.micro_batch_size instead"
        _refuse("training.activation_checkpointing", True, reason)
    if run.training.parallel in ("fsdp2", "hsdp"):
        reason = "divides a GPT-2 alone; networks for images train with ddp"
        _refuse("training.parallel", run.training.parallel, reason)
    _check_network(run.vision)


def require_text(run: Run, *, what: str) -> None:
    """Refuse a run on images for something that only text can be used for."""
    if run.vision.network is not None:
        raise RefusedError(
            f"{what} is for runs on text, and vision.network = {shown(run.vision.network)} of "
            f"{run.name} classifies images"
        )


def _check_network(vision: Vision) -> None:
    if vision.network == "vit":
        if vision.channels_last is not None:
            reason = "has no meaning for vit, which is made of matrices; leave it out"
            _refuse("vision.channels_last", vision.channels_last, reason)
        channels, heads = vision.channels or 192, vision.attention_heads or 3
        if channels % heads:
            reason = f"is not divisible by vision.attention_heads = {heads}"
            _refuse("vision.channels", channels, f"{reason}; use {-(-channels // heads) * heads}")
        return
    for key in _VIT_KEYS:
        if getattr(vision, key) is not None:
            reason = "has no meaning for resnet18; it belongs to vit; leave it out"
            _refuse(f"vision.{key}", getattr(vision, key), reason)
    if vision.channels_last and (vision.channels or 64) < 8:
        reason = "crashes in torch below 8 channels; leave it out"
        _refuse("vision.channels_last", True, reason)


def _refuse_changed(run: Run, section: str, default: Model | Vision, reason: str) -> None:
    """Refuse the first key of a section that is not as it is by default."""
    for field in fields(default):
        value = getattr(getattr(run, section), field.name)
        if value != getattr(default, field.name):
            _refuse(f"{section}.{field.name}", value, f"has no meaning: {reason}; leave it out")


def _refuse(key: str, value: object, reason: str) -> NoReturn:
    raise RefusedError(f"{key} = {shown(value)} {reason}")

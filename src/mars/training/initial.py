"""Weights to begin with that another training left: `model.init_from`, a run or a folder."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from mars import checkpoint
from mars.config.errors import RefusedError
from mars.config.load import load_file
from mars.config.schema import Model
from mars.models.gpt2 import GPT2
from mars.models.huggingface import from_huggingface
from mars.training.run_directory import RunDirectory

# Dropout may change: it is no part of what the weights compute.
_SHAPE = (
    *("layers", "heads", "width", "context_length", "vocab_size"),
    *("bias", "scale_attention_by_layer"),
)


def initialize_from_(model: GPT2, config: Model) -> None:
    """Copy the weights that a config begins with into a model, if it names any.

    Weights alone: the optimizer, the schedule and the data begin anew. A model that is divided
    over processes keeps its parts, and all of them call this.
    """
    if config.init_from is None:
        return
    shape, state = _read(config.init_from)
    _check_shape(config, shape)
    _copy_(model, state)


def _read(source: str) -> tuple[Model, Mapping[str, Tensor]]:
    named = f"model.init_from = {source!r}"
    path = Path(source)
    directory = RunDirectory(path)
    if source and directory.exists:
        loaded = checkpoint.load_newest(directory.checkpoints, model_only=True)
        if loaded is None:
            raise RefusedError(f"{named} has no checkpoint yet; train it first")
        return load_file(directory.config).model, loaded.model
    if source and (path / "config.json").is_file():
        return from_huggingface(path)
    raise RefusedError(
        f"{named} is neither a run directory (with run.toml) nor a Hugging Face folder (with "
        "config.json); name one, or leave it out (--set model.init_from=)"
    )


def _check_shape(config: Model, found: Model) -> None:
    """Refuse weights of another model, with the settings that would fit them."""
    wrong = [name for name in _SHAPE if getattr(config, name) != getattr(found, name)]
    if wrong:
        own = ", ".join(f"{name} = {getattr(config, name)}" for name in wrong)
        settings = " ".join(f"model.{name}={_as_toml(getattr(found, name))}" for name in wrong)
        raise RefusedError(
            f"model.init_from = {config.init_from!r} does not fit {own}; use --set {settings}"
        )


def _as_toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@torch.no_grad()
def _copy_(model: GPT2, state: Mapping[str, Tensor]) -> None:
    params = dict(model.named_parameters())
    if params.keys() != state.keys():
        odd = sorted(params.keys() ^ state.keys())
        raise RefusedError(f"model.init_from: the weights differ in {odd[0]}; export the run again")
    for name, param in params.items():
        given = state[name]
        if hasattr(param, "device_mesh"):
            # Importing this takes half as long as torch itself: only for those who shard.
            from torch.distributed.tensor import DTensor, distribute_tensor

            assert isinstance(param, DTensor)
            # Every rank has read the same matrix and keeps its part: nothing is sent.
            given = distribute_tensor(
                given.to(param.device), param.device_mesh, param.placements, src_data_rank=None
            )
        param.copy_(given)

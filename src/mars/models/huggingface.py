"""GPT-2 to and from the Hugging Face form: a folder with config.json and model.safetensors.

Nothing in a folder is executed. What the model here would compute differently is refused.
"""

import json
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mars.config.errors import RefusedError
from mars.config.schema import Model
from mars.models.gpt2 import GPT2

_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"
_OLD_WEIGHTS = "pytorch_model.bin"
_PREFIX = "transformer."

_SIZES = {
    "layers": "n_layer",
    "heads": "n_head",
    "width": "n_embd",
    "context_length": "n_positions",
    "vocab_size": "vocab_size",
}
_DROPOUTS = ("embd_pdrop", "attn_pdrop", "resid_pdrop")
_DROPOUT_IF_ABSENT = 0.1
_SCALED = "scale_attn_by_inverse_layer_idx"
# transformers has no GPT-2 without biases: ours are written as zeros, with this key beside them.
_BIAS = "bias"
# Keys with the one value that the model here computes; transformers has it where a file is silent.
_FIXED = {
    "model_type": "gpt2",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
# One function under two names: transformers computes the first by the operation that the model here
# uses, so that logits are equal to the last bit, and the second, its default, in steps.
_ACTIVATION = "activation_function"
_ACTIVATIONS = ("gelu_pytorch_tanh", "gelu_new")
_END_OF_TEXT = 50256

# transformers multiplies by Conv1D weights from the other side than nn.Linear.
_TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
# Causal masks that older versions of transformers saved with the weights.
_MASKS = (".attn.bias", ".attn.masked_bias")


def load_huggingface(folder: Path) -> GPT2:
    """Return the model of a Hugging Face folder in float32, in evaluation mode as theirs."""
    config, state = from_huggingface(folder)
    with torch.device("meta"):
        model = GPT2(config)
    model.to_empty(device="cpu").load_state_dict(state)
    return model.train(False)


def from_huggingface(folder: Path) -> tuple[Model, dict[str, Tensor]]:
    """Return the shape and the weights of a Hugging Face folder, the latter named as in `GPT2`."""
    config = from_huggingface_config(_read_config(folder / _CONFIG))
    state = _read_weights(folder)
    if any(bool(tensor.any()) for tensor in _biases(state)):
        # Training elsewhere keeps our key in the config although biases have moved from zero.
        config = replace(config, bias=True)
    return config, from_huggingface_state(state, config)


def save_huggingface(
    model: GPT2, folder: Path, *, files: Mapping[str, bytes] | None = None
) -> None:
    """Write a model as a Hugging Face folder; one that exists is refused, none is left halfway.

    ``files`` has the contents of others that go into it, by name.
    """
    from safetensors.torch import save_file

    if folder.exists():
        raise RefusedError(f"{folder} exists; name a folder that does not")
    state = to_huggingface_state(model.state_dict(), model.config)
    config = json.dumps(to_huggingface_config(model.config), indent=2) + "\n"
    partial = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        save_file(state, partial / _WEIGHTS, metadata={"format": "pt"})
        (partial / _CONFIG).write_text(config)
        for name, content in (files or {}).items():
            (partial / name).write_bytes(content)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def to_huggingface_config(config: Model) -> dict[str, Any]:
    """Return what config.json says of a model of this shape."""
    end_of_text = _END_OF_TEXT if config.vocab_size > _END_OF_TEXT else None
    return {
        "architectures": ["GPT2LMHeadModel"],
        **_FIXED,
        _ACTIVATION: _ACTIVATIONS[0],
        **{theirs: getattr(config, ours) for ours, theirs in _SIZES.items()},
        **dict.fromkeys(_DROPOUTS, config.dropout),
        _SCALED: config.scale_attention_by_layer,
        _BIAS: config.bias,
        "n_inner": None,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
    }


def from_huggingface_config(values: Mapping[str, Any]) -> Model:
    """Return the shape that config.json describes; refuse what `GPT2` does not compute."""
    for key, expected in _FIXED.items():
        if values.get(key, expected) != expected:
            raise _unsupported(key, values[key], expected)
    activation = values.get(_ACTIVATION, "gelu_new")
    if activation not in _ACTIVATIONS:
        raise _unsupported(_ACTIVATION, activation, " or ".join(_ACTIVATIONS))
    sizes = {ours: _whole_number(values, theirs) for ours, theirs in _SIZES.items()}
    inner = values.get("n_inner")
    if inner is not None and inner != 4 * sizes["width"]:
        raise _unsupported("n_inner", inner, 4 * sizes["width"])
    dropouts = {key: values.get(key, _DROPOUT_IF_ABSENT) for key in _DROPOUTS}
    for key, value in dropouts.items():
        if not isinstance(value, int | float) or value != dropouts["resid_pdrop"]:
            raise _unsupported(key, value, dropouts["resid_pdrop"])
    return Model(
        layers=sizes["layers"],
        heads=sizes["heads"],
        width=sizes["width"],
        context_length=sizes["context_length"],
        vocab_size=sizes["vocab_size"],
        bias=_flag(values, _BIAS, default=True),
        dropout=float(dropouts["resid_pdrop"]),
        scale_attention_by_layer=_flag(values, _SCALED, default=False),
    )


def to_huggingface_state(state: Mapping[str, Tensor], config: Model) -> dict[str, Tensor]:
    """Return a state dict of `GPT2` under the names and in the layout of transformers."""
    _check_tensors(state, _shapes(config))
    found = {}
    for name, shape in _shapes(replace(config, bias=True)).items():
        tensor = state[name] if name in state else state["wte.weight"].new_zeros(shape)
        found[_PREFIX + name] = _other_layout(name, tensor)
    return found


def from_huggingface_state(state: Mapping[str, Tensor], config: Model) -> dict[str, Tensor]:
    """Return a state dict of transformers under the names and in the layout of `GPT2`.

    The prefix ``transformer.`` may be absent, and so may the head, which is the embedding again.
    """
    found = {name: tensor for name, tensor in state.items() if not name.endswith(_MASKS)}
    prefix = _PREFIX if any(name.startswith(_PREFIX) for name in found) else ""
    head = found.pop("lm_head.weight", None)
    shapes = _shapes(replace(config, bias=True))
    _check_tensors(found, {prefix + name: _other_shape(name, shapes[name]) for name in shapes})
    if head is not None and not torch.equal(head, found[prefix + "wte.weight"]):
        raise RefusedError("lm_head.weight differs from wte.weight; only a tied head is supported")
    if not config.bias and any(bool(tensor.any()) for tensor in _biases(found)):
        raise RefusedError("the weights have biases that are not zero; set model.bias to true")
    return {name: _other_layout(name, found[prefix + name]) for name in _shapes(config)}


def _shapes(config: Model) -> dict[str, torch.Size]:
    with torch.device("meta"):
        return {name: tensor.shape for name, tensor in GPT2(config).state_dict().items()}


def _other_layout(name: str, tensor: Tensor) -> Tensor:
    return tensor.T.contiguous() if name.endswith(_TRANSPOSED) else tensor


def _other_shape(name: str, shape: torch.Size) -> torch.Size:
    return torch.Size(reversed(shape)) if name.endswith(_TRANSPOSED) else shape


def _biases(state: Mapping[str, Tensor]) -> list[Tensor]:
    return [t for name, t in state.items() if name.endswith(".bias") and not name.endswith(_MASKS)]


def _check_tensors(found: Mapping[str, Tensor], expected: Mapping[str, torch.Size]) -> None:
    """Refuse weights that are not exactly those of the shape."""
    if missing := expected.keys() - found.keys():
        raise RefusedError(f"the weights lack {_listed(missing)}, which the config asks for")
    if extra := found.keys() - expected.keys():
        raise RefusedError(f"the weights hold {_listed(extra)}, which the config does not have")
    for name, shape in expected.items():
        if found[name].shape != shape:
            given = tuple(found[name].shape)
            raise RefusedError(f"{name} has shape {given}, the config asks for {tuple(shape)}")
        if not found[name].is_floating_point():
            raise RefusedError(f"{name} is {found[name].dtype}; save the weights as floating point")


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(sorted(names)[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _unsupported(key: str, value: object, expected: object) -> RefusedError:
    return RefusedError(f"{_CONFIG}: {key} must be {expected!r}, got {value!r}; not supported")


def _whole_number(values: Mapping[str, Any], key: str) -> int:
    value = values.get(key)
    if type(value) is not int:  # a bool is no size
        raise RefusedError(f"{_CONFIG}: {key} must be a whole number, got {value!r}")
    return value


def _flag(values: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = values.get(key, default)
    if not isinstance(value, bool):
        raise RefusedError(f"{_CONFIG}: {key} must be true or false, got {value!r}")
    return value


def _read_config(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RefusedError(f"{path} cannot be read ({error}); name a folder with one") from error
    if not isinstance(values, dict):
        raise RefusedError(f"{path} is no JSON object; name the folder of a GPT-2")
    return values


def _read_weights(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    path = next((p for n in (_WEIGHTS, _OLD_WEIGHTS) if (p := folder / n).is_file()), None)
    if path is None:
        raise RefusedError(
            f"{folder} has neither {_WEIGHTS} nor {_OLD_WEIGHTS}; save the model as one file"
        )
    try:
        if path.name == _WEIGHTS:
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # each reader has its own; any of them means a damaged file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RefusedError(f"{path} cannot be read ({reason}); fetch it again") from error
    if not isinstance(state, dict) or not all(isinstance(t, Tensor) for t in state.values()):
        raise RefusedError(f"{path} holds more than named tensors; save a state dict")
    return state

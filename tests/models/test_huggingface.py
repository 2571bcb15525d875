"""The Hugging Face form: equal logits both ways, and what is refused."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mars.config.errors import RefusedError
from mars.config.schema import Model
from mars.models.gpt2 import GPT2
from mars.models.huggingface import (
    from_huggingface,
    from_huggingface_config,
    from_huggingface_state,
    load_huggingface,
    save_huggingface,
    to_huggingface_config,
    to_huggingface_state,
)

# Read when transformers is imported.
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

TINY = Model(layers=3, heads=2, width=16, context_length=10, vocab_size=31, bias=True, dropout=0.1)
SHAPES = [
    replace(TINY, bias=bias, scale_attention_by_layer=scaled)
    for bias in (True, False)
    for scaled in (True, False)
] + [
    Model(layers=1, heads=1, width=8, context_length=6, vocab_size=50304),
    Model(layers=2, heads=3, width=21, context_length=7, vocab_size=257, bias=True),
]


def name_of(config: Model) -> str:
    bias, scaled = ("bias" * config.bias, "scaled" * config.scale_attention_by_layer)
    return f"{config.width}x{config.vocab_size}{bias}{scaled}"


def noisy_(model: torch.nn.Module) -> torch.nn.Module:
    """Move every weight, biases and norms too, so that each one shows in the logits."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(torch.randn(param.shape, generator=generator), alpha=0.3)
    return model.eval()


def ours(config: Model = TINY) -> GPT2:
    return noisy_(GPT2(config, generator=torch.Generator().manual_seed(0)))


def tokens(config: Model) -> torch.Tensor:
    shape = (2, config.context_length)
    return torch.randint(config.vocab_size, shape, generator=torch.Generator().manual_seed(2))


def theirs(config: Model, **changes) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(**{**to_huggingface_config(config), **changes}))


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder that can be loaded, for a test to spoil."""
    save_huggingface(ours(), tmp_path / "model")
    return tmp_path / "model"


def rewrite_config(folder: Path, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def rewrite_weights(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
    state = {**load_file(folder / "model.safetensors"), **changes}
    state = {name: tensor.clone() for name, tensor in state.items() if tensor is not None}
    save_file(state, folder / "model.safetensors")


# Equality


@pytest.mark.parametrize("config", SHAPES, ids=name_of)
def test_transformers_computes_our_logits(config, tmp_path):
    from transformers import GPT2LMHeadModel

    model = ours(config)
    save_huggingface(model, tmp_path / "model")
    loaded, info = GPT2LMHeadModel.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not info["missing_keys"] | info["unexpected_keys"] | info["mismatched_keys"]
    assert loaded.config.scale_attn_by_inverse_layer_idx == config.scale_attention_by_layer
    # The very operation, not the same function in other steps.
    assert loaded.config.activation_function == "gelu_pytorch_tanh"
    given = tokens(config)
    torch.testing.assert_close(loaded.eval()(given).logits, model(given), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("vocab_size", [31, 50304])
def test_we_compute_the_logits_of_transformers(scaled, vocab_size, tmp_path):
    config = replace(TINY, scale_attention_by_layer=scaled, vocab_size=vocab_size)
    model = noisy_(theirs(config))
    model.save_pretrained(tmp_path)
    loaded = load_huggingface(tmp_path)
    assert loaded.config == config
    given = tokens(config)
    torch.testing.assert_close(loaded(given), model(given).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("config", SHAPES, ids=name_of)
def test_saving_and_loading_is_bitwise_identical(config, tmp_path):
    model = ours(config)
    save_huggingface(model, tmp_path / "model")
    loaded = load_huggingface(tmp_path / "model")
    assert loaded.config == config
    assert not loaded.training
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


@pytest.mark.parametrize("config", SHAPES, ids=name_of)
def test_states_and_configs_convert_there_and_back(config):
    state = ours(config).state_dict()
    converted = to_huggingface_state(state, config)
    assert converted.keys() | {"lm_head.weight"} == theirs(config).state_dict().keys()
    back = from_huggingface_state(converted, config)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)
    assert from_huggingface_config(to_huggingface_config(config)) == config


def test_a_model_without_biases_is_written_with_zeros():
    config = replace(TINY, bias=False)
    converted = to_huggingface_state(ours(config).state_dict(), config)
    biases = [tensor for name, tensor in converted.items() if name.endswith(".bias")]
    assert len(biases) == 6 * 3 + 1
    assert all(tensor.count_nonzero() == 0 for tensor in biases)


def test_biases_trained_elsewhere_are_kept(tmp_path):
    save_huggingface(ours(replace(TINY, bias=False)), tmp_path / "model")
    moved = torch.full((16,), 0.5)
    rewrite_weights(tmp_path / "model", {"transformer.ln_f.bias": moved})
    loaded = load_huggingface(tmp_path / "model")
    assert loaded.config.bias
    assert torch.equal(loaded.ln_f.bias, moved)


def test_loaded_weights_are_copies_in_float32(tmp_path):
    theirs(TINY).bfloat16().save_pretrained(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    loaded = load_huggingface(tmp_path)
    assert {param.dtype for param in loaded.parameters()} == {torch.float32}
    assert all(param.requires_grad for param in loaded.parameters())
    noisy_(loaded)
    assert (tmp_path / "model.safetensors").read_bytes() == before


# Older forms


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_bare_names_masks_and_a_tied_head_are_understood(name, folder):
    expected = load_huggingface(folder).state_dict()
    state = load_file(folder / "model.safetensors")
    old = {key.removeprefix("transformer."): tensor.clone() for key, tensor in state.items()}
    (folder / "model.safetensors").unlink()
    old["lm_head.weight"] = old["wte.weight"].clone()
    for layer in range(3):
        old[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 10, 10, dtype=torch.uint8).tril()
        old[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    if name.endswith(".bin"):
        torch.save(old, folder / name)
    else:
        save_file(old, folder / name)
    config, found = from_huggingface(folder)
    assert config == TINY
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_a_silent_config_means_the_defaults_of_transformers():
    sizes = dict.fromkeys(("n_layer", "n_head", "n_embd", "n_positions", "vocab_size"), 4)
    assert from_huggingface_config(sizes) == Model(
        layers=4,
        heads=4,
        width=4,
        context_length=4,
        vocab_size=4,
        bias=True,
        dropout=0.1,
        scale_attention_by_layer=False,
    )


@pytest.mark.parametrize("name", ["gelu_new", "gelu_pytorch_tanh", None])
def test_the_activation_has_two_names_and_a_default(name, folder):
    before = load_huggingface(folder)
    rewrite_config(folder, activation_function=name)
    if name is None:
        path = folder / "config.json"
        values = json.loads(path.read_text())
        del values["activation_function"]
        path.write_text(json.dumps(values))
    given = tokens(before.config)
    assert torch.equal(load_huggingface(folder)(given), before(given))


# Refusals


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "llama"),
        ("activation_function", "relu"),
        ("layer_norm_epsilon", 1e-6),
        ("scale_attn_weights", False),
        ("reorder_and_upcast_attn", True),
        ("add_cross_attention", True),
        ("tie_word_embeddings", False),
        ("n_inner", 65),
        ("attn_pdrop", 0.2),
        ("embd_pdrop", "much"),
        ("resid_pdrop", None),
        ("n_layer", "3"),
        ("n_head", None),
        ("n_embd", True),
        ("n_positions", 10.0),
        ("scale_attn_by_inverse_layer_idx", "yes"),
        ("bias", 1),
    ],
)
def test_unsupported_configs_are_refused_by_key(key, value, folder):
    rewrite_config(folder, **{key: value})
    if key == "resid_pdrop":  # the value that the other two are compared with
        key = "embd_pdrop"
    with pytest.raises(RefusedError, match=rf"config\.json: {key} must be"):
        load_huggingface(folder)


def test_an_impossible_shape_is_refused(folder):
    rewrite_config(folder, n_head=5)
    with pytest.raises(RefusedError, match=r"heads must divide model\.width, got 5"):
        load_huggingface(folder)


@pytest.mark.parametrize("inner", [None, 64])
def test_an_inner_width_of_four_times_the_width_is_accepted(inner, folder):
    rewrite_config(folder, n_inner=inner)
    assert load_huggingface(folder).config == TINY


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transformer.wpe.weight": None}, "lack transformer.wpe.weight"),
        ({"transformer.h.3.ln_1.weight": torch.ones(16)}, r"hold transformer.h.3.ln_1.weight"),
        ({"wte.weight": torch.ones(31, 16)}, "hold wte.weight"),
        (
            {"transformer.h.0.attn.c_attn.weight": torch.ones(48, 16)},
            r"c_attn.weight has shape \(48, 16\), the config asks for \(16, 48\)",
        ),
        (
            {"transformer.ln_f.weight": torch.ones(16, dtype=torch.int8)},
            r"ln_f.weight is torch.int8",
        ),
        ({"lm_head.weight": torch.ones(31, 16)}, "lm_head.weight differs"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(changes, message, folder):
    rewrite_weights(folder, changes)
    with pytest.raises(RefusedError, match=message):
        load_huggingface(folder)


def test_many_missing_tensors_are_counted(folder):
    rewrite_config(folder, n_layer=5)
    with pytest.raises(RefusedError, match=r"transformer\.h\.3\.attn\..* and 21 more"):
        load_huggingface(folder)


def test_nonzero_biases_do_not_become_a_model_without():
    state = to_huggingface_state(ours().state_dict(), TINY)
    with pytest.raises(RefusedError, match=r"set model\.bias to true"):
        from_huggingface_state(state, replace(TINY, bias=False))


def test_a_state_of_another_shape_is_not_converted():
    state = ours().state_dict()
    with pytest.raises(RefusedError, match=r"hold .*\.bias"):
        to_huggingface_state(state, replace(TINY, bias=False))
    with pytest.raises(RefusedError, match=r"wpe.weight has shape \(10, 16\)"):
        to_huggingface_state(state, replace(TINY, context_length=9))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_files_are_refused_by_name(name, folder):
    (folder / name).unlink()
    with pytest.raises(RefusedError, match=name):
        load_huggingface(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "pytorch_model.bin"])
def test_truncated_files_are_refused_by_name(name, folder):
    path = folder / name
    if name == "pytorch_model.bin":
        torch.save(load_file(folder / "model.safetensors"), path)
        (folder / "model.safetensors").unlink()
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(RefusedError, match=rf"{name} cannot be read"):
        load_huggingface(folder)


class Trap:
    """Unpickling this would create a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_code_in_a_weights_file_does_not_run(folder, tmp_path):
    (folder / "model.safetensors").unlink()
    torch.save({"wte.weight": Trap(tmp_path / "ran")}, folder / "pytorch_model.bin")
    with pytest.raises(RefusedError, match=r"pytorch_model\.bin cannot be read"):
        load_huggingface(folder)
    assert not (tmp_path / "ran").exists()


def test_a_training_checkpoint_is_not_taken_for_weights(folder):
    (folder / "model.safetensors").unlink()
    torch.save({"model": {"wte.weight": torch.ones(2)}}, folder / "pytorch_model.bin")
    with pytest.raises(RefusedError, match="more than named tensors"):
        load_huggingface(folder)


# Saving


def test_an_existing_folder_is_left_alone(tmp_path):
    (tmp_path / "kept.txt").write_text("kept")
    with pytest.raises(RefusedError, match="exists"):
        save_huggingface(ours(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_a_save_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def disk_full(*_args, **_options):
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_text", disk_full)
    with pytest.raises(OSError, match="No space"):
        save_huggingface(ours(), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("vocab_size", "end"), [(50304, 50256), (256, None)])
def test_end_of_text_is_named_where_the_vocabulary_has_it(vocab_size, end):
    values = to_huggingface_config(replace(TINY, vocab_size=vocab_size))
    assert (values["bos_token_id"], values["eos_token_id"]) == (end, end)

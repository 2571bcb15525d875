"""Beginning with weights that are there: copied whole, refused by name where they do not fit."""

from dataclasses import replace

import pytest
import torch

from mars import checkpoint
from mars.config.errors import RefusedError
from mars.config.load import load_file
from mars.config.schema import Model
from mars.models.gpt2 import GPT2
from mars.models.huggingface import save_huggingface
from mars.training.initial import initialize_from_
from training.runs import make_corpus, run, write_config

SHAPE = Model(layers=2, heads=2, width=16, context_length=16, vocab_size=257)


def drawn(config: Model = SHAPE, *, seed: int = 0) -> GPT2:
    return GPT2(config, generator=torch.Generator().manual_seed(seed))


def are_equal(one: GPT2, other: dict) -> bool:
    state = one.state_dict()
    return state.keys() == other.keys() and all(
        torch.equal(state[name], other[name]) for name in state
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    run(write_config(folder, make_corpus(folder)), folder / "run")
    return folder / "run"


def test_without_a_source_weights_stay_random():
    model = drawn()
    initialize_from_(model, SHAPE)
    assert are_equal(model, drawn().state_dict())


@pytest.mark.parametrize("bias", [True, False])
def test_a_folder_gives_its_weights(bias, tmp_path):
    config = replace(SHAPE, bias=bias)
    first = drawn(config, seed=1)
    with torch.no_grad():
        for param in first.parameters():
            param.add_(0.01)
    save_huggingface(first, tmp_path / "model")
    model = drawn(config)
    initialize_from_(model, replace(config, init_from=str(tmp_path / "model"), dropout=0.5))
    assert are_equal(model, first.state_dict())
    assert all(param.requires_grad for param in model.parameters())


def test_a_run_gives_the_weights_of_its_newest_checkpoint(trained):
    config = replace(load_file(trained / "run.toml").model, init_from=str(trained))
    model = drawn(config)
    initialize_from_(model, config)
    assert are_equal(model, checkpoint.load_newest(trained / "checkpoints").model)
    assert not are_equal(model, drawn(config).state_dict())


def test_weights_are_copied_in_place(tmp_path):
    save_huggingface(drawn(seed=1), tmp_path / "model")
    model = drawn()
    held = [param.data_ptr() for param in model.parameters()]
    initialize_from_(model, replace(SHAPE, init_from=str(tmp_path / "model")))
    assert [param.data_ptr() for param in model.parameters()] == held


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers": 3}, "does not fit layers = 3; use --set model.layers=2"),
        ({"heads": 4}, "does not fit heads = 4; use --set model.heads=2"),
        ({"vocab_size": 300}, "does not fit vocab_size = 300; use --set model.vocab_size=257"),
        (
            {"scale_attention_by_layer": False, "context_length": 8},
            "use --set model.context_length=16 model.scale_attention_by_layer=true",
        ),
    ],
)
def test_another_shape_is_refused_with_the_settings_that_fit(changes, words, tmp_path):
    save_huggingface(drawn(seed=1), tmp_path / "model")
    config = replace(SHAPE, **changes, init_from=str(tmp_path / "model"))
    model = drawn(config)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(RefusedError, match=words):
        initialize_from_(model, config)
    assert are_equal(model, before)


@pytest.mark.parametrize("source", ["", "absent"])
def test_what_is_no_model_is_refused(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RefusedError, match=f"model.init_from = '{source}' is neither a run"):
        initialize_from_(drawn(), replace(SHAPE, init_from=source))


def test_a_run_without_a_checkpoint_is_refused(trained, tmp_path):
    (tmp_path / "run.toml").write_bytes((trained / "run.toml").read_bytes())
    with pytest.raises(RefusedError, match="has no checkpoint yet; train it first"):
        initialize_from_(drawn(), replace(SHAPE, init_from=str(tmp_path)))


def test_training_begins_with_the_weights_and_a_resume_does_without_them(trained, tmp_path):
    save_huggingface(_of(trained), tmp_path / "model")
    config = write_config(tmp_path, make_corpus(tmp_path), steps=4, every=2)
    still = ("optimizer.lr=1e-12", "optimizer.lr_1d=1e-12")
    source = f"model.init_from={tmp_path / 'model'}"
    run(config, tmp_path / "run", source, *still)
    (tmp_path / "model").rename(tmp_path / "gone")
    for name, tensor in checkpoint.load_newest(tmp_path / "run" / "checkpoints").model.items():
        torch.testing.assert_close(tensor, _of(trained).state_dict()[name], rtol=0, atol=1e-9)
    (tmp_path / "run" / "checkpoints" / "step-00000004").rename(tmp_path / "aside")
    run(config, tmp_path / "run", source, *still, resume=True)
    assert checkpoint.newest_step(tmp_path / "run" / "checkpoints") == 4


def test_weights_that_do_not_fit_leave_no_run(trained, tmp_path):
    config = write_config(tmp_path, make_corpus(tmp_path))
    settings = (f"model.init_from={trained}", "model.width=32")
    with pytest.raises(RefusedError, match=r"does not fit width = 32; use --set model\.width=16"):
        run(config, tmp_path / "run", *settings)
    assert not (tmp_path / "run").exists()


def _of(directory) -> GPT2:
    """Return the model of a run."""
    model = GPT2(load_file(directory / "run.toml").model)
    model.load_state_dict(checkpoint.load_newest(directory / "checkpoints").model)
    return model

"""What can be evaluated: told by files, opened whole, refused by name."""

import sys

import pytest
import torch

from evaluation.trained import TINY, byte_model, no_network
from mars.config.errors import RefusedError
from mars.evaluation.export import export_run
from mars.evaluation.hub import HUB_NAMES, fetch
from mars.evaluation.source import check_source
from mars.evaluation.subject import open_subject
from mars.models.huggingface import save_huggingface
from training.runs import make_corpus, run, write_config


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    run(write_config(folder, make_corpus(folder)), folder / "run")
    return folder / "run"


def weights(subject) -> list[torch.Tensor]:
    return list(subject.model.state_dict().values())


def test_a_run_is_its_newest_good_checkpoint(trained):
    subject = open_subject(str(trained))
    assert (subject.kind, subject.step, subject.tokenizer.name) == ("run", 12, "bytes")
    assert not subject.model.training
    earlier = open_subject(str(trained), step=8)
    assert earlier.step == 8
    assert not torch.equal(weights(earlier)[0], weights(subject)[0])


def test_an_exported_run_is_the_same_model(trained, tmp_path):
    subject = open_subject(str(trained))
    export_run(subject, tmp_path / "model")
    again = open_subject(str(tmp_path / "model"))
    assert (again.kind, again.step, again.tokenizer.name) == ("folder", None, "bytes")
    assert all(map(torch.equal, weights(again), weights(subject)))


def test_an_exported_run_of_gpt2_tokens_reads_them(english, tmp_path):
    subject = open_subject(str(english))
    export_run(subject, tmp_path / "model")
    again = open_subject(str(tmp_path / "model"))
    assert again.tokenizer.encode("hello world").tolist() == [31373, 995]
    assert all(map(torch.equal, weights(again), weights(subject)))


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    save_huggingface(byte_model(TINY), tmp_path / "model")
    with pytest.raises(RefusedError, match=r"has no vocab\.json"):
        open_subject(str(tmp_path / "model"))
    (tmp_path / "model" / "mars.json").write_text("{")
    with pytest.raises(RefusedError, match=r"mars\.json is damaged"):
        open_subject(str(tmp_path / "model"))


def test_only_a_run_is_exported(tmp_path, trained):
    export_run(open_subject(str(trained)), tmp_path / "model")
    with pytest.raises(RefusedError, match="is no run directory"):
        export_run(open_subject(str(tmp_path / "model")), tmp_path / "again")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("absent", "there is no absent; name a run directory, a Hugging Face folder, or one of"),
        (".", "is neither a run directory .* nor a Hugging Face folder"),
        ("gpt3", "there is no gpt3"),
    ],
)
def test_what_is_no_model_is_refused(source, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RefusedError, match=words):
        check_source(source, step=None)


def test_a_step_is_of_a_run(trained):
    assert check_source(str(trained), step=4) == "run"
    with pytest.raises(RefusedError, match="--step 4 is for a run, and gpt2 is none"):
        check_source("gpt2", step=4)


def test_a_run_without_a_checkpoint_is_refused(trained, tmp_path):
    for name in ("run.toml", "manifest.json"):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    with pytest.raises(RefusedError, match="has no checkpoint yet"):
        open_subject(str(tmp_path))


@pytest.mark.parametrize("name", HUB_NAMES)
def test_openai_s_weights_are_not_fetched_offline(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert check_source(name, step=None) == "hub"
    with (
        no_network() as tried,
        pytest.raises(RefusedError, match=f"{name} is neither in the hub's cache") as refusal,
    ):
        open_subject(name)
    assert tried == []
    assert "\n" not in str(refusal.value)


def test_a_local_folder_takes_precedence_over_the_hub(tmp_path, monkeypatch, english):
    monkeypatch.chdir(tmp_path)
    export_run(open_subject(str(english)), tmp_path / "gpt2")
    assert check_source("gpt2", step=None) == "folder"
    assert open_subject("gpt2").model.config.width == 32


def test_weights_in_the_cache_are_found_without_a_network(tmp_path, monkeypatch, english):
    export_run(open_subject(str(english)), tmp_path / "export")
    place = tmp_path / "cache" / "models--openai-community--gpt2"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("abc")
    (place / "snapshots").mkdir()
    (tmp_path / "export").rename(place / "snapshots" / "abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "huggingface_hub.file_download.constants.HF_HUB_CACHE", str(tmp_path / "cache")
    )
    monkeypatch.chdir(tmp_path)
    with no_network() as tried:
        subject = open_subject("gpt2")
    assert tried == []
    assert (subject.kind, subject.model.config.width) == ("hub", 32)


def test_the_hub_needs_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(RefusedError, match=r"pip install 'mars-optimizer\[eval\]'"):
        fetch("gpt2")

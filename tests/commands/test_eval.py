"""``mars eval``: the table, the file, several processes, and what is refused."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch

from distributed.launches import launch
from evaluation.trained import DATA, no_network
from mars import cli
from mars.models.gpt2 import GPT2
from training.runs import make_corpus, run, write_config

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

LOCAL = ["--task-path", str(DATA / "lm-eval")]
FOUR = [
    "--tasks",
    "hellaswag,piqa,arc_easy,sciq",
    *LOCAL,
    "--limit",
    "12",
    "--precision",
    "float32",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    run(write_config(folder, make_corpus(folder)), folder / "run")
    return folder / "run"


def measured(path: Path) -> dict:
    """Return a file of results without what differs from one evaluation to the next."""
    content = json.loads(path.read_text())
    for part in ("tasks", "validation"):
        for entry in content[part].values():
            entry.pop("measured")
            entry.pop("processes")
    return content


def test_a_run_is_evaluated_offline_and_the_file_says_so(english, capsys, monkeypatch, tmp_path):
    # On a machine that has never read the tasks, which is when datasets shows its bars.
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    with no_network() as tried:
        assert cli.main(["eval", str(english), *FOUR]) == 0
    assert tried == []
    shown, complaints = capsys.readouterr()
    assert complaints == ""
    content = json.loads((english / "evaluation.json").read_text())
    assert list(content["tasks"]) == ["hellaswag", "piqa", "arc_easy", "sciq"]
    assert content["model"]["kind"] == "run"
    for name, entry in content["tasks"].items():
        assert (entry["examples"], entry["step"], entry["precision"]) == (12, 24, "float32")
        value, error = (100 * entry[part]["acc_norm"] for part in ("metrics", "errors"))
        assert re.search(rf"{name} +acc_norm +{value:.2f} +{error:.2f} +12 ", shown)
    # Published: OpenAI, AdamW, MARS-AdamW, small.
    assert re.search(r"piqa .* 62\.51 +64\.53 +64\.80", shown)
    assert "--limit 12: a part of hellaswag, piqa, arc_easy, sciq" in shown
    assert f"Written to {english / 'evaluation.json'}." in shown


def test_an_exported_folder_is_evaluated_as_its_run(english, tmp_path, capsys):
    assert cli.main(["export", str(english), "--out", str(tmp_path / "model")]) == 0
    for source in (english, tmp_path / "model"):
        out = tmp_path / f"{source.name}.json"
        arguments = ["--tasks", "sciq", *LOCAL, "--limit", "20", "--out", str(out)]
        assert cli.main(["eval", str(source), *arguments]) == 0
    capsys.readouterr()
    ours, exported = (
        json.loads((tmp_path / f"{name}.json").read_text())["tasks"]["sciq"]
        for name in (english.name, "model")
    )
    assert ours["metrics"] == exported["metrics"]
    assert (ours["step"], exported["step"]) == (24, None)


def test_a_folder_has_no_file_unless_asked(english, tmp_path, capsys):
    assert cli.main(["export", str(english), "--out", str(tmp_path / "model")]) == 0
    before = sorted(os.listdir(tmp_path / "model"))
    arguments = ["--validation", str(english.parent / "corpus"), "--tokens", "960"]
    assert cli.main(["eval", str(tmp_path / "model"), *arguments]) == 0
    assert "Written to" not in capsys.readouterr().out
    assert sorted(os.listdir(tmp_path / "model")) == before


def test_validation_repeats_what_training_recorded(trained, capsys):
    corpus = trained.parent / "corpus"
    options = ["--tokens", "128", "--precision", "float32"]
    assert cli.main(["eval", str(trained), "--validation", str(corpus), *options]) == 0
    shown = capsys.readouterr().out
    records = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    last = [each["loss"] for each in records if each["split"] == "val"][-1]
    assert f"Validation loss {last:.3f} (perplexity " in shown
    assert f"on 128 tokens of {corpus}, 16 at a time" in shown
    (entry,) = json.loads((trained / "evaluation.json").read_text())["validation"].values()
    assert entry["loss"] == pytest.approx(last, rel=1e-6)
    assert entry["lm_eval"] is None


def test_validation_does_without_the_extra(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    arguments = ["--validation", str(trained.parent / "corpus"), "--tokens", "64"]
    out = ["--out", str(tmp_path / "out.json")]
    assert cli.main(["eval", str(trained), *arguments, *out]) == 0
    assert cli.main(["eval", str(trained), "--tasks", "piqa"]) == 2
    complaint = capsys.readouterr().err
    assert "mars eval --tasks needs lm_eval: pip install 'mars-optimizer[eval]'" in complaint


def test_two_processes_measure_what_one_does(english, tmp_path):
    corpus = str(english.parent / "corpus")
    asked = [*FOUR, "--validation", corpus, "--tokens", "1440", "--batch-size", "4"]
    jobs = [
        {
            "name": name,
            "ranks": ranks,
            "arguments": ["eval", str(english), *more, "--out", str(tmp_path / f"{name}.json")],
        }
        for name, ranks, more in (
            ("alone", 1, asked),
            ("pair", 2, asked),
            ("refused", 2, ["--tasks", "piqa", *LOCAL, "--num-fewshot", "3"]),
        )
    ]
    ended = launch(tmp_path / "launch", jobs)
    assert [each.code for each in ended["pair"]] == [0, 0], ended["pair"]
    alone, pair = (measured(tmp_path / f"{name}.json") for name in ("alone", "pair"))
    losses = [next(iter(each["validation"].values())).pop("loss") for each in (alone, pair)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    for each in (alone, pair):
        for name in ("perplexity", "bits_per_byte"):
            next(iter(each["validation"].values())).pop(name)
    assert alone == pair
    first, second = ended["pair"]
    assert "acc_norm" in first.out
    assert second.out == ""
    # One line of all processes, and nothing written.
    assert [each.code for each in ended["refused"]] == [2, 2]
    assert "has no training split" in ended["refused"][0].err
    assert ended["refused"][1].err == ""
    assert not (tmp_path / "refused.json").exists()


def test_too_little_memory_is_one_line(trained, monkeypatch, capsys):
    def hungry(*_arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

    monkeypatch.setattr(GPT2, "features", hungry)
    arguments = ["--validation", str(trained.parent / "corpus"), "--tokens", "64"]
    assert cli.main(["eval", str(trained), *arguments]) == 1
    assert capsys.readouterr().err == "mars: there is not enough memory; lower --batch-size\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing to measure: name --tasks, such as mars9, or --validation"),
        (["--tasks", ","], "names no task"),
        (["--tasks", "piqa", "--limit", "0"], "--limit must be at least 1, got 0"),
        (["--tasks", "piqa", "--task-path", "absent"], "--task-path absent is no folder"),
        (["--tasks", "piqa", "--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["--tasks", "piqa", "--tokens", "5"], "--tokens is for --validation; leave it out"),
        (["--validation", "absent"], "--validation absent does not exist; make it with mars"),
        (["--validation", "x", "--tokens", "0"], "--tokens must be at least 1, got 0"),
        (["--validation", "x", "--device", "toaster"], "--device toaster cannot be used here"),
        (["--validation", "x", "--out", "no/x.json"], "--out no/x.json: there is no folder no"),
        (["--validation", "x", "--step", "7"], "step-00000007"),
        (["--tasks", "openbookqa"], "task openbookqa cannot be loaded"),
        (["--task", "piqa"], "--task"),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(
    arguments, words, trained, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    before = sorted(os.listdir(trained))
    assert cli.main(["eval", str(trained), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mars: ")
    assert err.count("\n") == 1
    assert words in err
    assert os.listdir(tmp_path) == []
    assert sorted(os.listdir(trained)) == before


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("absent", "there is no absent; name a run directory"),
        (".", "is neither a run directory"),
        ("gpt2-xl", "gpt2-xl is neither in the hub's cache nor can it be fetched"),
    ],
)
def test_what_is_no_model_is_one_line(source, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    assert cli.main(["eval", source, "--tasks", "piqa"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err

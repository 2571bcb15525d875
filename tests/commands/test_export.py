"""``mars export``: a folder that others open, with a card that says what is in it."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch

from mars import cli
from mars.evaluation.subject import open_subject
from training.runs import make_corpus, run, write_config

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    run(write_config(folder, make_corpus(folder)), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    out = tmp_path_factory.mktemp("exported") / "model"
    assert cli.main(["export", str(trained), "--out", str(out)]) == 0
    return out


def test_transformers_computes_the_logits_of_the_run(trained, exported):
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(exported)
    ours = open_subject(str(trained)).model
    given = torch.randint(257, (3, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(theirs(given).logits, ours(given), rtol=1e-5, atol=1e-6)


def test_the_card_has_the_figures_of_the_run(trained, exported):
    card = (exported / "README.md").read_text()
    parameters = open_subject(str(trained)).model.parameter_count()
    assert f"| parameters | {parameters:,} |" in card
    assert "| steps | 12 of 12, 768 tokens |" in card
    assert "| optimizer | mars-adamw, lr 0.01, decay 0 |" in card
    records = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    last = [each["loss"] for each in records if each["split"] == "val"][-1]
    assert f"| validation loss | {last:.3f} at step 12 |" in card
    digest = json.loads((trained / "manifest.json").read_text())["data"]["digest"]
    assert digest in card
    assert "mars train training.toml" in card
    assert (exported / "training.toml").read_bytes() == (trained / "run.toml").read_bytes()


def test_a_model_of_bytes_has_no_tokenizer_but_a_rule(exported):
    names = {path.name for path in exported.iterdir()}
    assert names == {
        *("README.md", "config.json", "mars.json", "model.safetensors", "training.toml"),
    }
    card = (exported / "README.md").read_text()
    assert "the token of a byte is its value, 0 to 255, and 256 ends a document" in card
    assert json.loads((exported / "mars.json").read_text())["tokenizer"] == "bytes"


def test_the_example_of_the_card_runs(exported):
    card = (exported / "README.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    program = block.replace("PATH", str(exported)) + "print(model(tokens).logits.shape)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert "torch.Size([1, 4, 257])" in done.stdout


def test_an_earlier_step_is_exported_when_asked(trained, tmp_path, capsys):
    assert cli.main(["export", str(trained), "--out", str(tmp_path / "m"), "--step", "8"]) == 0
    assert f"Step 8 of {trained} is in {tmp_path / 'm'}" in capsys.readouterr().out
    assert json.loads((tmp_path / "m" / "mars.json").read_text())["step"] == 8
    # Validated at step 5, 10 and 12.
    assert "at step 5 |" in (tmp_path / "m" / "README.md").read_text()


def test_evaluations_of_the_step_are_in_the_card(trained, tmp_path):
    entry = {
        "metrics": {"acc": 0.25, "acc_norm": 0.5},
        "errors": {"acc_norm": 0.0123},
        "primary": "acc_norm",
        "num_fewshot": 0,
        "examples": 100,
        "step": 12,
    }
    tasks = {"piqa": entry, "old": {**entry, "step": 8}, "arc_easy": entry}
    content = {"schema": 1, "model": {}, "tasks": tasks, "validation": {}}
    path = trained / "evaluation.json"
    path.write_text(json.dumps(content))
    try:
        assert cli.main(["export", str(trained), "--out", str(tmp_path / "m")]) == 0
    finally:
        path.unlink()
    card = (tmp_path / "m" / "README.md").read_text()
    assert "| piqa | acc_norm | 50.00 ± 1.23 | 0 | 100 |" in card
    assert card.index("| arc_easy |") < card.index("| piqa |")
    assert "| old |" not in card


def test_refusals_are_one_line_and_leave_nothing(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    for arguments, words in (
        (["absent", "--out", "x"], "absent is not a run directory: it has no run.toml"),
        (["there", "--out", "x"], "there is not a run directory"),
        ([str(trained), "--out", "there"], "--out there exists; name a folder that does not"),
        ([str(trained), "--out", "x", "--step", "7"], "step-00000007"),
        ([str(trained)], "--out"),
    ):
        assert cli.main(["export", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("mars: ")
        assert err.count("\n") == 1
        assert words in err
        assert os.listdir(tmp_path) == ["there"]

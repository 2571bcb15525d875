"""evaluation.json: standard JSON, whole or not at all, about one model."""

import json
import math
from pathlib import Path

import pytest

from mars.config.errors import RefusedError
from mars.evaluation.results import Measured, TaskResult, check_place, read, write
from mars.evaluation.validation import ValidationResult

MODEL = {"source": "runs/a", "kind": "run", "parameters": 1000, "tokenizer": "bytes"}


def task(value: float = 0.5) -> TaskResult:
    return TaskResult(
        metrics={"acc": value},
        errors={"acc": 0.1},
        primary="acc",
        examples=10,
        available=20,
        num_fewshot=0,
        version="1.0",
    )


def loss(*, digest: str = "d" * 64, tokens: int = 640) -> ValidationResult:
    return ValidationResult(
        corpus="data/x",
        digest=digest,
        tokens=tokens,
        bytes=600,
        context_length=64,
        loss=2.0,
        perplexity=math.exp(2),
        bits_per_byte=3.0,
    )


def measured(**parts) -> Measured:
    return Measured(model=MODEL, common={"step": 7, "seed": 1}, **parts)


def test_entries_say_how_they_were_measured(tmp_path):
    path = tmp_path / "evaluation.json"
    write(path, measured(tasks={"piqa": task()}, validation=loss()))
    content = json.loads(path.read_text())
    assert content.keys() == {"schema", "model", "tasks", "validation"}
    assert content["schema"] == 1
    assert content["model"] == MODEL
    entry = content["tasks"]["piqa"]
    assert (entry["metrics"], entry["step"], entry["examples"]) == ({"acc": 0.5}, 7, 10)
    assert content["validation"]["dddddddddddd-640x64"]["loss"] == 2.0


def test_results_join_those_of_before(tmp_path):
    path = tmp_path / "evaluation.json"
    write(path, measured(tasks={"piqa": task(0.5), "sciq": task(0.1)}))
    write(path, measured(tasks={"piqa": task(0.75)}))
    write(path, measured(validation=loss()))
    write(path, measured(validation=loss(tokens=1280)))
    found = read(path)
    assert found["tasks"]["piqa"]["metrics"]["acc"] == 0.75
    assert found["tasks"]["sciq"]["metrics"]["acc"] == 0.1
    assert len(found["validation"]) == 2


def test_what_is_not_a_number_is_null(tmp_path):
    path = tmp_path / "evaluation.json"
    write(path, measured(tasks={"piqa": task(math.nan)}))
    assert json.loads(path.read_text(), parse_constant=pytest.fail)["tasks"]["piqa"]["metrics"] == {
        "acc": None
    }


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "evaluation.json"
    write(path, measured(tasks={"piqa": task()}))
    before = path.read_bytes()

    def disk_full(*_arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "replace", disk_full)
    with pytest.raises(OSError, match="No space"):
        write(path, measured(tasks={"piqa": task(0.9)}))
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["evaluation.json"]


@pytest.mark.parametrize("content", ["", "[]", '{"schema": 2, "tasks": {}, "validation": {}}'])
def test_a_file_that_is_none_is_left_alone(content, tmp_path):
    path = tmp_path / "evaluation.json"
    path.write_text(content)
    with pytest.raises(RefusedError, match="no evaluation of this version; move it"):
        check_place(path, MODEL)
    with pytest.raises(RefusedError, match="no evaluation of this version; move it"):
        write(path, measured())
    assert path.read_text() == content


def test_a_file_is_about_one_model(tmp_path):
    path = tmp_path / "evaluation.json"
    write(path, measured())
    check_place(path, {**MODEL, "source": "moved/a"})
    with pytest.raises(RefusedError, match=r"is about runs/a, not gpt2; choose --out"):
        check_place(path, {**MODEL, "kind": "hub", "source": "gpt2"})
    with pytest.raises(RefusedError, match="is about runs/a"):
        check_place(path, {**MODEL, "parameters": 1001})


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(RefusedError, match="there is no folder"):
        check_place(tmp_path / "absent" / "out.json", MODEL)
    with pytest.raises(RefusedError, match="is a folder"):
        check_place(tmp_path, MODEL)
    assert read(tmp_path / "nothing.json") is None

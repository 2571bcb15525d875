"""From a run directory to its diagnosis: the contract, and that nothing but the file changes."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mars.bench import memory as machine
from mars.config.errors import RefusedError
from mars.config.load import load_file
from mars.config.schema import Optimizer
from mars.diagnosis import memory
from mars.diagnosis.estimators import correction_of
from mars.diagnosis.gradients import Gradients
from mars.diagnosis.memory import check_memory, needed_copies
from mars.diagnosis.plan import Asked, Plan
from mars.diagnosis.results import NAME, Diagnosis, write
from mars.diagnosis.run import Work, diagnose
from mars.training.run_directory import RunDirectory
from training.runs import make_corpus, run, write_config

ASKED = Asked(streams=3, history=3, large_batch=16)
KINDS = ["all", "attention", "embedding", "mlp", "vector"]
ESTIMATORS = ["gradient", "ema", "approx", "exact", "approx_clipped", "exact_clipped"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of 12 steps with dropout and without checkpoints: it is replayed from its start."""
    folder = tmp_path_factory.mktemp("trained")
    run(write_config(folder, make_corpus(folder)), folder / "run")
    shutil.rmtree(folder / "run" / "checkpoints")
    return folder / "run"


def diagnosed(out: Path, asked: Asked = ASKED, observe=lambda _: None) -> Diagnosis:
    return diagnose(RunDirectory(out), asked, observe=observe, tell=lambda _: None)


@pytest.fixture(scope="module")
def found(trained):
    return diagnosed(trained, replace(ASKED, at="6,12"))


def test_the_json_is_what_the_report_expects(found):
    data = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert data["format"] == 1
    assert (data["beta1"], data["gamma"], data["correction"]) == (0.95, 0.025, "run")
    assert (data["clip"], data["max_norm"]) == ("tensor", 1)
    assert (data["streams"], data["history"]) == (3, 3)
    assert (data["micro_batch_size"], data["large_batch"]) == (4, 16)
    assert list(data["parameters"]) == KINDS
    assert data["parameters"]["all"] == sum(data["parameters"][kind] for kind in KINDS[1:])
    assert [step["step"] for step in data["steps"]] == [6, 12]
    for step in data["steps"]:
        assert list(step["kinds"]) == list(step["squared_norm"]) == KINDS
        for estimators in step["kinds"].values():
            assert list(estimators) == ESTIMATORS
            for each in estimators.values():
                assert each["variance"] > 0
                assert each["variance_low"] < each["variance"] < each["variance_high"]
                assert math.isfinite(each["bias"])
            assert estimators["ema"]["ratio_to_ema"] == 1
        assert all(value > 0 for value in step["squared_norm"].values())


def test_the_kinds_add_up_to_all(found):
    for step in found.steps:
        for estimator in ESTIMATORS:
            total, *parts = (
                step.kinds[kind][estimator].variance * step.squared_norm[kind] for kind in KINDS
            )
            assert sum(parts) == pytest.approx(total, rel=1e-9)
        assert sum(step.squared_norm[kind] for kind in KINDS[1:]) == pytest.approx(
            step.squared_norm["all"], rel=1e-9
        )


def test_a_diagnosis_is_the_same_each_time(trained, found):
    again = diagnosed(trained, replace(ASKED, at="6,12"))
    assert again == found
    assert json.dumps(again.as_json()) == json.dumps(found.as_json())


def test_looking_at_a_step_does_not_change_the_run_after_it(trained, found):
    # The run has dropout, so random numbers that a look had used up would lead elsewhere.
    assert diagnosed(trained, replace(ASKED, at="12")).steps == found.steps[1:]


def test_streams_are_independent_of_each_other_and_of_the_steps(found):
    variances = [step.kinds["all"]["gradient"].variance for step in found.steps]
    assert len(set(variances)) == 2
    assert all(step.kinds["all"]["gradient"].variance_low is not None for step in found.steps)


def test_gradients_are_those_of_training_with_dropout_in_the_runs_precision(tmp_path, monkeypatch):
    seen = set()
    whole = Gradients.at

    def watched(self, *args, **kwargs):
        with self.context():
            kind = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        seen.add((self.model.training, self.part_size, kind))
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(Gradients, "at", watched)
    corpus = make_corpus(tmp_path)
    for precision, kind in (("bfloat16", torch.bfloat16), ("float16", None), ("float32", None)):
        out = tmp_path / precision
        config = write_config(tmp_path, corpus, steps=4)
        run(config, out, f"training.precision={precision}")
        seen.clear()
        diagnosed(out, replace(ASKED, at="2"))
        assert seen == {(True, 2, kind)}


def test_more_history_leaves_less_of_the_start(trained):
    weights = [
        diagnosed(trained, replace(ASKED, at="12", history=history)).steps[0].start_weight
        for history in (1, 12)
    ]
    assert weights == pytest.approx([0.95, 0.95**12])


def test_the_work_announced_is_the_work_done(trained):
    seen: list[tuple[int, int]] = []

    def observe(work: Work) -> None:
        seen.append((work.done, work.total))

    diagnosed(trained, replace(ASKED, at="6,12"), observe)
    assert seen[-1][0] == seen[-1][1]
    assert {total for _, total in seen} == {12 * 4 + 2 * (2 * 3 * 3 * 4 + 2 * 16)}


def test_larger_batches_have_less_variance(trained):
    small, large = (
        diagnosed(trained, replace(ASKED, at="6", streams=6, micro_batch_size=size, large_batch=64))
        .steps[0]
        .kinds["all"]["gradient"]
        for size in (1, 16)
    )
    # 16 times less on average; six streams of few directions know it to a factor of two or so.
    assert 4 < small.variance / large.variance < 64


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_without_a_correction_is_measured_with_mars_defaults(optimizer, tmp_path):
    out = tmp_path / "run"
    run(write_config(tmp_path, make_corpus(tmp_path), optimizer=optimizer, steps=4), out)
    made = diagnosed(out, replace(ASKED, at="4"))
    assert not made.is_own_correction
    assert (made.as_json()["beta1"], made.as_json()["gamma"]) == (0.95, 0.025)
    assert made.as_json()["correction"] == "defaults"


@pytest.mark.parametrize(
    "setting",
    ["training.precision=bfloat16", "training.precision=float16", "optimizer.exact=true"],
)
def test_every_precision_and_mode_can_be_measured(setting, tmp_path):
    out = tmp_path / "run"
    run(write_config(tmp_path, make_corpus(tmp_path), steps=4), out, setting)
    made = diagnosed(out, replace(ASKED, at="4"))
    assert made.is_own_correction
    assert made.steps[0].kinds["all"]["exact"].variance > 0


def test_the_file_is_replaced_whole_or_not_at_all(found, tmp_path, monkeypatch):
    (tmp_path / NAME).write_text("before")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            write(found, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert (tmp_path / NAME).read_text() == "before"
    assert write(found, tmp_path) == tmp_path / NAME
    assert json.loads((tmp_path / NAME).read_text()) == found.as_json()
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_what_is_not_finite_becomes_null(found):
    step = found.steps[0]
    broken = replace(step.kinds["all"]["ema"], ratio_to_ema=math.nan, variance_high=math.inf)
    made = replace(found, steps=(replace(step, kinds={"all": {"ema": broken}}),))
    written = made.as_json()["steps"][0]["kinds"]["all"]["ema"]
    assert written["ratio_to_ema"] is None
    assert written["variance_high"] is None
    assert written["variance"] == broken.variance


def test_a_history_that_does_not_fit_is_refused_with_one_that_does(trained, monkeypatch):
    config = load_file(trained / "run.toml")
    correction = correction_of(config.optimizer)
    plan = Plan(steps=(12,), streams=2, history=12, micro_batch_size=4, large_batch=8)
    size = 4 * 7488
    copies = needed_copies(correction, window=12, is_host=True)
    monkeypatch.setattr(memory, "available_bytes", lambda: 1.25 * size * copies + 1)
    check_memory(config, plan, correction)
    monkeypatch.setattr(memory, "available_bytes", lambda: 1.25 * size * (copies - 5) + 1)
    with pytest.raises(RefusedError, match=r"--history 12 takes about .*; --history 7 fits"):
        check_memory(config, plan, correction)
    monkeypatch.setattr(memory, "available_bytes", lambda: size)
    with pytest.raises(RefusedError, match="not even --history 1 fits here"):
        check_memory(config, plan, correction)
    assert machine.available_bytes() > size * copies


def test_the_memory_is_that_of_the_path_and_a_few_copies():
    correction = correction_of(Optimizer())
    longer = needed_copies(correction, window=41, is_host=True)
    assert longer - needed_copies(correction, window=40, is_host=True) == 1
    # On a GPU the host holds the path alone.
    assert needed_copies(correction, window=40, is_host=False) == 41
    assert longer <= 41 + 30

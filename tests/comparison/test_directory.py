"""The directory of a comparison: what is refused, what counts as done, what is left behind."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from comparison.comparisons import make_plan
from mars.comparison.directory import check_place, data_digest, last_validation, taken
from mars.comparison.plan import confirming_trials, search_trials, write_plan
from mars.config.errors import RefusedError
from mars.config.load import assign, dumps
from mars.metrics.record import Record


@pytest.fixture
def plan(tmp_path):
    return make_plan(tmp_path, tmp_path / "corpus")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "deep" / "out"


def put(out: Path, trial, config) -> None:
    (out / trial.path).mkdir(parents=True)
    (out / trial.path / "run.toml").write_text(dumps(config))


def test_a_place_that_is_not_there_or_empty_is_free(plan, out):
    check_place(out, plan)
    assert not out.exists()
    out.mkdir(parents=True)
    check_place(out, plan)


def test_what_a_comparison_leaves_that_is_killed_at_once_is_free(plan, out):
    out.mkdir(parents=True)
    (out / ".lock").touch()
    (out / ".comparison.json.123.writing").write_text("{")
    check_place(out, plan)


@pytest.mark.parametrize("name", ["thesis.tex", ".git", "runs", "results.json"])
def test_a_place_that_holds_something_else_is_refused(name, plan, out):
    out.mkdir(parents=True)
    (out / name).write_text("years of work")
    with pytest.raises(RefusedError, match="exists and holds no comparison; choose another place"):
        check_place(out, plan)
    with pytest.raises(RefusedError, match="exists and holds no comparison"):
        check_place(out / name, plan)


def test_trials_of_another_config_are_refused_with_what_differs(plan, out):
    write_plan(plan, search_trials(plan), out)
    trial = search_trials(plan)[3]
    put(out, trial, assign(trial.config, {"training.steps": 50, "optimizer.eps": 1e-6}))
    with pytest.raises(RefusedError) as refusal:
        check_place(out, plan)
    assert str(refusal.value) == (
        f"{out} holds {trial.path} with another config: "
        f"optimizer.eps (was 1e-06, is {trial.config.optimizer.eps}), "
        "training.steps (was 50, is 40); choose another --out"
    )


def test_trials_that_only_the_second_phase_would_meet_are_looked_at_too(plan, out):
    write_plan(plan, search_trials(plan), out)
    trial = confirming_trials(plan, {"adamw": 1000.0})[0]
    put(out, trial, assign(trial.config, {"training.batch_size": 8}))
    with pytest.raises(RefusedError, match=r"training.batch_size \(was 8, is 4\)"):
        check_place(out, plan)


def test_what_does_not_change_the_computation_may_differ(plan, out):
    write_plan(plan, search_trials(plan), out)
    trial = search_trials(plan)[0]
    free = {"name": "other", "description": "other", "data.path": "moved", "data.workers": 3}
    put(out, trial, assign(trial.config, {**free, "checkpoint.every": 7, "metrics.log_every": 1}))
    check_place(out, plan)


def test_a_damaged_config_is_named(plan, out):
    write_plan(plan, search_trials(plan), out)
    trial = search_trials(plan)[0]
    put(out, trial, trial.config)
    (out / trial.path / "run.toml").write_text("steps = ")
    with pytest.raises(RefusedError, match=r"run\.toml"):
        check_place(out, plan)


def test_a_second_comparison_in_one_place_is_refused(out):
    program = """
import sys
from pathlib import Path
from mars.comparison.directory import taken
from mars.config.errors import RefusedError
try:
    with taken(Path(sys.argv[1])):
        print("taken")
except RefusedError as refusal:
    print(refusal)
"""
    command = [sys.executable, "-c", program, str(out)]
    with taken(out):
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert said.startswith(f"another process is comparing in {out}; ")
        assert out.exists()
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "taken\n"


def fail(path: Path, error: BaseException) -> None:
    """Leave a file, and fail."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    raise error


def test_a_refusal_leaves_nothing_that_was_not_there(out, tmp_path):
    before = sorted(tmp_path.iterdir())
    with pytest.raises(RefusedError, match="no data"), taken(out):
        fail(out / "workers.log", RefusedError("no data"))
    assert sorted(tmp_path.iterdir()) == before
    # Not even an empty folder that was there is touched.
    out.mkdir(parents=True)
    with pytest.raises(RefusedError, match="no data"), taken(out):
        raise RefusedError("no data")
    assert out.exists()


def test_a_refusal_keeps_runs_that_were_made(plan, out):
    trial = search_trials(plan)[0]
    with pytest.raises(RefusedError, match="other data"), taken(out):
        fail(out / trial.path / "run.toml", RefusedError("other data"))
    assert (out / trial.path / "run.toml").exists()


def test_other_ends_keep_everything(out):
    with pytest.raises(KeyboardInterrupt), taken(out):
        fail(out / "comparison.json", KeyboardInterrupt())
    assert (out / "comparison.json").exists()


def test_a_place_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RefusedError, match="cannot be made"), taken(tmp_path / "file" / "out"):
        pass


def test_half_made_run_directories_are_removed(plan, out):
    trial = search_trials(plan)[0]
    put(out, trial, trial.config)
    left = (out / trial.path).parent / ".seed-0.4711.new"
    left.mkdir()
    with taken(out):
        assert not left.exists()
    assert (out / trial.path / "run.toml").exists()


def line(**fields) -> bytes:
    default = {"step": 40, "split": "val", "loss": 1.5, "lr": 0.1, "seconds": 1.0, "count": 40}
    return Record(**{**default, **fields}).as_json().encode() + b"\n"


@pytest.mark.parametrize(
    ("content", "step"),
    [
        (line(), 40),
        (line(step=20) + line(split="train") + line(), 40),
        (line(step=25, extra={"diverged": 1.0}), 25),
        (line(loss=float("nan"), step=25, extra={"diverged": 1.0}), 25),
        (line() + b'{"step": 4', 40),
        (b"", None),
        (b"\n", None),
        (line()[:-1], None),
        (line()[:-9], None),
        (line(step=20), None),
        (line(split="train"), None),
        (line() + line(split="train"), None),
        (line() + b"damaged\n", None),
    ],
)
def test_a_trial_is_finished_by_its_last_whole_record(content, step, plan, out):
    trial = search_trials(plan)[0]
    (out / trial.path).mkdir(parents=True)
    (out / trial.path / "metrics.jsonl").write_bytes(content)
    found = last_validation(out, trial)
    assert (found.step if found else None) == step


def test_a_trial_that_is_not_there_is_not_finished(plan, out):
    assert last_validation(out, search_trials(plan)[0]) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"data": 3}', '{"data": {}}'])
def test_a_manifest_without_a_digest_says_nothing(text, plan, out):
    trial = search_trials(plan)[0]
    assert data_digest(out, trial) is None
    (out / trial.path).mkdir(parents=True)
    (out / trial.path / "manifest.json").write_text(text)
    assert data_digest(out, trial) is None


def test_the_digest_is_that_of_the_manifest(plan, out):
    trial = replace(search_trials(plan)[0], path="runs/x")
    (out / "runs" / "x").mkdir(parents=True)
    (out / "runs" / "x" / "manifest.json").write_text('{"data": {"digest": "abc"}}')
    assert data_digest(out, trial) == "abc"


def test_a_plan_may_add_to_a_comparison_and_not_drop_from_it(plan, out):
    write_plan(plan, search_trials(plan), out)
    more = replace(plan, seeds=(*plan.seeds, max(plan.seeds) + 1))
    check_place(out, more)
    fewer = replace(plan, arms=plan.arms[1:], baseline=plan.arms[1].label)
    with pytest.raises(
        RefusedError, match=r"holds another comparison, with \d+ runs that this one"
    ):
        check_place(out, fewer)
    other = replace(plan, seeds=tuple(seed + 100 for seed in plan.seeds))
    with pytest.raises(RefusedError, match="choose another --out"):
        check_place(out, other)

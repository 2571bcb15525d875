"""Run directories as they are read: exactly what training wrote, and nothing damaged."""

import json
import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mars.config.errors import RefusedError
from mars.metrics.jsonl import JsonlSink, read_records
from mars.metrics.record import Record
from mars.report.measured import read_measured
from mars.report.trials import read_trial
from report.synthetic import MANIFEST, Shape, make_config, make_trial, write_run

CONFIG = make_config("mars-adamw gamma=0.05", lr=0.006, seed=3)
COLUMNS = ("steps", "counts", "seconds", "losses")


def lines(run):
    return (run / "metrics.jsonl").read_text().splitlines()


def rewrite(run, changed):
    (run / "metrics.jsonl").write_text("".join(f"{line}\n" for line in changed))


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", CONFIG, 1.25)


def test_a_run_is_read_as_it_was_written(run):
    trial, made = read_trial(run), make_trial(CONFIG, 1.25)
    assert (trial.path, trial.config, trial.unit) == (run, CONFIG, "tokens")
    assert (trial.lr, trial.seed) == (0.006, 3)
    assert trial.manifest == {**MANIFEST, "seed": 3}
    for name in COLUMNS:
        ours, theirs = getattr(trial.validation, name), getattr(made.validation, name)
        assert ours.tolist() == theirs.tolist()
    assert len(trial.train.steps) == 50
    assert trial.train.counts.tolist() == made.train.counts.tolist()
    assert (trial.is_complete, trial.is_diverged, trial.final_loss) == (True, False, 1.25)
    assert (trial.optimizer_bytes, trial.peak_memory_bytes) == (6.6e6, 4e8)
    assert trial.diagnosis is None


def test_measures_keep_the_steps_they_were_taken_at(run):
    changed = lines(run)
    first = json.loads(changed[0])
    first.pop("clip_rate")
    rewrite(run, [json.dumps(first), *changed[1:]])
    measures = read_trial(run).measures
    assert len(measures["grad_norm"][0]) == 50
    steps, values = measures["clip_rate"]
    assert steps[0] == 20
    assert len(steps) == len(values) == 49
    assert "optimizer_bytes" not in measures


def test_the_time_of_a_step_is_the_median(tmp_path):
    run = write_run(tmp_path / "run", CONFIG, 1.25, shape=Shape(step_seconds=0.25))
    changed = [json.loads(line) for line in lines(run)]
    changed[0]["tokens_per_second"] = 1.0  # a first step that took ages
    changed[2]["tokens_per_second"] = None
    rewrite(run, map(json.dumps, changed))
    assert read_trial(run).step_seconds == pytest.approx(0.25)


def test_the_time_of_a_step_that_was_not_measured_is_unknown(run):
    changed = [json.loads(line) for line in lines(run)]
    for fields in changed:
        fields.pop("tokens_per_second", None)
    rewrite(run, map(json.dumps, changed))
    assert read_trial(run).step_seconds is None


def test_every_field_is_what_read_records_reads(run):
    records = read_records(run / "metrics.jsonl")
    splits = read_measured(run / "metrics.jsonl").splits
    for split, columns in splits.items():
        own = [record for record in records if record.split == split]
        assert columns.steps.tolist() == [record.step for record in own]
        assert columns.counts.tolist() == [record.count for record in own]
        assert columns.seconds.tolist() == [record.seconds for record in own]
        assert columns.losses.tolist() == [record.loss for record in own]
        for name, (_, values) in columns.extra.items():
            expected = [record.extra[name] for record in own if name in record.extra]
            assert values.tolist() == expected


@pytest.mark.parametrize(
    ("final", "is_complete", "is_diverged"),
    [(1.5, True, False), (math.inf, True, True), (math.nan, False, False)],
)
def test_how_a_run_ended_is_known(tmp_path, final, is_complete, is_diverged):
    trial = read_trial(write_run(tmp_path / "run", CONFIG, final))
    assert (trial.is_complete, trial.is_diverged) == (is_complete, is_diverged)
    assert trial.final_loss == pytest.approx(final, nan_ok=True)


def test_a_run_that_ends_without_a_number_diverged_even_if_nobody_stopped_it(run):
    last = json.loads(lines(run)[-1])
    rewrite(run, [*lines(run)[:-1], json.dumps({**last, "loss": None})])
    trial = read_trial(run)
    assert (trial.is_complete, trial.is_diverged, trial.final_loss) == (True, True, math.inf)
    assert np.isnan(trial.validation.losses[-1])
    assert np.isfinite(trial.validation.losses[:-1]).all()


def test_a_run_without_its_last_validation_is_not_complete(run):
    rewrite(run, lines(run)[:-1])
    trial = read_trial(run)
    assert not trial.is_complete
    assert math.isnan(trial.final_loss)


def test_a_run_that_has_just_begun_has_empty_curves(run):
    (run / "metrics.jsonl").unlink()
    trial = read_trial(run)
    assert len(trial.train.steps) == len(trial.validation.losses) == 0
    assert (trial.is_complete, trial.step_seconds, trial.optimizer_bytes) == (False, None, None)


def test_the_unfinished_last_line_of_a_killed_process_is_left_out(run):
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 510, "tok')
    assert read_trial(run).final_loss == 1.25
    assert read_trial(run).is_complete


def test_a_last_line_that_lacks_its_newline_alone_counts(run):
    content = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(content.rstrip("\n"))
    assert read_trial(run).is_complete


def test_samples_are_counted_as_samples(tmp_path):
    trial = read_trial(write_run(tmp_path / "run", CONFIG, 1.25, unit="samples"))
    assert trial.unit == "samples"
    assert trial.step_seconds == pytest.approx(0.04)


def test_a_diagnosis_is_read_where_there_is_one(run):
    (run / "diagnosis.json").write_text('{"format": 1, "steps": []}')
    assert read_trial(run).diagnosis == {"format": 1, "steps": []}


GOOD = '{"step": 20, "tokens": 40960, "seconds": 1.0, "split": "train", "loss": 2.0, "lr": 0.1}'

DAMAGED = [
    GOOD[:-10],
    "",
    "null",
    "[1, 2]",
    "\x00\x00",
    f"{GOOD},{GOOD}",
    GOOD.replace("2.0", "NaN"),
    GOOD.replace("2.0", '"2.0"'),
    GOOD.replace("2.0", "true"),
    GOOD.replace("2.0", "[2.0]"),
    GOOD.replace("20,", "20.5,", 1),
    GOOD.replace("20,", "-20,", 1),
    GOOD.replace("20,", "null,", 1),
    GOOD.replace("40960", "false"),
    GOOD.replace("40960", "-40960"),
    GOOD.replace('"train"', '"test"'),
    GOOD.replace('"train"', "3"),
    GOOD.replace('"loss": 2.0, ', ""),
    GOOD.replace('"lr": 0.1', '"lr": 0.1, "grad_norm": "high"'),
    GOOD.replace('"tokens": 40960, ', ""),
    GOOD.replace('"tokens"', '"samples": 3, "tokens"'),
]


@pytest.mark.parametrize("line", DAMAGED)
def test_a_damaged_line_is_named_by_file_and_number(run, line):
    changed = lines(run)
    changed[2] = line
    rewrite(run, changed)
    with pytest.raises(RefusedError) as refusal:
        read_trial(run)
    assert str(refusal.value).startswith(f"{run / 'metrics.jsonl'}, line 3: ")
    assert "\n" not in str(refusal.value)


def test_an_empty_first_line_is_damage_too(run):
    rewrite(run, [""])
    with pytest.raises(RefusedError, match="line 1: "):
        read_trial(run)


def test_two_broken_lines_do_not_pass_for_whole_ones(run):
    changed = lines(run)
    half = GOOD.index('"seconds"')
    changed[1:3] = [GOOD[:half].rstrip(", "), GOOD[half:]]
    rewrite(run, changed)
    with pytest.raises(RefusedError, match="line 2: "):
        read_trial(run)


def test_records_that_count_different_things_are_refused(run):
    rewrite(run, [GOOD, GOOD.replace("tokens", "samples")])
    with pytest.raises(RefusedError, match="some records count tokens and some samples"):
        read_trial(run)


def test_steps_that_go_backwards_are_refused(run):
    rewrite(run, [*lines(run), GOOD])
    with pytest.raises(RefusedError, match="line 61: step 20 comes after step 500"):
        read_trial(run)


def test_a_number_beyond_all_measure_is_refused(run):
    rewrite(run, [GOOD.replace("20,", f"{10**400},", 1)])
    with pytest.raises(RefusedError, match="too large"):
        read_trial(run)


def test_a_loss_beyond_all_measure_is_no_number(run):
    rewrite(run, [GOOD.replace("2.0", "1e999"), GOOD])
    losses = read_trial(run).train.losses
    assert np.isnan(losses[0])
    assert losses[1] == 2.0


def test_lines_of_another_system_are_read_the_slow_way(run):
    content = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(content.replace(b"\n", b"\r\n"))
    assert read_trial(run).final_loss == 1.25
    assert len(read_trial(run).train.steps) == 50


@pytest.mark.parametrize("name", ["manifest.json", "diagnosis.json"])
@pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000])
def test_a_damaged_object_is_named(run, name, content):
    (run / name).write_text(content)
    with pytest.raises(RefusedError, match=name) as refusal:
        read_trial(run)
    assert "\n" not in str(refusal.value)


def test_a_missing_manifest_is_named(run):
    (run / "manifest.json").unlink()
    with pytest.raises(RefusedError, match=r"manifest\.json cannot be read"):
        read_trial(run)


@pytest.mark.parametrize("text", ["seed = ", "sed = 3", "seed = 1.5", "[model]\nlayer = 3"])
def test_a_damaged_config_is_named(run, text):
    (run / "run.toml").write_text(text)
    with pytest.raises(RefusedError) as refusal:
        read_trial(run)
    assert str(refusal.value).count(str(run / "run.toml")) == 1


FLOATS = st.floats(allow_nan=True, allow_infinity=True, width=64)
RECORDS = st.builds(
    Record,
    step=st.integers(min_value=0, max_value=2**53),
    split=st.sampled_from(["train", "val"]),
    loss=FLOATS,
    lr=FLOATS,
    seconds=FLOATS,
    count=st.integers(min_value=0, max_value=2**53),
    extra=st.dictionaries(st.sampled_from(["grad_norm", "clip_rate", "übung"]), FLOATS),
)


@given(st.lists(RECORDS, max_size=8))
def test_whatever_a_sink_writes_is_read_as_read_records_reads_it(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    sink = JsonlSink(path)
    for record in sorted(records, key=lambda record: record.step):
        sink.write(record)
    sink.close()
    expected, found = read_records(path), read_measured(path)
    for split in ("train", "val"):
        own = [record for record in expected if record.split == split]
        losses = [record.loss for record in own]
        assert found.splits[split].losses.tolist() == pytest.approx(losses, nan_ok=True, rel=0)
        assert found.splits[split].steps.tolist() == [float(record.step) for record in own]


def test_a_hundred_thousand_records_are_read_fast(tmp_path):
    shape = Shape(records=100_000, validations=100)
    config = make_config("mars-adamw", lr=0.006, seed=0, steps=100_000)
    run = write_run(tmp_path / "run", config, 1.25, shape=shape)
    began = time.process_time()
    trial = read_trial(run)
    taken = time.process_time() - began
    assert len(trial.train.steps) == 100_000
    # A million records in 8 s; `read_records` takes four times as long as this.
    assert taken < 1.5

"""What a diagnosis says: shares of the average's variance, and damage that is named."""

import copy
import json

import pytest

from mars.config.errors import RefusedError
from mars.report.analysis import analyze
from mars.report.results import collect
from mars.report.variance import diagnoses, ratios, sentences
from report.example import DIAGNOSED, DIAGNOSIS, in_memory, read_example, write_example


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_example(tmp_path_factory.mktemp("variance") / "comparison")


@pytest.fixture
def found(folder):
    (found,) = diagnoses(read_example(folder))
    return found


def test_a_diagnosis_is_read_as_it_was_written(found, folder):
    assert (found.label, found.trial.path) == ("mars-adamw", folder / DIAGNOSED)
    assert found.steps == (50, 250, 500)
    assert found.kinds == ("all", "attention", "mlp", "embedding", "vector")
    assert found.estimators == ("gradient", "ema", "approx", "exact")
    moments = found.moments[250, "embedding", "approx"]
    assert moments.variance == pytest.approx(2 * 0.19 * 5)
    assert (moments.low, moments.high) == pytest.approx((0.9 * 1.9, 1.2 * 1.9))
    assert moments.bias == pytest.approx(0)
    assert found.settings["streams"] == 16
    assert "format" not in found.settings


def test_ratios_are_to_the_average_of_the_same_step_and_kind(found):
    assert ratios(found, "exact") == [(step, pytest.approx(0.4)) for step in (50, 250, 500)]
    assert ratios(found, "approx", kind="vector")[-1] == (500, pytest.approx(0.95))
    assert ratios(found, "nothing") == []


def test_the_sentences_tell_what_each_mode_removes(found):
    approx, exact = sentences(found)
    said = "{} has {} of the variance of the plain average ({} less; geometric mean of 3 steps"
    assert approx.startswith(said.format("MARS, approx", "95.0%", "5.0%"))
    assert exact.startswith(said.format("MARS, exact", "40.0%", "60.0%"))


def changed(folder, change, path):
    """Write a copy of the comparison's diagnosis with something changed."""
    diagnosis = copy.deepcopy(DIAGNOSIS)
    change(diagnosis)
    (folder / path / "diagnosis.json").write_text(json.dumps(diagnosis))


def test_more_variance_is_called_more(tmp_path):
    folder = write_example(tmp_path / "comparison")

    def larger(diagnosis):
        for at in diagnosis["steps"]:
            at["kinds"]["all"]["approx"]["variance"] *= 2

    changed(folder, larger, DIAGNOSED)
    (found,) = diagnoses(read_example(folder))
    assert "190.0% of the variance of the plain average (90.0% more" in sentences(found)[0]


def test_the_best_rate_is_preferred(tmp_path):
    folder = write_example(tmp_path / "comparison")
    changed(folder, lambda _: None, "runs/mars-adamw/lr-0.012/seed-0")
    changed(folder, lambda _: None, "runs/mars-adamw/lr-0.006/seed-1")
    (found,) = diagnoses(read_example(folder))
    assert (found.trial.lr, found.trial.seed) == (0.006, 0)


def test_without_a_diagnosis_there_is_none():
    assert diagnoses(in_memory()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("steps"),
        lambda d: d.update(steps=5),
        lambda d: d["steps"][0].pop("kinds"),
        lambda d: d["steps"][0].update(kinds=[1]),
        lambda d: d["steps"][0]["kinds"].update(all=3),
        lambda d: d["steps"][0]["kinds"]["all"].update(ema="much"),
        lambda d: d["steps"][0]["kinds"]["all"]["ema"].update(variance="much"),
        lambda d: d["steps"][0].update(step=None),
    ],
)
def test_a_damaged_diagnosis_is_named(change, tmp_path):
    folder = write_example(tmp_path / "comparison")
    changed(folder, change, DIAGNOSED)
    with pytest.raises(RefusedError, match=r"diagnosis\.json is damaged: .*mars diagnose"):
        diagnoses(analyze(collect([folder])))


def test_a_variance_that_is_not_known_is_left_out_of_ratios(tmp_path):
    folder = write_example(tmp_path / "comparison")

    def without(diagnosis):
        diagnosis["steps"][0]["kinds"]["all"]["exact"]["variance"] = None

    changed(folder, without, DIAGNOSED)
    (found,) = diagnoses(read_example(folder))
    assert [step for step, _ in ratios(found, "exact")] == [250, 500]

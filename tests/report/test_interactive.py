"""The data of the interactive charts: few, finite, and equal to what was measured."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from mars.report.interactive import (
    bars_data,
    curves_data,
    measure_data,
    sensitivity_data,
    variance_data,
)
from mars.report.variance import diagnoses
from report.example import FINALS, in_memory, read_example, write_example
from report.synthetic import Shape


@pytest.fixture(scope="module")
def analysis(tmp_path_factory):
    return read_example(write_example(tmp_path_factory.mktemp("data") / "comparison"))


def only_view(data):
    assert data["choices"] == []
    (view,) = data["views"].values()
    return view


def test_everything_is_standard_json(analysis):
    for data in (
        curves_data(analysis),
        sensitivity_data(analysis),
        measure_data(analysis, name="clip_rate", title="clip rate"),
        variance_data(diagnoses(analysis)[0]),
    ):
        assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_curves_have_the_mean_of_each_arm_and_every_run(analysis):
    data = curves_data(analysis)
    assert data["unit"] == "tokens"
    assert [arm["label"] for arm in data["arms"]] == list(FINALS)
    assert [len(arm["runs"]) for arm in data["arms"]] == [6] * 4
    mars = data["arms"][2]
    assert mars["validation"]["losses"][-1] == pytest.approx(1.52)
    assert (mars["validation"]["low"][-1], mars["validation"]["high"][-1]) == (1.505, 1.535)
    assert "low" not in mars["training"]
    run = mars["runs"][1]
    assert run["label"] == "lr 0.016, seed 1"
    assert run["validation"]["losses"][-1] == 1.535
    assert data["arms"][3]["runs"][3]["label"] == "lr 0.0012, seed 0, diverged"


def test_counts_of_even_steps_are_one_number(analysis):
    trial = analysis.results.trials[0]
    run = curves_data(analysis)["arms"][0]["runs"][0]["validation"]
    assert "counts" not in run
    found = [step * run["per_step"] for step in run["steps"]]
    assert found == trial.validation.counts.tolist()


def test_counts_of_uneven_steps_are_kept():
    analysis = in_memory({"adamw": {0.002: {0: 1.5}}}, baseline=None)
    arm = analysis.results.arms[0]
    (trial,) = arm.trials
    uneven = replace_counts(trial.validation, trial.validation.counts + np.arange(10) ** 2)
    changed = replace(trial, validation=uneven)
    rate = replace(arm.rates[0], trials=(changed,))
    changed_arm = replace(arm, rates=(rate,))
    results = replace(analysis.results, arms=(changed_arm,))
    summary = replace(analysis.arms[0], arm=changed_arm)
    data = curves_data(replace(analysis, results=results, arms=(summary,)))
    assert data["arms"][0]["runs"][0]["validation"]["counts"] == uneven.counts.tolist()


def replace_counts(curve, counts):
    return type(curve)(curve.steps, counts, curve.seconds, curve.losses)


def test_long_runs_are_cut_to_size_and_keep_their_extremes():
    shapes = {"adamw": Shape(records=5000, validations=3000)}
    analysis = in_memory({"adamw": {0.002: {0: 1.5}}}, baseline=None, shapes=shapes)
    (arm,) = curves_data(analysis)["arms"]
    for split, points in (("validation", 400), ("training", 400)):
        assert len(arm[split]["losses"]) == points
        losses = arm["runs"][0][split]["losses"]
        assert 800 < len(losses) <= 1000
        whole = getattr(analysis.results.trials[0], {"training": "train"}.get(split, split)).losses
        assert (min(losses), max(losses)) == pytest.approx((whole.min(), whole.max()), rel=1e-4)


def test_many_runs_share_the_points():
    finals = {"adamw": {0.001 * (i + 1): dict.fromkeys(range(10), 1.5) for i in range(40)}}
    shapes = {"adamw": Shape(records=600, validations=600)}
    data = curves_data(in_memory(finals, baseline=None, shapes=shapes))
    longest = max(len(run["training"]["losses"]) for run in data["arms"][0]["runs"])
    assert 150 < longest <= 200


def test_a_diverged_rate_is_a_cross_on_the_upper_edge(analysis):
    data = only_view(sensitivity_data(analysis))["data"]
    (cross,) = (trace for trace in data if trace["mode"] == "markers")
    assert (cross["name"], cross["x"]) == ("mars-lion", [0.0012])
    ends = [
        y + above
        for trace in data
        if trace["mode"] != "markers"
        for y, above in zip(trace["y"], trace["error_y"]["array"], strict=True)
    ]
    assert max(ends) < cross["y"][0] < max(ends) + 0.05


def test_sensitivity_has_intervals_of_the_analysis(analysis):
    data = only_view(sensitivity_data(analysis))["data"]
    trace = next(trace for trace in data if trace["name"] == "mars-m")
    at = analysis.arms[2].sensitivity[0]
    assert trace["x"] == [0.016, 0.032]
    assert trace["error_y"]["array"][0] == pytest.approx(at.loss.high - at.loss.mean, rel=1e-4)
    assert trace["error_y"]["arrayminus"][0] == pytest.approx(at.loss.mean - at.loss.low, rel=1e-4)


def test_bars_stand_beside_the_names_of_their_arms(analysis):
    values = [(arm, arm.step_seconds.mean) for arm in analysis.arms]
    view = only_view(bars_data(values, analysis, "seconds"))
    assert view["data"][0]["x"] == pytest.approx([0.04, 0.046, 0.052, 0.041])
    assert view["layout"]["yaxis"]["ticktext"] == list(FINALS)


def test_a_measure_is_drawn_for_the_arms_that_have_it(analysis):
    data = only_view(measure_data(analysis, name="clip_rate", title="clip rate"))["data"]
    assert [trace["name"] for trace in data] == ["mars-adamw", "mars-m", "mars-lion"]
    assert set(data[0]["y"]) == {0.1}


def test_variance_has_a_view_for_every_kind_and_quantity(analysis):
    data = variance_data(diagnoses(analysis)[0])
    (layers, kinds), (quantity, quantities) = data["choices"]
    assert (layers, quantity) == ("Layers", "Quantity")
    assert kinds == ["all parameters", "attention", "MLP", "embedding", "vectors"]
    assert set(data["views"]) == {f"{kind},{each}" for kind in kinds for each in quantities}
    view = data["views"]["embedding,variance"]
    exact = next(trace for trace in view["data"] if trace["name"] == "MARS, exact")
    assert exact["y"] == pytest.approx([0.16, 0.8, 1.6])
    assert exact["error_y"]["array"] == pytest.approx([0.032, 0.16, 0.32])
    assert view["layout"]["yaxis"]["type"] == "log"


def test_a_loss_that_is_not_finite_is_null():
    analysis = in_memory({"adamw": {0.002: {0: math.inf, 1: 1.5}}}, baseline=None)
    run = curves_data(analysis)["arms"][0]["runs"][0]["validation"]
    assert run["losses"][-1] is None

"""How run directories and comparisons become arms."""

import json
import math
import shutil

import pytest

from mars.config.errors import RefusedError
from mars.config.load import override
from mars.report.environment import differences, environment
from mars.report.results import collect
from report.synthetic import MANIFEST, make_config, write_comparison, write_run

FINALS = {
    "adamw": {0.004: {0: 1.9, 1: 1.92}, 0.002: {1: 2.0, 0: 1.95}},
    "mars-adamw gamma=0.05": {0.006: {0: 1.7, 1: 1.75}},
}


def runs(folder, label, **trials):
    """Write runs of an arm: names to (rate, seed)."""
    return [
        write_run(folder / name, make_config(label, lr=lr, seed=seed), 1.5 + 0.01 * seed)
        for name, (lr, seed) in trials.items()
    ]


def shape(results):
    return {
        arm.label: {rate.lr: [trial.seed for trial in rate.trials] for rate in arm.rates}
        for arm in results.arms
    }


def test_a_comparison_gives_its_arms_sorted_by_rate_and_seed(tmp_path):
    results = collect([write_comparison(tmp_path / "c", FINALS, search_seeds=1)])
    assert shape(results) == {
        "adamw": {0.002: [0, 1], 0.004: [0, 1]},
        "mars-adamw gamma=0.05": {0.006: [0, 1]},
    }
    assert [list(rates) for rates in shape(results).values()] == [[0.002, 0.004], [0.006]]
    assert (results.title, results.baseline) == ("synthetic", "adamw")
    assert (results.seeds, results.search_seeds, results.pending) == ((0, 1), 1, 0)
    assert results.command == "mars compare quickstart"
    assert results.arms[1].settings == {"optimizer.gamma": 0.05}
    assert len(results.trials) == 6


def test_runs_that_are_planned_and_not_complete_are_pending(tmp_path):
    finals = {"adamw": {0.004: {0: 1.9, 1: math.nan, 2: None}, 0.002: {0: math.inf}}, "muon": {}}
    finals["muon"] = {0.01: {0: None}}
    results = collect([write_comparison(tmp_path / "c", finals)])
    assert results.pending == 3
    assert shape(results) == {"adamw": {0.002: [0], 0.004: [0, 1]}, "muon": {}}


def test_failures_are_told_until_the_run_is_complete(tmp_path):
    failures = [
        {"path": "runs/adamw/lr-0.004/seed-1", "reason": "out of memory"},
        {"path": "runs/adamw/lr-0.004/seed-0", "reason": "killed; done again since"},
    ]
    finals = {"adamw": {0.004: {0: 1.9, 1: math.nan}}}
    results = collect([write_comparison(tmp_path / "c", finals, failures=failures)])
    assert results.failures == ("runs/adamw/lr-0.004/seed-1: out of memory",)
    assert results.pending == 1


def test_runs_that_the_plan_no_longer_has_are_left_out(tmp_path):
    folder = write_comparison(tmp_path / "c", FINALS)
    plan = json.loads((folder / "comparison.json").read_text())
    plan["trials"] = [trial for trial in plan["trials"] if trial["lr"] != 0.002]
    (folder / "comparison.json").write_text(json.dumps(plan))
    assert list(shape(collect([folder]))["adamw"]) == [0.004]


def test_plain_runs_are_grouped_by_what_they_compute(tmp_path):
    paths = runs(tmp_path, "adamw", a=(0.004, 1), b=(0.004, 0), c=(0.002, 0))
    other = override(
        make_config("adamw", lr=0.002, seed=1),
        ["name=other", "data.path=/elsewhere", "data.workers=0", "checkpoint.every=7"],
    )
    other = override(other, ["metrics.log_every=3", "description=x", "training.stop_diverged=true"])
    paths.append(write_run(tmp_path / "d", other, 1.5))
    results = collect(paths)
    assert shape(results) == {"adamw": {0.002: [0, 1], 0.004: [0, 1]}}
    assert (results.baseline, results.command, results.pending) == (None, None, 0)


def test_arms_of_one_optimizer_are_labelled_by_what_they_differ_in(tmp_path):
    paths = [
        *runs(tmp_path, "mars-adamw", a=(0.004, 0)),
        *runs(tmp_path, "mars-adamw gamma=0", b=(0.004, 0)),
        *runs(tmp_path, "mars-adamw gamma=0.1 clip=none", c=(0.004, 0)),
        *runs(tmp_path, "mars-adamw betas=0.9,0.95", d=(0.004, 0)),
        *runs(tmp_path, "adamw", e=(0.004, 0)),
    ]
    results = collect(paths)
    assert [arm.label for arm in results.arms] == [
        "mars-adamw, betas 0.95/0.99, gamma 0.025",
        "mars-adamw, betas 0.95/0.99, gamma 0",
        "mars-adamw, betas 0.95/0.99, gamma 0.1, clip none",
        "mars-adamw, betas 0.9/0.95, gamma 0.025",
        "adamw",
    ]
    assert results.arms[1].settings == {
        "optimizer.betas": (0.95, 0.99),
        "optimizer.gamma": 0.0,
        "optimizer.clip": None,
    }
    assert results.baseline == "adamw"


def test_arms_that_differ_in_much_are_labelled_by_name(tmp_path):
    config = make_config("adamw", lr=0.004, seed=0)
    settings = ["model.width=64", "model.layers=2", "model.heads=2", "training.batch_size=8"]
    paths = [
        write_run(tmp_path / "a", config, 1.5),
        write_run(tmp_path / "b", override(config, [*settings, "name=small"]), 1.5),
        write_run(tmp_path / "c", override(config, [*settings, "name=small", "eps=1e-6"]), 1.5),
    ]
    labels = [arm.label for arm in collect(paths).arms]
    assert labels == ["quickstart-adamw", "small", "small (2)"]


def test_the_same_run_twice_is_counted_once(tmp_path):
    folder = write_comparison(tmp_path / "c", FINALS)
    link = tmp_path / "link"
    link.symlink_to(folder)
    one = folder / "runs/adamw/lr-0.004/seed-0"
    results = collect([one, folder, link, one, folder / "runs/../runs/adamw/lr-0.004/seed-1"])
    assert len(results.trials) == 6
    assert (results.seeds, results.search_seeds) == ((0, 1), 2)
    assert results.command is not None  # it is the comparison and nothing else


def test_a_second_run_of_one_rate_and_seed_that_ended_otherwise_is_refused(tmp_path):
    a, b = runs(tmp_path, "adamw", a=(0.004, 0), b=(0.004, 0))
    records = (b / "metrics.jsonl").read_text().splitlines()
    last = json.loads(records[-1])
    last["loss"] += 0.125
    (b / "metrics.jsonl").write_text("\n".join([*records[:-1], json.dumps(last)]) + "\n")
    with pytest.raises(RefusedError) as refusal:
        collect([a, b])
    assert f"{a} and {b} are the same run, adamw at rate 0.004 and seed 0" in str(refusal.value)


def test_comparisons_that_share_runs_count_them_once(tmp_path):
    first = write_comparison(tmp_path / "first", FINALS)
    second = tmp_path / "second"
    shutil.copytree(first, second)
    results = collect([first, second])
    assert len(results.trials) == len(collect([first]).trials)
    assert results.pending == 0


def test_a_comparison_whose_search_goes_on_is_unfinished(tmp_path):
    folder = write_comparison(tmp_path / "c", FINALS)
    plan = json.loads((folder / "comparison.json").read_text())
    (folder / "comparison.json").write_text(json.dumps({**plan, "still_unknown": 4}))
    assert collect([folder]).pending == 4


def test_plain_runs_join_the_arm_of_a_comparison_that_they_fit(tmp_path):
    folder = write_comparison(tmp_path / "c", FINALS)
    paths = [
        *runs(tmp_path, "mars-adamw gamma=0.05", a=(0.006, 2)),
        *runs(tmp_path, "mars-adamw gamma=0.01", b=(0.006, 0)),
        *runs(tmp_path, "adamw eps=1e-6", d=(0.004, 0)),
    ]
    results = collect([*paths, folder])
    assert shape(results) == {
        "adamw": {0.002: [0, 1], 0.004: [0, 1]},
        "mars-adamw gamma=0.05": {0.006: [0, 1, 2]},
        "mars-adamw, gamma 0.01": {0.006: [0]},
        "adamw, eps 1e-06": {0.004: [0]},
    }
    # Every rate has seed 0: rates are judged on it, and it comes first.
    assert (results.seeds, results.search_seeds) == ((0, 1, 2), 1)
    assert (results.title, results.command) == ("synthetic", None)


def test_two_comparisons_share_the_arms_that_are_the_same(tmp_path):
    first = write_comparison(tmp_path / "a", FINALS)
    second = write_comparison(
        tmp_path / "b",
        {"adamw": {0.004: {2: 1.91}}, "mars-m": {0.01: {2: 1.5}}},
        name="second",
    )
    results = collect([first, second])
    assert shape(results) == {
        "adamw": {0.002: [0, 1], 0.004: [0, 1, 2]},
        "mars-adamw gamma=0.05": {0.006: [0, 1]},
        "mars-m": {0.01: [2]},
    }
    assert (results.title, results.baseline) == ("synthetic", "adamw")


def test_labels_are_unique_when_different_arms_share_one(tmp_path):
    first = write_comparison(tmp_path / "a", {"adamw": {0.004: {0: 1.9}}})
    second = write_comparison(tmp_path / "b", {"adamw": {0.004: {0: 1.9}}}, steps=100)
    assert [arm.label for arm in collect([first, second]).arms] == ["adamw", "adamw (2)"]


def test_an_unfinished_plain_run_is_pending(tmp_path):
    config = make_config("adamw", lr=0.004, seed=0)
    results = collect([write_run(tmp_path / "a", config, math.nan)])
    assert (results.pending, len(results.trials)) == (1, 1)


def test_the_baseline_is_the_one_asked_for_or_adamw_or_the_first(tmp_path):
    lion = runs(tmp_path, "lion", a=(0.001, 0))
    muon = runs(tmp_path, "muon", b=(0.01, 0))
    adamw = runs(tmp_path, "adamw", c=(0.004, 0))
    assert collect([*lion, *muon]).baseline == "lion"
    assert collect([*lion, *muon, *adamw]).baseline == "adamw"
    assert collect([*lion, *muon, *adamw], baseline="muon").baseline == "muon"
    assert collect(lion, baseline="lion").baseline is None
    with pytest.raises(RefusedError, match="--baseline mun is none of the arms; did you mean muon"):
        collect([*lion, *muon], baseline="mun")
    with pytest.raises(RefusedError, match="--baseline sgd is none of the arms; there are lion"):
        collect([*lion, *muon], baseline="sgd")


def test_the_title_is_the_one_asked_for_or_made_from_the_runs(tmp_path):
    lion = runs(tmp_path, "lion", a=(0.001, 0))
    muon = runs(tmp_path, "muon", b=(0.01, 0))
    assert collect(lion).title == "quickstart-lion"
    assert collect([*lion, *muon]).title == "Comparison of lion, muon"
    assert collect(lion, title="Mine").title == "Mine"


def test_seeds_that_every_rate_has_come_first(tmp_path):
    paths = runs(tmp_path, "adamw", a=(0.004, 0), b=(0.004, 5), c=(0.002, 5))
    results = collect(paths)
    assert (results.seeds, results.search_seeds) == ((5, 0), 1)
    rest = runs(tmp_path, "muon", d=(0.01, 7))
    results = collect([*paths, *rest])
    assert (results.seeds, results.search_seeds) == ((0, 5, 7), 3)


def test_different_units_are_refused(tmp_path):
    a = write_run(tmp_path / "a", make_config("adamw", lr=0.004, seed=0), 1.5)
    b = write_run(tmp_path / "b", make_config("muon", lr=0.01, seed=0), 1.5, unit="samples")
    with pytest.raises(RefusedError, match="runs of different units cannot be compared"):
        collect([a, b])
    (a / "metrics.jsonl").write_text("")  # a run that has just begun counts nothing yet
    assert len(collect([a, b]).arms) == 2


def test_what_is_neither_a_run_nor_a_comparison_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "absent"):
        with pytest.raises(RefusedError, match="is neither a run nor a comparison") as refusal:
            collect([path])
        assert str(refusal.value).startswith(str(path))
    with pytest.raises(RefusedError, match="no runs were given"):
        collect([])


def test_a_comparison_without_a_run_is_refused(tmp_path):
    folder = write_comparison(tmp_path / "c", {"adamw": {0.004: {0: None}}})
    with pytest.raises(RefusedError, match="has started yet"):
        collect([folder])


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: "not JSON",
        lambda plan: "[]",
        lambda plan: json.dumps({**plan, "format": 2}),
        lambda plan: json.dumps({**plan, "arms": None}),
        lambda plan: json.dumps({**plan, "arms": plan["arms"] * 2}),
        lambda plan: json.dumps({**plan, "arms": plan["arms"][:1]}),
        lambda plan: json.dumps({**plan, "seeds": ["a"]}),
        lambda plan: json.dumps({key: plan[key] for key in plan if key != "trials"}),
    ],
)
def test_a_damaged_plan_is_refused_in_one_line(tmp_path, change):
    folder = write_comparison(tmp_path / "c", FINALS)
    file = folder / "comparison.json"
    file.write_text(change(json.loads(file.read_text())))
    with pytest.raises(RefusedError, match=r"comparison\.json") as refusal:
        collect([folder])
    assert "\n" not in str(refusal.value)


def test_a_damaged_run_of_a_comparison_is_named(tmp_path):
    folder = write_comparison(tmp_path / "c", FINALS)
    metrics = folder / "runs/adamw/lr-0.004/seed-0/metrics.jsonl"
    metrics.write_text("{}\n")
    with pytest.raises(RefusedError, match=r"seed-0/metrics\.jsonl, line 1"):
        collect([folder])
    shutil.rmtree(metrics.parent)  # gone, it is a run to come
    assert collect([folder]).pending == 1


def test_the_environment_has_one_value_or_several(tmp_path):
    newer = {**MANIFEST, "torch": "2.14.0", "commit": None, "hardware": {"device": "H100"}}
    newer.pop("tokenizer")
    a = write_run(tmp_path / "a", make_config("adamw", lr=0.004, seed=0), 1.5)
    b = write_run(tmp_path / "b", make_config("muon", lr=0.01, seed=0), 1.5, manifest=newer)
    alone, both = environment(collect([a])), environment(collect([a, b]))
    assert all(len(values) == 1 for values in alone.values())
    assert alone["data digest"] == ("ab" * 32,)
    assert both["torch"] == ("2.13.0", "2.14.0")
    assert both["device"] == ("cpu, 1 thread", "H100")
    assert both["commit"] == (MANIFEST["commit"], "unknown")
    assert both["tokenizer"] == ("bytes", "unknown")
    assert both["parameters"] == ("826112",)
    assert "commit" not in environment(collect([b]))


def test_differences_are_those_of_the_configs_at_the_best_rates(tmp_path):
    table = differences(collect([write_comparison(tmp_path / "c", FINALS)]))
    mars = "mars-adamw gamma=0.05"
    assert table["optimizer.name"] == {"adamw": "adamw", mars: "mars-adamw"}
    assert table["optimizer.lr"] == {"adamw": 0.004, mars: 0.006}
    assert table["optimizer.gamma"] == {"adamw": None, mars: 0.05}
    assert table["optimizer.betas"] == {"adamw": (0.9, 0.95), mars: (0.95, 0.99)}
    assert all(key.startswith("optimizer.") for key in table)
    other = runs(tmp_path, "muon", muon=(0.01, 7))
    assert "seed" not in differences(collect([tmp_path / "c", *other]))
    assert differences(collect([tmp_path / "c/runs/adamw/lr-0.004/seed-0"])) == {}

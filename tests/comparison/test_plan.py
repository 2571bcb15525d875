"""A plan's trials: equal searches, the same seeds for every arm, and directories of their own."""

import json
import os
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from mars.comparison import plan as plans
from mars.comparison.plan import (
    Failure,
    Plan,
    PlannedArm,
    as_json,
    confirming_trials,
    search_trials,
    write_plan,
)
from mars.comparison.request import Request, resolve
from mars.config.check import OPTIONS, check
from mars.config.load import differences, dumps, loads
from mars.config.presets import preset

STEPS = "training.steps=20"
# Short runs, whose warm-up is not to outlast them.
SHORT = (STEPS, "schedule.warmup_steps=2")


def planned(**given: object) -> Plan:
    """Return the plan of a short comparison on quickstart."""
    return resolve(Request(config="quickstart", settings=SHORT, **given), command="mars compare")


OPTIMIZERS = st.lists(st.sampled_from(list(OPTIONS)), min_size=1, max_size=4, unique=True)
SEEDS = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5, unique=True)


@st.composite
def requests(draw: st.DrawFn) -> Plan:
    """Return the plan of some command line that can be honoured."""
    optimizers, seeds = draw(OPTIMIZERS), draw(SEEDS)
    count = draw(st.integers(1, 5))
    numbers = st.floats(1e-6, 1.0).map(lambda rate: float(f"{rate:.3g}"))
    given_rates = draw(
        st.dictionaries(
            st.sampled_from(optimizers),
            st.lists(numbers, min_size=count, max_size=count, unique=True),
        )
    )
    gammas = draw(st.lists(st.sampled_from(["0", "0.01", "1"]), max_size=3, unique=True))
    can_vary = gammas and any("gamma" in OPTIONS[name] for name in optimizers)
    return planned(
        optimizers=",".join(optimizers),
        seeds=",".join(map(str, seeds)),
        search_seeds=draw(st.integers(1, len(seeds)) | st.none()),
        rates=count if len(given_rates) < len(optimizers) else None,
        lr=tuple(f"{name}={','.join(map(str, rates))}" for name, rates in given_rates.items()),
        vary=(f"gamma={','.join(gammas)}", "betas=0.9,0.95;0.95,0.99") if can_vary else (),
    )


PLANS = requests()
FEW = settings(max_examples=60)


@given(PLANS, st.data())
@FEW
def test_search_and_confirmation_try_the_best_rate_on_every_seed_once(plan, data):
    best = {arm.label: data.draw(st.sampled_from(arm.rates)) for arm in plan.arms}
    trials = (*search_trials(plan), *confirming_trials(plan, best))
    for arm in plan.arms:
        seeds = [t.seed for t in trials if t.arm == arm.label and t.lr == best[arm.label]]
        assert sorted(seeds) == sorted(plan.seeds)
    assert len({trial.path for trial in trials}) == len(trials)
    assert len({trial.config.name for trial in trials}) == len(trials)


@given(PLANS)
@FEW
def test_every_arm_has_a_search_of_the_same_size(plan):
    trials = search_trials(plan)
    count = len(plan.arms[0].rates)
    for arm in plan.arms:
        own = [(trial.lr, trial.seed) for trial in trials if trial.arm == arm.label]
        assert len(own) == len(set(own)) == count * plan.search_seeds
        assert {lr for lr, _ in own} == set(arm.rates)
        assert {seed for _, seed in own} == set(plan.seeds[: plan.search_seeds])
        assert list(arm.rates) == sorted(arm.rates)


@given(PLANS)
@FEW
def test_runs_of_one_seed_differ_in_their_optimizer_and_name_alone(plan):
    trials = search_trials(plan)
    for trial in trials:
        first = next(other for other in trials if other.seed == trial.seed)
        for key, *_ in differences(first.config, trial.config):
            assert key == "name" or key.startswith("optimizer.")


@given(PLANS)
@FEW
def test_runs_of_one_arm_differ_in_rate_seed_and_name_alone(plan):
    for arm in plan.arms:
        best = {arm.label: arm.rates[-1]}
        trials = (*search_trials(plan), *confirming_trials(plan, best))
        for trial in (trial for trial in trials if trial.arm == arm.label):
            assert trial.config.optimizer.name == arm.optimizer
            assert trial.config.optimizer.lr == trial.lr
            assert trial.config.seed == trial.seed
            changed = {key for key, *_ in differences(arm.config, trial.config)}
            assert changed <= {"name", "seed", "optimizer.lr"}


@given(PLANS)
@FEW
def test_every_run_is_possible_stops_when_it_diverges_and_survives_its_file(plan):
    for trial in search_trials(plan):
        check(trial.config)
        assert trial.config.training.stop_diverged is True
        assert loads(dumps(trial.config)) == trial.config


@given(PLANS)
@FEW
def test_all_arms_make_progress_together(plan):
    """At any instant of the search no arm is more than one trial ahead of another."""
    done = dict.fromkeys((arm.label for arm in plan.arms), 0)
    for trial in search_trials(plan):
        done[trial.arm] += 1
        assert max(done.values()) - min(done.values()) <= 1


def arm(label: str, *rates: float, slug: str | None = None) -> PlannedArm:
    run = preset("quickstart-adamw")
    return PlannedArm(
        label=label,
        slug=slug or label,
        optimizer="adamw",
        rates=rates,
        settings={"optimizer.betas": (0.9, 0.95), "optimizer.eps": None},
        config=run,
    )


SMALL = Plan(
    name="small",
    description="Two arms.",
    command="mars compare small.toml",
    baseline="a",
    seeds=(3, 1, 2),
    search_seeds=1,
    arms=(arm("a", 0.001, 0.002), arm("b, c", 2.0, 1e-7, slug="b-c")),
)


def test_the_search_goes_by_seed_then_rate_then_arm():
    plan = replace(SMALL, search_seeds=2)
    order = [(trial.seed, trial.lr, trial.arm) for trial in search_trials(plan)]
    assert order[:5] == [
        (3, 0.001, "a"),
        (3, 2.0, "b, c"),
        (3, 0.002, "a"),
        (3, 1e-7, "b, c"),
        (1, 0.001, "a"),
    ]
    assert len(order) == 2 * 2 * 2


def test_the_confirmation_is_of_the_best_rates_on_the_seeds_left():
    found = confirming_trials(SMALL, {"a": 0.002, "b, c": 2.0})
    assert [(trial.seed, trial.lr, trial.arm) for trial in found] == [
        (1, 0.002, "a"),
        (1, 2.0, "b, c"),
        (2, 0.002, "a"),
        (2, 2.0, "b, c"),
    ]


def test_a_search_on_all_seeds_leaves_nothing_to_confirm():
    plan = replace(SMALL, search_seeds=3)
    assert confirming_trials(plan, {"a": 0.001, "b, c": 2.0}) == ()
    assert len(search_trials(plan)) == 12


def test_an_arm_without_a_best_rate_is_not_confirmed():
    assert {trial.arm for trial in confirming_trials(SMALL, {"b, c": 2.0})} == {"b, c"}
    assert confirming_trials(SMALL, {}) == ()


@pytest.mark.parametrize("best", [{"a": 0.003}, {"z": 0.001}, {"a": 2.0}])
def test_only_planned_rates_can_be_confirmed(best):
    with pytest.raises(ValueError, match="is no part of the plan"):
        confirming_trials(SMALL, best)


def test_a_trial_has_the_path_and_the_name_of_the_contract():
    paths = {trial.path: trial.config.name for trial in search_trials(SMALL)}
    assert paths == {
        "runs/a/lr-0.001/seed-3": "a-lr-0.001-seed-3",
        "runs/a/lr-0.002/seed-3": "a-lr-0.002-seed-3",
        "runs/b-c/lr-2/seed-3": "b-c-lr-2-seed-3",
        "runs/b-c/lr-1e-07/seed-3": "b-c-lr-1e-07-seed-3",
    }


def test_the_written_plan_is_that_of_the_contract(tmp_path):
    trials = search_trials(SMALL)[:1]
    write_plan(SMALL, trials, tmp_path, failures=[Failure("runs/x", "no memory")])
    assert json.loads((tmp_path / "comparison.json").read_text(encoding="utf-8")) == {
        "format": 1,
        "name": "small",
        "description": "Two arms.",
        "command": "mars compare small.toml",
        "baseline": "a",
        "seeds": [3, 1, 2],
        "search_seeds": 1,
        "arms": [
            {
                "label": "a",
                "optimizer": "adamw",
                "rates": [0.001, 0.002],
                "settings": {"optimizer.betas": [0.9, 0.95], "optimizer.eps": None},
            },
            {
                "label": "b, c",
                "optimizer": "adamw",
                "rates": [2.0, 1e-7],
                "settings": {"optimizer.betas": [0.9, 0.95], "optimizer.eps": None},
            },
        ],
        "trials": [{"arm": "a", "lr": 0.001, "seed": 3, "path": "runs/a/lr-0.001/seed-3"}],
        "still_unknown": 0,
        "failures": [{"path": "runs/x", "reason": "no memory"}],
    }


@given(PLANS)
@settings(max_examples=20)
def test_a_plan_reads_back_from_its_file_as_it_is(tmp_path_factory, plan):
    folder = tmp_path_factory.mktemp("plan")
    write_plan(plan, search_trials(plan), folder)
    made = as_json(plan, search_trials(plan))
    as_read = json.loads(json.dumps(made))
    assert json.loads((folder / "comparison.json").read_text(encoding="utf-8")) == as_read
    assert as_read["failures"] == []


def test_writing_makes_the_directory_and_leaves_the_plan_alone_in_it(tmp_path):
    folder = tmp_path / "a" / "b"
    write_plan(SMALL, (), folder)
    write_plan(SMALL, search_trials(SMALL), folder)
    assert os.listdir(folder) == ["comparison.json"]
    assert len(json.loads((folder / "comparison.json").read_text())["trials"]) == 4


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_plan_that_was_there(tmp_path, monkeypatch, broken):
    write_plan(SMALL, (), tmp_path)
    before = (tmp_path / "comparison.json").read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    target = plans.os if broken == "fsync" else plans.Path
    monkeypatch.setattr(target, broken, fail)
    with pytest.raises(OSError, match="disk full"):
        write_plan(SMALL, search_trials(SMALL), tmp_path)
    assert (tmp_path / "comparison.json").read_bytes() == before
    assert os.listdir(tmp_path) == ["comparison.json"]


def test_a_number_that_json_cannot_hold_is_not_written(tmp_path):
    plan = replace(SMALL, arms=(arm("a", float("nan")),))
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_plan(plan, (), tmp_path)
    assert os.listdir(tmp_path) == []

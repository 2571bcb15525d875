"""From a command line to a plan: presets, files and studies, rates, seeds and varied keys."""

import math
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from mars.comparison import study as studies
from mars.comparison.plan import Plan, search_trials
from mars.comparison.planning import make_plan
from mars.comparison.rates import rates_around
from mars.comparison.request import Request, resolve
from mars.config.check import OPTIONS
from mars.config.load import assign, differences, dumps
from mars.config.presets import names, preset
from mars.config.schema import Run


def asked(config: str | None = "quickstart", **given: object) -> Plan:
    return resolve(Request(config=config, **given), command="mars compare ...")


def labels(plan: Plan) -> list[str]:
    return [arm.label for arm in plan.arms]


def rates(plan: Plan) -> dict[str, tuple[float, ...]]:
    return {arm.label: arm.rates for arm in plan.arms}


def test_a_plain_request_compares_four_optimizers_on_three_seeds():
    plan = asked()
    assert (plan.name, plan.baseline) == ("quickstart", "adamw")
    assert plan.command == "mars compare ..."
    assert (plan.seeds, plan.search_seeds) == ((0, 1, 2), 3)
    assert rates(plan) == {
        "mars-adamw": (3e-3, 6e-3, 1.2e-2),
        "mars-m": (8e-3, 1.6e-2, 3.2e-2),
        "adamw": (2e-3, 4e-3, 8e-3),
        "muon": (8e-3, 1.6e-2, 3.2e-2),
    }
    assert plan.description == "quickstart with mars-adamw, mars-m, adamw, muon."


@pytest.mark.parametrize("name", names()[::5])
def test_a_preset_stands_for_its_siblings(name):
    plan = asked(name, optimizers=",".join(OPTIONS))
    stem = plan.name
    assert name.startswith(stem)
    for arm in plan.arms:
        sibling = preset(f"{stem}-{arm.optimizer}")
        changed = {key for key, *_ in differences(sibling, arm.config)}
        assert changed == {"name", "description", "training.stop_diverged"}
        assert sibling.optimizer.lr in arm.rates


def test_a_preset_may_leave_out_its_optimizer():
    assert asked("wikitext2") == asked("wikitext2-muon")
    assert asked("gpt2-small-openwebtext").name == "gpt2-small-openwebtext"


@given(st.floats(1e-6, 1.0), st.integers(1, 20), st.floats(1.01, 10.0))
def test_automatic_rates_are_symmetric_in_the_logarithm(rate, count, factor):
    made = rates_around(rate, count=count, factor=factor)
    assert len(made) == count
    centre = count // 2
    assert made[centre] == rate
    for step in range(1, (count - 1) // 2 + 1):
        below, above = made[centre - step], made[centre + step]
        # Rates are written with six digits.
        assert math.sqrt(below * above) == pytest.approx(rate, rel=1e-5)
        assert above / rate == pytest.approx(factor**step, rel=1e-5)
    # An even number has one more below.
    assert sum(each < rate for each in made) == count // 2
    assert sum(each > rate for each in made) == (count - 1) // 2


@given(st.floats(1e-6, 1.0), st.integers(1, 8), st.floats(1.01, 10.0))
def test_more_automatic_rates_keep_those_there_are(rate, count, factor):
    fewer = rates_around(rate, count=count, factor=factor)
    assert set(fewer) <= set(rates_around(rate, count=count + 1, factor=factor))


@pytest.mark.parametrize(
    ("count", "factor", "expected"),
    [
        (1, 2.0, (4e-3,)),
        (2, 2.0, (2e-3, 4e-3)),
        (4, 2.0, (1e-3, 2e-3, 4e-3, 8e-3)),
        (3, 10.0, (4e-4, 4e-3, 4e-2)),
        (3, 3.0, (1.33333e-3, 4e-3, 1.2e-2)),
    ],
)
def test_automatic_rates_have_the_count_and_factor_asked_for(count, factor, expected):
    plan = asked(optimizers="adamw,muon", rates=count, rate_factor=factor)
    assert rates(plan)["adamw"] == expected
    assert len(rates(plan)["muon"]) == count


def test_rates_are_given_by_optimizer_and_the_others_stay_automatic():
    plan = asked(optimizers="adamw,mars-adamw", lr=("adamw=3e-3,1e-3,2e-3",))
    assert rates(plan) == {"adamw": (1e-3, 2e-3, 3e-3), "mars-adamw": (3e-3, 6e-3, 1.2e-2)}
    assert asked(optimizers="adamw", lr=("auto",)) == asked(optimizers="adamw")
    assert asked(optimizers="adamw", lr=("adamw=auto",)) == asked(optimizers="adamw")
    # A rate keeps all its digits; six of them name its directory.
    (trial, *_) = search_trials(asked(optimizers="adamw", lr=("adamw=0.00123456789",)))
    assert (trial.lr, trial.path) == (0.00123456789, "runs/adamw/lr-0.00123457/seed-0")


def test_rates_of_a_label_go_before_those_of_its_optimizer():
    lr = ("mars-adamw=1,2", "mars-adamw, gamma 0=3,4", "adamw=5,6")
    plan = asked(optimizers="adamw,mars-adamw", vary=("gamma=0,0.1",), lr=lr)
    assert rates(plan) == {
        "adamw": (5, 6),
        "mars-adamw, gamma 0": (3, 4),
        "mars-adamw, gamma 0.1": (1, 2),
    }
    assert rates(plan) == rates(
        asked(optimizers="adamw,mars-adamw", vary=("gamma=0,0.1",), lr=tuple(reversed(lr)))
    )


def test_the_rate_beside_a_matrix_rule_stays_as_it_is():
    for trial in search_trials(asked(optimizers="mars-m,muon,mars-adamw")):
        own = preset(f"quickstart-{trial.config.optimizer.name}")
        assert trial.config.optimizer.lr_1d == own.optimizer.lr_1d


def test_varied_values_make_an_arm_for_every_combination_where_they_have_a_meaning():
    plan = asked(
        optimizers="mars-adamw,adamw",
        vary=("gamma=0,0.025", "optimizer.betas=0.9,0.95;0.95,0.99", "weight_decay=0.1"),
    )
    assert labels(plan) == [
        "mars-adamw, gamma 0, betas 0.9/0.95, weight_decay 0.1",
        "mars-adamw, gamma 0, betas 0.95/0.99, weight_decay 0.1",
        "mars-adamw, gamma 0.025, betas 0.9/0.95, weight_decay 0.1",
        "mars-adamw, gamma 0.025, betas 0.95/0.99, weight_decay 0.1",
        "adamw, betas 0.9/0.95, weight_decay 0.1",
        "adamw, betas 0.95/0.99, weight_decay 0.1",
    ]
    assert plan.baseline == "adamw, betas 0.9/0.95, weight_decay 0.1"
    for arm in plan.arms:
        assert arm.config == assign(arm.config, arm.settings)
    assert plan.arms[1].settings == {
        "optimizer.gamma": 0.0,
        "optimizer.betas": (0.95, 0.99),
        "optimizer.weight_decay": 0.1,
    }


@given(st.data())
@settings(max_examples=60)
def test_arms_are_as_many_as_combinations(data):
    optimizers = data.draw(st.lists(st.sampled_from(list(OPTIONS)), min_size=1, unique=True))
    pool = {"gamma": ["0", "0.5"], "weight_decay": ["0", "0.1", "1"], "dropout": ["0", "0.5"]}
    pool["clip"] = ["tensor", "none", "global"]
    chosen = data.draw(st.lists(st.sampled_from(sorted(pool)), unique=True))
    owners = {key: [name for name in optimizers if key in OPTIONS[name]] for key in chosen}
    owners |= {"dropout": optimizers}
    chosen = [key for key in chosen if owners[key]]
    vary = tuple(f"{key}={','.join(pool[key])}" for key in chosen)
    plan = asked(optimizers=",".join(optimizers), vary=vary)
    expected = sum(
        math.prod(len(pool[key]) for key in chosen if name in owners[key]) for name in optimizers
    )
    assert len(plan.arms) == len(set(labels(plan))) == expected
    assert len({arm.slug for arm in plan.arms}) == expected


def test_a_key_of_another_section_is_varied_for_all():
    plan = asked(optimizers="adamw,muon", vary=("model.dropout=0,0.1", "bias=true"))
    assert labels(plan) == [
        "adamw, dropout 0, bias true",
        "adamw, dropout 0.1, bias true",
        "muon, dropout 0, bias true",
        "muon, dropout 0.1, bias true",
    ]
    assert [arm.config.model.dropout for arm in plan.arms] == [0, 0.1, 0, 0.1]


def test_lean_goes_with_what_it_needs():
    vary = ("clip=none", "second_moment=gradient", "lean=false,true")
    plan = asked(optimizers="mars-adamw,adamw", vary=vary)
    assert [arm.config.optimizer.lean for arm in plan.arms] == [False, True, None]


def test_an_option_can_be_varied_over_having_none():
    plan = asked(optimizers="mars-adamw", vary=("last_grad_dtype=none,bfloat16",))
    assert labels(plan) == [
        "mars-adamw, last_grad_dtype none",
        "mars-adamw, last_grad_dtype bfloat16",
    ]
    assert [arm.config.optimizer.last_grad_dtype for arm in plan.arms] == [None, "bfloat16"]


def test_settings_are_those_of_every_run():
    plan = asked(settings=("training.steps=60", "warmup_steps=5", "weight_decay=0.3"))
    for trial in search_trials(plan):
        assert trial.config.training.steps == 60
        assert trial.config.schedule.warmup_steps == 5
        assert trial.config.optimizer.weight_decay == 0.3
    # They are the comparison's, not an arm's.
    assert all(arm.settings == {} for arm in plan.arms)


def test_an_option_is_left_out_of_every_run_even_where_some_do_not_have_it():
    plan = asked(optimizers="adamw,muon,mars-m", settings=("lr_1d=none",))
    assert [arm.config.optimizer.lr_1d for arm in plan.arms] == [None, None, None]


def test_seeds_are_in_the_order_given():
    plan = asked(seeds="7, 3,5", search_seeds=2)
    assert (plan.seeds, plan.search_seeds) == ((7, 3, 5), 2)
    assert {trial.seed for trial in search_trials(plan)} == {7, 3}


@pytest.mark.parametrize(
    ("optimizers", "given_baseline", "expected"),
    [
        ("muon,adamw", None, "adamw"),
        ("muon,nadamw", None, "muon"),
        ("muon,adamw", "muon", "muon"),
    ],
)
def test_the_baseline_is_adamw_unless_said_or_absent(optimizers, given_baseline, expected):
    assert asked(optimizers=optimizers, baseline=given_baseline).baseline == expected


def run_file(folder: Path, run: Run, name: str = "mine.toml") -> str:
    (folder / name).write_text(dumps(run), encoding="utf-8")
    return str(folder / name)


RUN = assign(
    preset("wikitext2-mars-adamw"),
    {"optimizer.gamma": 0.07, "optimizer.fused": False, "optimizer.lr_1d": 0.5, "seed": 99},
)


def test_a_file_is_taken_as_it_is_for_its_own_optimizer(tmp_path):
    plan = asked(run_file(tmp_path, RUN), optimizers="mars-adamw")
    assert plan.name == "mine"
    changed = {key for key, *_ in differences(RUN, plan.arms[0].config)}
    assert changed == {"name", "description", "training.stop_diverged"}
    assert plan.arms[0].rates == (1.5e-3, 3e-3, 6e-3)
    assert {trial.seed for trial in search_trials(plan)} == {0, 1, 2}


@pytest.mark.parametrize("optimizer", list(OPTIONS))
def test_another_optimizer_than_the_files_has_the_constants_of_the_presets(tmp_path, optimizer):
    plan = asked(run_file(tmp_path, RUN), optimizers=optimizer, lr=(f"{optimizer}=1e-3,2e-3",))
    (arm,) = plan.arms
    if optimizer == "mars-adamw":
        assert arm.config.optimizer == RUN.optimizer
        return
    shared = preset(f"wikitext2-{optimizer}").optimizer
    section = arm.config.optimizer
    assert section.fused is False
    assert section.lr_1d == (0.5 if "lr_1d" in OPTIONS[optimizer] else None)
    assert replace(section, lr=0.0, fused=True, lr_1d=0.0) == replace(
        shared, lr=0.0, fused=True, lr_1d=0.0
    )
    changed = {key for key, *_ in differences(RUN, arm.config)}
    rest = {key for key in changed if not key.startswith("optimizer.")}
    assert rest == {"name", "description", "training.stop_diverged"}


def test_a_study_is_found_by_its_name_and_by_its_file(tmp_path):
    by_name = asked("clip-study")
    assert by_name == make_plan(studies.study("clip-study"), command="mars compare ...")
    text = 'base = "quickstart"\n[[arms]]\noptimizer = "muon"'
    (tmp_path / "own").write_text(text)
    assert labels(asked(str(tmp_path / "own"))) == ["muon"]


OWN = """
base = "quickstart"
baseline = "muon"
seeds = [0, 1, 2, 3]
search_seeds = 2
[set]
training.steps = 300
[[arms]]
optimizer = "adamw"
[[arms]]
optimizer = "muon"
"""


@pytest.fixture
def own(tmp_path) -> str:
    """Return the path of a study."""
    (tmp_path / "own.toml").write_text(OWN)
    return str(tmp_path / "own.toml")


def test_what_is_given_beside_a_study_replaces_the_studys_own(own):
    plan = asked(
        own,
        seeds="9,8",
        search_seeds=1,
        baseline="adamw",
        settings=("training.steps=100", "model.layers=1"),
        lr=("adamw=1,2",),
        rates=2,
        rate_factor=4.0,
    )
    before = asked(own)
    assert labels(plan) == labels(before) == ["adamw", "muon"]
    assert (before.seeds, before.search_seeds, before.baseline) == ((0, 1, 2, 3), 2, "muon")
    assert (plan.seeds, plan.search_seeds, plan.baseline) == ((9, 8), 1, "adamw")
    assert rates(plan) == {"adamw": (1, 2), "muon": (4e-3, 1.6e-2)}
    changed = differences(before.arms[0].config, plan.arms[0].config)
    assert {key: now for key, _, now in changed} == {"training.steps": 100, "model.layers": 1}


def test_a_studys_search_does_not_outlast_the_seeds_asked_for(own):
    assert asked(own).search_seeds == 2
    assert asked(own, seeds="5").search_seeds == 1
    assert asked(own, seeds="5,6,7").search_seeds == 2


def test_auto_replaces_a_studys_own_rates(tmp_path):
    text = 'base = "quickstart"\n[[arms]]\noptimizer = "muon"\nrates = [1, 2]\n'
    text += '[[arms]]\noptimizer = "adamw"\nrates = [1, 2]\n'
    (tmp_path / "mine.toml").write_text(text)
    config = str(tmp_path / "mine.toml")
    assert rates(asked(config)) == {"muon": (1, 2), "adamw": (1, 2)}
    made = rates(asked(config, lr=("auto", "adamw=5,6,7")))
    assert made == {"muon": (8e-3, 1.6e-2, 3.2e-2), "adamw": (5, 6, 7)}

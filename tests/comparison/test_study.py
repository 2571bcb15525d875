"""Studies as files: what each line means, what is inherited, and those that are shipped."""

import math
import subprocess
import sys
from importlib import resources
from itertools import combinations
from pathlib import Path

import pytest

from mars.comparison.arms import Study, StudyArm, expanded
from mars.comparison.plan import Plan, confirming_trials, search_trials
from mars.comparison.planning import make_plan
from mars.comparison.study import describe, is_study, load_study, names, study
from mars.config.check import check
from mars.config.errors import RefusedError
from mars.config.load import computed_differences, differences, dumps
from mars.config.presets import preset

FULL = """
description = "All keys."
base = "quickstart"
baseline = "ours, gamma 0.01, betas 0.9/0.99"
seeds = [4, 2, 9]
search_seeds = 2
rates = { count = 2, factor = 3 }

[set]
training.steps = 300
model = { layers = 2, width = 64 }

[[arms]]
optimizer = "adamw"
rates = [2e-3, 1e-3]

[[arms]]
optimizer = "mars-adamw"
label = "ours"
set = { optimizer.clip = "global", optimizer.max_norm = 2 }
vary = { "optimizer.gamma" = [0, 0.01], optimizer.betas = [[0.9, 0.99], [0.95, 0.99]] }

[[arms]]
optimizer = "mars-m"
set.optimizer.lean = false
"""


def write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def planned(folder: Path, text: str) -> Plan:
    return make_plan(load_study(write(folder, text)), command="mars compare mine.toml")


def shipped(name: str) -> Plan:
    return make_plan(study(name), command=f"mars compare {name}")


def test_every_key_of_a_study_means_what_it_says(tmp_path):
    plan = planned(tmp_path, FULL)
    assert (plan.name, plan.description) == ("mine", "All keys.")
    assert plan.command == "mars compare mine.toml"
    assert plan.baseline == "ours, gamma 0.01, betas 0.9/0.99"
    assert (plan.seeds, plan.search_seeds) == ((4, 2, 9), 2)
    assert [(arm.label, arm.rates) for arm in plan.arms] == [
        ("adamw", (1e-3, 2e-3)),
        ("ours, gamma 0, betas 0.9/0.99", (2e-3, 6e-3)),
        ("ours, gamma 0, betas 0.95/0.99", (2e-3, 6e-3)),
        ("ours, gamma 0.01, betas 0.9/0.99", (2e-3, 6e-3)),
        ("ours, gamma 0.01, betas 0.95/0.99", (2e-3, 6e-3)),
        ("mars-m, lean false", (5.33333e-3, 1.6e-2)),
    ]
    assert plan.arms[3].settings == {
        "optimizer.clip": "global",
        "optimizer.max_norm": 2.0,
        "optimizer.gamma": 0.01,
        "optimizer.betas": (0.9, 0.99),
    }


def test_a_run_of_a_study_is_the_preset_with_what_the_study_sets(tmp_path):
    arm = planned(tmp_path, FULL).arms[4]
    changed = {key: now for key, _, now in differences(preset("quickstart-mars-adamw"), arm.config)}
    assert changed == {
        "name": "ours-gamma-0.01-betas-0.95-0.99",
        "description": "All keys.",
        "model.layers": 2,
        "model.width": 64,
        "optimizer.clip": "global",
        "optimizer.max_norm": 2.0,
        "optimizer.gamma": 0.01,
        "training.steps": 300,
        "training.stop_diverged": True,
    }


def test_what_a_study_leaves_out_has_its_default(tmp_path):
    text = 'base = "quickstart"\n[[arms]]\noptimizer = "muon"\n[[arms]]\noptimizer = "adamw"'
    made = load_study(write(tmp_path, text))
    assert (made.seeds, made.search_seeds, made.baseline) == ((0, 1, 2), None, None)
    assert (made.rate_count, made.rate_factor, made.description) == (3, 2.0, "")
    plan = make_plan(made, command="")
    assert plan.search_seeds == 3
    assert plan.baseline == "adamw"
    assert plan.arms[0].rates == (8e-3, 1.6e-2, 3.2e-2)


@pytest.mark.parametrize("base", ["quickstart", "quickstart-adamw", "quickstart-mars-m"])
def test_a_base_stands_for_its_siblings(tmp_path, base):
    arms = '[[arms]]\noptimizer = "muon"\n[[arms]]\noptimizer = "lion"'
    plan = planned(tmp_path, f'base = "{base}"\n{arms}')
    for arm in plan.arms:
        sibling = preset(f"quickstart-{arm.optimizer}")
        changed = {key for key, *_ in differences(sibling, arm.config)}
        assert changed == {"name", "description", "training.stop_diverged"}


def test_a_base_without_optimizer_is_a_stem(tmp_path):
    plan = planned(tmp_path, 'base = "gpt2-xl-fineweb-edu"\n[[arms]]\noptimizer = "mars-m"')
    assert plan.arms[0].config.model.layers == 48
    assert plan.arms[0].rates == (1.5e-3, 3e-3, 6e-3)


def test_a_base_can_be_a_run_beside_the_study(tmp_path):
    run = preset("wikitext2-mars-adamw")
    (tmp_path / "deep").mkdir()
    write(tmp_path, dumps(run), "run.toml")
    text = 'base = "../run.toml"\n[[arms]]\noptimizer = "mars-adamw"\nvary.model.layers = [2, 4]'
    made = load_study(write(tmp_path / "deep", text, "mine.toml"))
    plan = make_plan(made, command="")
    assert [arm.label for arm in plan.arms] == ["mars-adamw, layers 2", "mars-adamw, layers 4"]
    assert [arm.config.model.layers for arm in plan.arms] == [2, 4]
    assert plan.arms[0].rates == (1.5e-3, 3e-3, 6e-3)
    assert plan.arms[0].config.model.width == run.model.width


def test_a_study_builds_on_another(tmp_path):
    write(tmp_path, FULL, "full.toml")
    text = """
base = "full.toml"
baseline = "lion"
rates.count = 2
rates.factor = 10
[set]
training.batch_size = 8
model.width = 32
[[arms]]
optimizer = "lion"
"""
    made = load_study(write(tmp_path, text))
    assert made.name == "mine"
    assert (made.baseline, made.seeds, made.search_seeds) == ("lion", (4, 2, 9), 2)
    assert (made.rate_count, made.rate_factor) == (2, 10.0)
    assert made.settings == {
        "training.steps": 300,
        "model.layers": 2,
        "model.width": 32,
        "training.batch_size": 8,
    }
    assert [arm.optimizer for arm in made.arms] == ["adamw", "mars-adamw", "mars-m", "lion"]
    assert make_plan(made, command="").arms[-1].rates == (8e-5, 8e-4)


def test_expanding_twice_is_expanding_once(tmp_path):
    once = expanded(load_study(write(tmp_path, FULL)))
    assert expanded(once) == once
    assert all(not arm.varied for arm in once.arms)
    assert len(once.arms) == 6


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("gamma = [0.1234567]", "gamma 0.1234567"),
        ("gamma = [1e-7]", "gamma 1e-07"),
        ("gamma = [1]", "gamma 1"),
        ("clip = ['none']", "clip none"),
        ("exact = [true]", "exact true"),
        ("betas = [[0, 0.123456789]]", "betas 0/0.123456789"),
    ],
)
def test_a_label_says_the_value_exactly(tmp_path, value, words):
    text = (
        f'base = "quickstart"\n[[arms]]\noptimizer = "mars-adamw"\n[arms.vary.optimizer]\n{value}'
    )
    (arm,) = planned(tmp_path, text).arms
    assert arm.label == f"mars-adamw, {words}"
    ((key, made),) = arm.settings.items()
    assert key == f"optimizer.{value.split()[0]}"
    assert differences(preset("quickstart"), arm.config)[2].second == made


LABELS = ["Ours", "ours", "ours!", "ours?", "..", "/", "\u00e9\u00e8", "a/b", "../a-b", "x" * 300]


def test_slugs_are_different_safe_and_keep_to_a_file_names_length(tmp_path):
    base = load_study(write(tmp_path, FULL)).base
    arms = tuple(StudyArm(optimizer="adamw", label=label) for label in [*LABELS, "x" * 301])
    plan = make_plan(Study(name="mine", base=base, arms=arms, seeds=(2**63 - 1,)), command="")
    slugs = [arm.slug for arm in plan.arms]
    assert slugs[0] == "ours"
    assert len(set(slugs)) == len(slugs)
    for slug in slugs:
        assert set(slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.")
        assert slug.strip("-.") == slug != ""
    for trial in search_trials(plan):
        assert max(map(len, [*trial.path.split("/"), trial.config.name])) < 200


def test_a_slug_that_is_taken_does_not_depend_on_how_many_are(tmp_path):
    base = load_study(write(tmp_path, FULL)).base

    def slugs(*labels: str) -> dict[str, str]:
        arms = tuple(StudyArm(optimizer="adamw", label=label) for label in labels)
        plan = make_plan(Study(name="mine", base=base, arms=arms), command="")
        return {arm.label: arm.slug for arm in plan.arms}

    few, many = slugs("a b", "a-b"), slugs("a b", "a  b", "a-b", "A b")
    assert few == {label: many[label] for label in few}
    assert few["a b"] == "a-b"
    assert few["a-b"].startswith("a-b-")


def test_the_shipped_studies_are_the_promised_ones():
    assert names() == [
        "quickstart-comparison",
        "gamma-study",
        "clip-study",
        "optimize-1d-study",
        "exact-study",
        "preconditioner-study",
        "betas-study",
    ]
    folder = resources.files("mars.comparison") / "studies"
    files = {path.name for path in folder.iterdir()}
    assert files == {f"{name}.toml" for name in names()} | {"scale.toml"}


@pytest.mark.parametrize("name", names())
def test_a_shipped_study_can_be_run_and_is_described(name):
    plan = shipped(name)
    best = {arm.label: arm.rates[0] for arm in plan.arms}
    trials = (*search_trials(plan), *confirming_trials(plan, best))
    for trial in trials:
        check(trial.config)
    seeds = len(plan.seeds)
    per_arm = len(plan.arms[0].rates) * plan.search_seeds + seeds - plan.search_seeds
    assert len(trials) == len(plan.arms) * per_arm
    assert seeds >= 3  # for a claim
    assert len(plan.arms[0].rates) >= 3
    assert describe(name) == plan.description
    assert plan.description.endswith(".")


@pytest.mark.parametrize("name", names())
def test_the_shipped_studies_share_their_scale(name):
    """All of them compare: any arm of any study differs from another in optimizer keys alone."""
    first, own = shipped(names()[0]), shipped(name)
    assert (own.seeds, own.search_seeds) == (first.seeds, first.search_seeds)
    for arm in own.arms:
        for key, *_ in differences(first.arms[0].config, arm.config):
            assert key in ("name", "description") or key.startswith("optimizer.")
        assert arm.config.data.prepare == "stdlib"


ASKED = {
    "quickstart-comparison": ("adamw", {"mars-adamw", "mars-m", "adamw", "muon"}),
    "gamma-study": (
        "adamw",
        {"adamw"}
        | {
            f"mars-adamw, gamma {gamma}, betas {beta1}/0.99"
            for gamma in ("0", "0.025", "0.05", "0.1")
            for beta1 in ("0.9", "0.95")
        },
    ),
    "clip-study": (
        "mars-adamw, clip tensor",
        {f"mars-adamw, clip {clip}" for clip in ("tensor", "none", "global")} | {"adamw"},
    ),
    "optimize-1d-study": (
        "mars-adamw, optimize_1d false",
        {"mars-adamw, optimize_1d false", "mars-adamw, optimize_1d true"},
    ),
    "exact-study": ("mars-adamw, approx", {"mars-adamw, approx", "mars-adamw, exact"}),
    "preconditioner-study": (
        "mars-adamw",
        {"mars-adamw", "mars-lion", "mars-shampoo", "mars-m", "adamw", "lion", "muon"},
    ),
    "betas-study": (
        "adamw, betas 0.9/0.95",
        {
            *(f"{arm}, betas 0.9/0.95" for arm in ("adamw", "nadamw")),
            *(f"{arm}, betas 0.95/0.99" for arm in ("adamw", "nadamw")),
            *(f"mars-adamw, gamma {gamma}, betas 0.95/0.99" for gamma in ("0", "0.025")),
        },
    ),
}


@pytest.mark.parametrize("name", names())
def test_a_shipped_study_asks_what_its_name_says(name):
    plan = shipped(name)
    assert (plan.baseline, {arm.label for arm in plan.arms}) == ASKED[name]


@pytest.mark.parametrize("name", names())
def test_no_two_arms_of_a_shipped_study_compute_the_same(name):
    for one, other in combinations(shipped(name).arms, 2):
        assert computed_differences(one.config, other.config) != []


def test_exact_against_approx_is_for_equal_tokens():
    approx, exact = shipped("exact-study").arms
    assert [each.key for each in differences(approx.config, exact.config)] == [
        "name",
        "optimizer.exact",
    ]
    assert not approx.config.optimizer.exact
    assert exact.config.optimizer.exact is True
    assert approx.rates == exact.rates


def test_rates_of_the_shipped_studies_are_in_ratios_of_two():
    for name in names():
        for arm in shipped(name).arms:
            ratios = [high / low for low, high in zip(arm.rates, arm.rates[1:], strict=False)]
            assert all(math.isclose(ratio, 2, rel_tol=1e-4) for ratio in ratios)


def test_a_file_is_a_study_by_its_keys(tmp_path):
    assert is_study(write(tmp_path, FULL))
    assert is_study(write(tmp_path, "search_seeds = 1"))
    assert not is_study(write(tmp_path, dumps(preset("quickstart"))))
    assert not is_study(write(tmp_path, 'description = "a run"'))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("clip-studdy", r'^unknown study "clip-studdy"; did you mean clip-study\? mars compare'),
        ("scale", r'^unknown study "scale"; mars compare --list shows all$'),
    ],
)
def test_an_unknown_study_is_refused_with_the_nearest_name(name, message):
    with pytest.raises(RefusedError, match=message):
        study(name)


def test_planning_imports_no_torch():
    program = (
        "import sys; from mars.comparison.request import Request, resolve; "
        "resolve(Request(config='clip-study'), command=''); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr

"""The pages of the shipped studies say what their results say."""

import json
from pathlib import Path

import pytest
from scipy import stats

from mars.comparison import study
from mars.comparison.request import Request, resolve

STUDIES = Path(__file__).parents[1] / "docs" / "studies"
PAGES = sorted(study.names())


def found(name):
    return json.loads((STUDIES / "results" / f"{name}.json").read_text())


@pytest.mark.parametrize("name", PAGES)
def test_a_page_states_its_command_and_every_arm_with_its_loss(name):
    page = (STUDIES / f"{name}.md").read_text()
    assert f"mars compare {name}\n" in page
    plan = resolve(Request(config=name), command="")
    results = found(name)
    assert [arm["label"] for arm in results["arms"]] == [arm.label for arm in plan.arms]
    for arm in results["arms"]:
        row = next(line for line in page.splitlines() if line.startswith(f"| {arm['label']} |"))
        assert f"{arm['loss']['mean']:.4f}" in row
        assert arm["call"] in row


@pytest.mark.parametrize("name", PAGES)
def test_the_results_of_a_page_are_those_of_its_study(name):
    plan = resolve(Request(config=name), command="")
    results = found(name)
    for arm, planned in zip(results["arms"], plan.arms, strict=True):
        assert {trial["lr"] for trial in arm["trials"]} == set(planned.rates)
        assert arm["losses"].keys() == {str(seed) for seed in plan.seeds}
        assert all(trial["is_complete"] for trial in arm["trials"])


@pytest.mark.parametrize("name", PAGES)
def test_the_differences_of_a_page_are_no_narrower_than_a_paired_t_test(name):
    arms = found(name)["arms"]
    baseline = next(arm for arm in arms if arm["call"] == "baseline")
    for arm in arms:
        if arm is baseline:
            continue
        pairs = [(arm["losses"][seed], baseline["losses"][seed]) for seed in baseline["losses"]]
        ours, theirs = zip(*pairs, strict=True)
        plain = stats.ttest_rel(ours, theirs)
        low, high = plain.confidence_interval()
        difference = arm["paired"]["difference"]
        assert difference["mean"] == pytest.approx((low + high) / 2)
        # Wider only by the allowance for a search on fewer than all seeds.
        assert difference["low"] <= low + 1e-9
        assert difference["high"] >= high - 1e-9
        assert arm["paired"]["p_value"] >= plain.pvalue * (1 - 1e-9)


def test_every_page_is_listed():
    listed = (STUDIES / "README.md").read_text()
    assert len(PAGES) == 7
    assert all(f"]({name}.md)" in listed for name in PAGES)

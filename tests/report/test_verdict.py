"""Sentences: right for every way in which a comparison can end, and no more than the data say."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mars.config.load import override
from mars.report.analysis import analyze
from mars.report.results import AtRate
from mars.report.statistics import Estimate
from mars.report.wording import called, decimals, listed, p_text, plain, signed, value_text
from report.synthetic import MANIFEST, Shape, make_results

INF, NAN = math.inf, math.nan

ADAMW = {0.004: {0: 1.90, 1: 1.93, 2: 1.91, 3: 1.92, 4: 1.94}}
LOWER = {0.01: {0: 1.50, 1: 1.55, 2: 1.52, 3: 1.54, 4: 1.55}}
CLOSE = {0.01: {0: 1.91, 1: 1.92, 2: 1.92, 3: 1.90, 4: 1.94}}
HIGHER = {0.001: {0: 2.10, 1: 2.13, 2: 2.13, 3: 2.11, 4: 2.15}}


def analysis(finals, **kind):
    return analyze(make_results(finals, **kind))


def verdict(finals, **kind):
    return list(analysis(finals, **kind).verdict)


def some(finals, seeds):
    """Return the given losses of some seeds alone."""
    return {lr: {seed: by_seed[seed] for seed in seeds} for lr, by_seed in finals.items()}


def changed(results, label, **changes):
    """Return results in which the trials of one arm have other fields."""
    arms = tuple(
        replace(
            arm,
            rates=tuple(
                AtRate(lr=rate.lr, trials=tuple(replace(t, **changes) for t in rate.trials))
                for rate in arm.rates
            ),
        )
        if arm.label == label
        else arm
        for arm in results.arms
    )
    return replace(results, arms=arms)


def test_a_lower_loss_is_told_with_its_uncertainty():
    assert verdict({"adamw": ADAMW, "mars-m": LOWER}) == [
        "mars-m ended at a lower validation loss than adamw: 1.532 against 1.920, a difference of "
        "-0.388 (95 % interval -0.398 to -0.378, 5 seeds, p < 0.001).",
        "mars-m reached the final loss of adamw after 45.9 % of its tokens (95 % interval 45.5 % "
        "to 46.3 %, 5 seeds).",
    ]


def test_a_higher_loss_is_told_as_plainly():
    assert verdict({"adamw": ADAMW, "mars-lion": HIGHER}) == [
        "mars-lion ended at a higher validation loss than adamw: 2.124 against 1.920, a "
        "difference of +0.204 (95 % interval +0.190 to +0.218, 5 seeds, p < 0.001)."
    ]


def test_what_the_runs_do_not_decide_is_told_as_undecided():
    assert verdict({"adamw": ADAMW, "mars-adamw": CLOSE}) == [
        "For mars-adamw against adamw the runs decide nothing: 1.918 against 1.920, a difference "
        "of -0.002 (95 % interval -0.018 to +0.014, 5 seeds, p = 0.75)."
    ]


def test_claims_come_first_and_p_values_tell_of_the_family():
    sentences = verdict({"mars-adamw": CLOSE, "lion": HIGHER, "adamw": ADAMW, "mars-m": LOWER})
    firsts = [sentence.split()[0] for sentence in sentences]
    assert firsts == ["mars-m", "lion", "For", "mars-m"]
    assert all("after allowing for 3 comparisons" in sentence for sentence in sentences[:3])


def test_a_difference_that_vanishes_among_many_is_told_with_both_p_values():
    barely = {0.01: {0: 1.89, 1: 1.925, 2: 1.90, 3: 1.918, 4: 1.925}}
    finals = {"adamw": ADAMW, "mars-m": barely}
    assert analysis(finals).arms[1].call == "lower"
    many = {**finals, "muon": CLOSE, "mars-adamw": CLOSE, "nadamw": CLOSE, "lion": CLOSE}
    found = analysis(many)
    assert found.arms[1].call == "undecided"
    told = next(sentence for sentence in found.verdict if "For mars-m " in sentence)
    assert "95 % interval -0.0146 to -0.0022" in told
    assert "p = 0.020, but p = 0.10 after allowing for 5 comparisons" in told


def test_one_seed_says_nothing_about_chance():
    finals = {"adamw": some(ADAMW, [0]), "mars-m": some(LOWER, [0])}
    assert verdict(finals) == [
        "One seed: mars-m against adamw ended at a validation loss of 1.500 against 1.900, a "
        "difference of -0.400; one seed says nothing about chance.",
        "mars-m reached the final loss of adamw after 45 % of its tokens (one seed).",
    ]


def test_an_arm_that_ended_higher_is_not_said_to_have_been_faster():
    finals = {"adamw": some(ADAMW, [0]), "lion": some(HIGHER, [0])}
    assert verdict(finals) == [
        "One seed: lion against adamw ended at a validation loss of 2.100 against 1.900, a "
        "difference of +0.200; one seed says nothing about chance."
    ]


def test_two_seeds_have_an_interval_and_make_no_claim():
    finals = {"adamw": some(ADAMW, [0, 1]), "mars-m": some(LOWER, [0, 1])}
    assert verdict(finals)[0] == (
        "Two seeds: mars-m against adamw ended at a validation loss of 1.525 against 1.915, a "
        "difference of -0.390 (95 % interval -0.517 to -0.263, 2 seeds); two seeds are too few "
        "for a claim."
    )


def test_the_losses_that_are_told_are_those_of_the_seeds_in_common():
    finals = {"adamw": ADAMW, "mars-m": some(LOWER, [0, 1, 2])}  # adamw has two seeds more
    assert "than adamw: 1.523 against 1.913, a difference of -0.390 (" in verdict(finals)[0]


def test_identical_losses_are_told_as_such():
    assert verdict({"adamw": ADAMW, "mars-m": {0.01: ADAMW[0.004]}}) == [
        "mars-m ended at exactly the validation loss of adamw on 5 seeds."
    ]


def test_an_arm_that_diverged_is_told_with_how_often():
    finals = {"adamw": some(ADAMW, [0, 1, 2]), "muon": {0.02: {0: 1.5, 1: INF, 2: INF}}}
    assert verdict(finals) == [
        "muon diverged on 2 of 3 seeds at its best rate, 0.02; its loss is not compared."
    ]
    finals["muon"] = {0.02: {0: INF, 1: INF, 2: INF}, 0.04: {0: INF, 1: INF, 2: INF}}
    assert verdict(finals) == [
        "muon diverged in 6 of its 6 runs, at every learning rate; its loss is not compared."
    ]


def test_a_baseline_that_diverged_is_told_first_and_the_others_by_themselves():
    finals = {"adamw": {0.004: {0: 1.9, 1: INF, 2: 1.9}}, "mars-m": some(LOWER, [0, 1, 2])}
    assert verdict(finals) == [
        "Nothing can be compared with the baseline: adamw diverged on 1 of 3 seeds at its best "
        "rate, 0.004.",
        "mars-m ended at a validation loss of 1.523 (95 % interval 1.461 to 1.586, 3 seeds) with "
        "learning rate 0.01.",
    ]


def test_a_comparison_in_which_everything_diverged_says_so():
    finals = {"adamw": {0.004: {0: INF}}, "mars-m": {0.01: {0: INF}}}
    assert verdict(finals) == ["Every arm diverged: no run ended with a loss."]


def test_a_comparison_under_way_is_an_intermediate_result():
    finals = {
        "adamw": {0.004: {0: 1.9, 1: NAN}},
        "mars-m": {0.01: {0: 1.5, 1: None}},
        "muon": {0.01: {0: None, 1: None}},
    }
    sentences = verdict(finals)
    assert sentences[0] == "2 of 6 runs are finished: this is an intermediate result."
    assert sentences[1].startswith("One seed: mars-m")
    assert sentences[2] == "muon has no finished run; its loss is not compared."


def test_runs_that_failed_make_a_result_incomplete_and_not_intermediate():
    finals = {"adamw": {0.004: {0: 1.9, 1: NAN}}, "mars-m": {0.01: {0: 1.5}}}
    found = analysis(finals, failures=("runs/x: out of memory",))
    assert found.verdict[0] == "2 of 3 runs are finished; the others failed."
    assert "1 run failed and left no result: runs/x: out of memory." in found.caveats
    assert not any("not finished" in caveat for caveat in found.caveats)
    finals["muon"] = {0.01: {0: None}}
    found = analysis(finals, failures=("runs/x: out of memory",))
    assert found.verdict[0] == "2 of 4 runs are finished: this is an intermediate result."
    assert "1 run of the plan is not finished." in found.caveats


def test_nothing_finished_yet_is_told_of_each_arm():
    assert verdict({"adamw": {0.004: {0: NAN}}, "mars-m": {0.01: {0: INF}}})[1:] == [
        "adamw has no finished run.",
        "mars-m diverged in its only run, at every learning rate.",
    ]


def test_arms_without_a_common_seed_are_told_apart():
    finals = {"adamw": {0.004: {0: 1.9}}, "mars-m": {0.01: {1: 1.5}}}
    assert verdict(finals) == ["mars-m and adamw have no finished seed in common: not compared."]


def test_a_single_arm_is_described():
    assert verdict({"mars-m": LOWER}, baseline=None) == [
        "mars-m ended at a validation loss of 1.532 (95 % interval 1.505 to 1.559, 5 seeds) with "
        "learning rate 0.01."
    ]
    assert verdict({"mars-m": some(LOWER, [0])}, baseline=None) == [
        "mars-m ended at a validation loss of 1.500 (one seed) with learning rate 0.01."
    ]


def test_a_loss_reached_on_some_seeds_is_told_in_seeds():
    ours = {0.01: {0: 1.0, 1: 1.95}}
    assert verdict({"adamw": some(ADAMW, [0, 1]), "mars-m": ours})[1] == (
        "mars-m reached the final loss of adamw in 1 of 2 seeds."
    )


def test_small_differences_get_the_decimals_that_show_them():
    ours = {0.01: {seed: loss - 0.0004 for seed, loss in ADAMW[0.004].items()}}
    ours[0.01][0] += 0.0001
    assert verdict({"adamw": ADAMW, "mars-m": ours})[0] == (
        "mars-m ended at a lower validation loss than adamw: 1.919620 against 1.920000, a "
        "difference of -0.000380 (95 % interval -0.000436 to -0.000324, 5 seeds, p < 0.001)."
    )


def test_labels_with_settings_read_as_nouns():
    sentences = verdict({"adamw": ADAMW, "mars-m": LOWER})
    renamed = make_results({"adamw": ADAMW, "mars-m": LOWER})
    arms = (renamed.arms[0], replace(renamed.arms[1], label="mars-m, gamma 0.05, clip none"))
    told = analyze(replace(renamed, arms=arms)).verdict
    assert told[0] == sentences[0].replace("mars-m", "mars-m (gamma 0.05, clip none)", 1)


def test_cost_is_told_apart_from_the_verdict():
    shapes = {"mars-m": Shape(step_seconds=0.06, optimizer_bytes=3.3e6)}
    found = analysis({"adamw": ADAMW, "mars-m": LOWER}, shapes=shapes)
    assert found.cost == (
        "A step of mars-m took 1.50 times as long as one of adamw: 60 ms against 40 ms.",
        "mars-m reached the final loss of adamw after 68.9 % of its seconds (95 % interval 68.3 % "
        "to 69.5 %, 5 seeds).",
        "The optimizer state of mars-m is 0.50 times that of adamw: 3.3MB against 6.6MB.",
    )
    assert not any("second" in sentence for sentence in found.verdict)
    assert analysis({"mars-m": LOWER}, baseline=None).cost == ()


def caveat(found, words):
    """Return the one caveat with some words in it, or None."""
    matching = [each for each in found.caveats if words in each]
    assert len(matching) <= 1
    return matching[0] if matching else None


PAIR = {"adamw": ADAMW, "mars-m": LOWER}


def test_fewer_than_three_seeds_are_a_caveat():
    two = analysis({"adamw": ADAMW, "mars-m": some(LOWER, [0, 1]), "muon": LOWER})
    assert caveat(two, "Fewer than three seeds").startswith("Fewer than three seeds for mars-m:")
    assert caveat(analysis(PAIR), "Fewer than three seeds") is None
    assert (
        caveat(analysis({"muon": {0.01: {0: 1.0}}}, baseline=None), "Fewer than three") is not None
    )


def test_a_best_rate_at_the_edge_is_named_with_its_side():
    finals = {"adamw": {**ADAMW, 0.002: HIGHER[0.001]}, "mars-m": {**LOWER, 0.02: CLOSE[0.01]}}
    found = analysis(finals)
    assert caveat(found, "best rate of adamw") == (
        "The best rate of adamw, 0.004, is the highest that was tried: a higher one may be better "
        "still."
    )
    assert caveat(found, "best rate of mars-m") == (
        "The best rate of mars-m, 0.01, is the lowest that was tried: a lower one may be better "
        "still."
    )
    assert caveat(analysis(PAIR), "that was tried: a") is None
    finals["mars-m"] = {0.005: {0: NAN}, **finals["mars-m"]}  # not finished, so not tried
    assert caveat(analysis(finals), "best rate of mars-m, 0.01, is the lowest") is not None


def test_different_numbers_of_rates_are_a_caveat():
    finals = {"adamw": ADAMW, "mars-m": {**LOWER, 0.02: CLOSE[0.01]}, "muon": CLOSE}
    assert "(1 for adamw and muon; 2 for mars-m)" in caveat(analysis(finals), "different numbers")
    assert caveat(analysis(PAIR), "Each arm was tried at one learning rate") is not None
    both = {"adamw": {**ADAMW, 0.002: HIGHER[0.001]}, "mars-m": {**LOWER, 0.02: CLOSE[0.01]}}
    assert caveat(analysis(both), "different numbers") is None
    assert caveat(analysis(both), "at one learning rate") is None


def test_the_size_of_model_and_data_is_a_caveat():
    assert caveat(analysis(PAIR), "larger models") == (
        "One model of 826.1k parameters, trained on 1.0M tokens, or 1.2 a parameter: larger "
        "models, longer runs and other data may order the arms differently."
    )
    bare = changed(changed(make_results(PAIR), "adamw", manifest={}), "mars-m", manifest={})
    told = caveat(analyze(bare), "larger models")
    assert told.startswith("Models of unknown size, trained on 1.0M tokens:")
    larger = changed(make_results(PAIR), "mars-m", manifest={**MANIFEST, "parameters": 2_000_000})
    told = caveat(analyze(larger), "larger models")
    assert told.startswith("Models of 826.1k to 2.0M parameters, trained on 1.0M tokens:")


def test_the_grid_and_the_seeds_of_the_search_are_caveats():
    finals = {"adamw": {**ADAMW, 0.002: HIGHER[0.001]}, "mars-m": {**LOWER, 0.02: CLOSE[0.01]}}
    found = analysis(finals)
    assert "whose neighbours are a factor of 2 apart" in caveat(found, "searched on a grid")
    assert "on the same seeds" in caveat(found, "The best rates were chosen")
    assert caveat(found, "by luck") is None
    wide = analysis({**finals, "muon": {0.01: CLOSE[0.01], 0.03: LOWER[0.01]}}, search_seeds=1)
    assert "factors of 2 to 3 apart" in caveat(wide, "searched on a grid")
    assert "on 1 of the 5 seeds" in caveat(wide, "The best rates were chosen")
    assert caveat(wide, "by luck").startswith("On 1 seed a rate may be chosen by luck.")
    assert caveat(analysis(PAIR), "searched on a grid") is None
    assert caveat(analysis(PAIR), "The best rates were chosen") is None


def test_runs_of_different_environments_are_a_caveat():
    other = {**MANIFEST, "commit": "f" * 40, "torch": "2.14.0", "started": "another day"}
    found = analyze(changed(make_results(PAIR), "mars-m", manifest=other))
    told = caveat(found, "different environments")
    assert f"commit: {MANIFEST['commit']}, {'f' * 40}; torch: 2.13.0, 2.14.0" in told
    assert caveat(analysis(PAIR), "different environments") is None


def with_settings(results, label, *settings):
    config = next(arm for arm in results.arms if arm.label == label).trials[0].config
    return changed(results, label, config=override(config, settings))


def test_different_data_is_a_strong_warning():
    other = {**MANIFEST, "data": {"digest": "cd" * 32}}
    found = analyze(changed(make_results(PAIR), "mars-m", manifest=other))
    assert found.caveats[0] == (
        "The comparison is not equal: the arms had different data (digest abababababab for adamw; "
        "digest cdcdcdcdcdcd for mars-m)."
    )
    assert found.verdict[0].startswith("Beware: the arms did not have the same data")
    assert found.verdict[1].startswith("mars-m ended at a lower")


def test_different_budgets_are_a_strong_warning():
    one_seed = make_results({"adamw": some(ADAMW, [0]), "mars-m": some(LOWER, [0])})
    found = analyze(with_settings(one_seed, "mars-m", "training.steps=1000"))
    assert found.caveats[0] == (
        "The comparison is not equal: the arms had different budgets (1,024,000 tokens for adamw; "
        "2,048,000 tokens for mars-m)."
    )
    assert found.verdict[0].startswith("Beware")
    assert caveat(found, "in more than the optimizer").startswith(
        "The arms differ in more than the optimizer, namely in training.steps"
    )


@pytest.mark.parametrize("setting", ["model.layers=2", "training.validation_sequences=8"])
def test_different_models_or_validations_are_a_strong_warning(setting):
    one_seed = make_results({"adamw": some(ADAMW, [0]), "mars-m": some(LOWER, [0])})
    assert analyze(one_seed).verdict[0].startswith("One seed")
    unequal = analyze(with_settings(one_seed, "mars-m", "model.layers=2", "model.bias=true"))
    assert unequal.caveats[0] == (
        "The comparison is not equal: the arms had different models (layers 4 and bias false for "
        "adamw; layers 2 and bias true for mars-m)."
    )
    assert analyze(with_settings(one_seed, "mars-m", setting)).verdict[0].startswith("Beware")


def test_arms_that_differ_only_in_the_optimizer_have_no_such_caveat():
    found = analysis(PAIR)
    assert caveat(found, "in more than the optimizer") is None
    assert caveat(found, "not equal") is None


def test_what_is_not_finished_is_a_caveat():
    finals = {"adamw": {0.004: {0: 1.9, 1: NAN, 2: None}}, "mars-m": {0.01: {0: 1.5}}}
    assert "2 runs of the plan are not finished." in analysis(finals).caveats
    assert caveat(analysis(PAIR), "not finished") is None


def test_the_order_among_the_others_is_a_caveat_of_three_arms():
    assert caveat(analysis({**PAIR, "muon": CLOSE}), "against adamw only") is not None
    assert caveat(analysis(PAIR), "against adamw only") is None


def test_speed_has_its_caveats():
    found = analysis(PAIR)
    assert caveat(found, "Under a decaying learning rate") is not None
    assert caveat(found, "Seconds were measured") is not None
    alone = analysis({"mars-m": LOWER}, baseline=None)
    assert caveat(alone, "Under a decaying learning rate") is None


FINALS = st.one_of(st.sampled_from([INF, NAN, None]), st.floats(min_value=0.5, max_value=9))
ARMS = st.fixed_dictionaries(
    {"adamw": st.just({0.001: {0: 2.0}})},
    optional={
        label: st.dictionaries(
            st.sampled_from([0.001, 0.002, 0.004]),
            st.dictionaries(st.integers(min_value=0, max_value=4), FINALS, min_size=1),
            min_size=1,
        )
        for label in ("mars-adamw", "mars-m", "muon")
    },
)


@given(ARMS, st.integers(min_value=1, max_value=5), st.sampled_from(["adamw", None]))
def test_any_results_have_a_verdict_of_whole_sentences(finals, search_seeds, baseline):
    found = analysis(finals, search_seeds=search_seeds, baseline=baseline)
    sentences = [*found.verdict, *found.cost, *found.caveats]
    assert len(found.verdict) >= 1
    for sentence in sentences:
        assert sentence.endswith(".")
        assert not any(word in sentence.split() for word in ("nan", "inf", "None", "nan,", "inf,"))
    for arm in found.arms:
        if arm.call in ("lower", "higher"):
            assert len(arm.paired.seeds) >= 3
            assert arm.adjusted_p < 0.05
        if arm.loss is not None:
            assert arm.diverged == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0004, "p < 0.001"), (0.0123, "p = 0.012"), (0.0496, "p = 0.0496"), (0.25, "p = 0.25")],
)
def test_p_values_are_rounded_but_never_across_the_level(value, text):
    assert p_text(value) == text


def test_numbers_read_as_people_write_them():
    assert [signed(x) for x in (0.1234, -0.1234, 0.0, -0.0001)] == [
        *("+0.123", "-0.123", "0.000", "0.000")
    ]
    assert [plain(x) for x in (1.5, 123456.0)] == ["1.500", "1.23e+05"]
    assert [decimals(Estimate(1.0, 1 - m, 1 + m, 3)) for m in (0.5, 0.014, 0.0004, 1e-9)] == [
        *(3, 3, 5, 6)
    ]
    assert decimals(Estimate(0.0004, None, None, 1)) == 5
    assert [listed(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        *("", "a", "a and b", "a, b and c")
    ]
    assert called("mars-m, gamma 0, clip none") == "mars-m (gamma 0, clip none)"
    values = (0.025, 1 / 3, (0.9, 0.95), True, None, "tensor", 3)
    assert [value_text(value) for value in values] == [
        *("0.025", "0.3333333333333333", "0.9/0.95", "true", "none", "tensor", "3")
    ]

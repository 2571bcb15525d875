"""Laws over random configs: what is written reads back equal, and mistakes are only refused.

A message is one line exactly if it is printable: line breaks are not.
"""

import math
from operator import attrgetter

import hypothesis.strategies as st
from hypothesis import HealthCheck, assume, example, given, settings

from mars.config.check import OPTIONS, check
from mars.config.errors import RefusedError
from mars.config.keys import KEYS, Key, Value
from mars.config.load import assign, differences, dumps, loads, override
from mars.config.presets import preset
from mars.config.schema import Run

# A lone surrogate is no text: neither TOML nor UTF-8 can hold it.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.floats(allow_nan=False)
BASE = dumps(preset("gpt2-small-openwebtext-mars-adamw"))


def values(key: Key) -> st.SearchStrategy[Value]:
    """Return all values of a key's type."""
    by_kind: dict[type, st.SearchStrategy[Value]] = {
        str: st.sampled_from(key.choices) if key.choices else TEXTS,
        bool: st.booleans(),
        int: st.integers(-(2**63), 2**63 - 1),
        float: NUMBERS,
        tuple: st.lists(NUMBERS, min_size=key.length or 0, max_size=key.length).map(tuple),
    }
    made = by_kind[key.kind]
    return st.none() | made if key.optional else made


RUNS = st.fixed_dictionaries({}, optional={name: values(key) for name, key in KEYS.items()}).map(
    lambda made: assign(Run(), made)
)


def refusal(text: str, edits: list[str]) -> str:
    """Return why a config is refused, or nothing; any error but a refusal is passed on."""
    try:
        check(override(loads(text), edits))
    except RefusedError as error:
        return str(error)
    return ""


@given(RUNS)
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_dumps_reads_back_as_an_equal_run(run):
    assert loads(dumps(run)) == run
    assert repr(loads(dumps(run))) == repr(run)  # -0.0 and types too


@given(RUNS, RUNS)
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
def test_differences_are_what_turns_one_run_into_the_other(first, second):
    found = differences(first, second)
    assert assign(first, {each.key: each.second for each in found}) == second
    assert assign(second, {each.key: each.first for each in found}) == first


@given(st.data())
@settings(max_examples=150)
def test_a_value_written_by_dumps_can_be_set(data):
    key = KEYS[data.draw(st.sampled_from(list(KEYS)))]
    run = assign(Run(), {key.name: data.draw(values(key))})
    start = f"{key.last_part} = "
    _, _, section = dumps(run).partition(f"[{key.name.rpartition('.')[0]}]")
    text = section or dumps(run)
    written = [line for line in text.split("\n") if line.startswith(start)]
    assume(attrgetter(key.name)(run) is not None)
    assert override(Run(), [f"{key.name}={written[0].removeprefix(start)}"]) == run


@given(st.lists(st.tuples(st.integers(0, len(BASE)), st.integers(0, 8), TEXTS), max_size=4))
@settings(max_examples=300)
def test_no_edit_of_a_config_raises_anything_but_a_refusal(edits):
    text = BASE
    for position, deleted, inserted in edits:
        text = text[:position] + inserted + text[position + deleted :]
    assert refusal(text, []).isprintable()


LINES = st.sampled_from(BASE.splitlines())
SCRAPS = st.sampled_from(
    ["nan", "inf", "-1", "0", "1e999", "true", "''", "[]", "{}", "[[]]", "none", "0x" + "f" * 4000]
)


@given(st.lists(st.tuples(LINES, SCRAPS | TEXTS | st.integers().map(str)), max_size=3))
@settings(max_examples=300)
def test_no_value_in_a_config_raises_anything_but_a_refusal(edits):
    text = BASE
    for line, value in edits:
        key, equals, _ = line.partition(" = ")
        text = text.replace(line, key + equals + (value if equals else ""))
    assert refusal(text, []).isprintable()


SETTINGS = st.builds(
    "{}{}{}".format,
    st.sampled_from([*KEYS, "gamma", "zebra", ""]),
    st.sampled_from(["=", " = ", ""]),
    SCRAPS | st.text() | st.integers().map(str) | st.floats().map(str),
)


@given(st.lists(SETTINGS | st.text(), max_size=3))
@example(["betas=" + "[" * 3000])
@example(["optimizer.lr=" + "[" * 150 + "]" * 150])
@settings(max_examples=300)
def test_no_override_raises_anything_but_a_refusal(edits):
    assert refusal(BASE, edits).isprintable()


POSSIBLE = {
    "optimizer.lr": st.floats(1e-9, 1e9),
    "optimizer.weight_decay": st.floats(0, 1e9),
    "optimizer.betas": st.tuples(*[st.floats(0, 1, exclude_max=True)] * 2),
    "optimizer.fused": st.booleans(),
    "schedule.kind": st.sampled_from(["cosine", "linear", "wsd", "multistep", "constant"]),
    "schedule.milestones": st.sets(
        st.floats(0, 1, exclude_min=True, exclude_max=True), min_size=1
    ).map(lambda found: tuple(sorted(found))),
    "training.steps": st.integers(1, 10**9),
    "training.grad_clip": st.floats(0, 1e9),
    "model.dropout": st.floats(0, 1, exclude_max=True),
    "checkpoint.keep": st.integers(1, 10**9),
    "seed": st.integers(0, 2**63 - 1),
    "description": TEXTS,
}


@given(st.fixed_dictionaries({}, optional=POSSIBLE), st.sampled_from(list(OPTIONS)))
@settings(max_examples=150)
def test_a_possible_run_is_not_refused(made, name):
    run = assign(Run(), {**made, "optimizer.name": name})
    assert refusal(dumps(run), []) == ""


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_the_way_out_of_sizes_that_do_not_divide_is_one(whole, part):
    for sizes in (
        {"model.width": whole, "model.heads": part},
        {"training.batch_size": whole, "training.micro_batch_size": part},
    ):
        run = assign(Run(), sizes)
        try:
            check(run)
        except RefusedError as error:
            key = str(error).split(" ")[0]
            advice = int(str(error).rsplit("use ", 1)[1])
            assert whole % part != 0
            check(assign(run, {key: advice}))
        else:
            assert math.gcd(whole, part) == part

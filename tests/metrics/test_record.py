import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mars.config.errors import RefusedError
from mars.metrics.record import Record

OWN_KEYS = ["step", "tokens", "samples", "seconds", "split", "loss", "lr"]

whole = st.integers(min_value=0, max_value=2**63)
names = st.text(max_size=20).filter(lambda name: name not in OWN_KEYS)


def records(numbers):
    return st.builds(
        Record,
        step=whole,
        split=st.sampled_from(["train", "val"]),
        loss=numbers,
        lr=numbers,
        seconds=numbers,
        count=whole,
        unit=st.sampled_from(["tokens", "samples"]),
        extra=st.dictionaries(names, numbers | st.integers(-(2**40), 2**40), max_size=5),
    )


def record(**changes):
    given_ = {"step": 3, "split": "train", "loss": 2.5, "lr": 1e-3, "seconds": 0.5, "count": 48}
    return Record(**given_ | changes)


@given(records(st.floats(allow_nan=False, allow_infinity=False)))
def test_a_finite_record_survives_json_exactly(made):
    assert Record.from_json(made.as_json()) == made


@given(records(st.floats()))
def test_every_record_is_one_line_of_standard_json(made):
    def refuse(constant):
        raise AssertionError(constant)

    line = made.as_json()
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert json.loads(line, parse_constant=refuse)["step"] == made.step
    assert Record.from_json(line).as_json() == line


def test_the_keys_come_in_the_order_of_the_schema():
    line = record(unit="samples", extra={"grad_norm": 0.25, "skipped_steps": 2}).as_json()
    assert line == (
        '{"step": 3, "samples": 48, "seconds": 0.5, "split": "train", "loss": 2.5, "lr": 0.001, '
        '"grad_norm": 0.25, "skipped_steps": 2}'
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null_and_read_as_nan(value):
    line = record(loss=value, extra={"grad_norm": value}).as_json()
    assert json.loads(line)["loss"] is None
    assert json.loads(line)["grad_norm"] is None
    read = Record.from_json(line)
    assert math.isnan(read.loss)
    assert math.isnan(read.extra["grad_norm"])


class Tensor:
    def __repr__(self):
        return "tensor(2.)"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": "test"}, "split must be one of train, val, got 'test'"),
        ({"unit": "bytes"}, "unit must be one of tokens, samples, got 'bytes'"),
        ({"step": -1}, "step must be a whole number from 0, got -1"),
        ({"step": True}, "step must be a whole number from 0, got True"),
        ({"count": 1.5}, "tokens must be a whole number from 0, got 1.5"),
        ({"loss": None}, "loss must be a plain number, got None; pass float(...)"),
        ({"loss": Tensor()}, "loss must be a plain number, got tensor(2.); pass float(...)"),
        ({"seconds": "1"}, "seconds must be a plain number, got '1'; pass float(...)"),
        ({"extra": {"mfu": True}}, "mfu must be a plain number, got True; pass float(...)"),
        ({"extra": {"loss": 1.0}}, "an extra measure cannot be called 'loss'; rename it"),
        ({"extra": {"samples": 1}}, "an extra measure cannot be called 'samples'; rename it"),
    ],
)
def test_what_is_no_record_is_refused(changes, message):
    with pytest.raises(RefusedError, match=f"^{re.escape(message)}$"):
        record(**changes)


GOOD = json.loads(record().as_json())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "one JSON object"),
        ("{", "one JSON object"),
        ("[1]", r"one JSON object, got \[1\]"),
        (b"\xff\xfe\x00", "one JSON object"),
        (json.dumps(GOOD)[:-1], "one JSON object"),
        (json.dumps(GOOD | {"loss": math.nan}), "NaN is not standard JSON; null stands for it"),
        (json.dumps({k: v for k, v in GOOD.items() if k != "lr"}), "a record needs lr"),
        (json.dumps({k: v for k, v in GOOD.items() if k != "tokens"}), "either tokens or samples"),
        (json.dumps(GOOD | {"samples": 1}), "either tokens or samples"),
        (json.dumps(GOOD | {"step": None}), "step must be a whole number"),
        (json.dumps(GOOD | {"note": "hello"}), "note must be a plain number"),
    ],
)
def test_a_line_that_is_no_record_is_refused(line, message):
    with pytest.raises(RefusedError, match=message):
        Record.from_json(line)


def test_measures_are_what_sinks_chart():
    assert record(extra={"accuracy": 0.5}).measures() == {"loss": 2.5, "lr": 1e-3, "accuracy": 0.5}

"""From TOML and overrides to a run, and back."""

import ast
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import mars.config
from mars.config import load
from mars.config.errors import RefusedError
from mars.config.keys import KEYS, SECTIONS
from mars.config.load import (
    Difference,
    Entry,
    differences,
    documentation,
    dumps,
    load_file,
    loads,
    override,
)
from mars.config.schema import Optimizer, Run, Schedule, Training

TEXT = """
name = "mine"
seed = 3

[optimizer]
name = "muon"
lr = 1
betas = [0, 0.5]

[schedule]
milestones = [0.25, 0.5, 0.75]

[training]
compile = true
micro_batch_size = 4
"""
MADE = Run(
    name="mine",
    seed=3,
    optimizer=Optimizer(name="muon", lr=1.0, betas=(0.0, 0.5)),
    schedule=Schedule(milestones=(0.25, 0.5, 0.75)),
    training=Training(compile=True, micro_batch_size=4),
)


def test_what_a_text_leaves_out_has_its_default():
    assert loads("") == Run()
    assert loads(TEXT) == MADE


def test_an_integer_where_a_number_is_wanted_becomes_a_float():
    assert repr(loads(TEXT).optimizer.lr) == "1.0"
    assert repr(loads(TEXT).optimizer.betas) == "(0.0, 0.5)"


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte-order mark"])
def test_a_file_is_read_as_its_text(tmp_path, mark):
    (tmp_path / "run.toml").write_bytes(mark + TEXT.replace("mine", "größe").encode())
    assert load_file(tmp_path / "run.toml") == replace(MADE, name="größe")


def test_dumps_loads_as_an_equal_run():
    assert loads(dumps(MADE)) == MADE
    assert loads(dumps(Run())) == Run()


def test_dumps_has_every_section_in_order_under_a_comment():
    lines = dumps(MADE).splitlines()
    sections = [line for line in lines if line.startswith("[")]
    assert sections == [f"[{name}]" for name in SECTIONS]
    for section, doc in zip(sections, SECTIONS.values(), strict=True):
        assert lines[lines.index(section) - 1] == f"# {doc}"


def test_dumps_leaves_out_what_is_none_and_nothing_else():
    written = [line.split(" = ")[0] for line in dumps(Run()).splitlines() if " = " in line]
    assert written == [key.last_part for key in KEYS.values() if key.default is not None]


@pytest.mark.parametrize(
    "text", ["", 'a "b" \\c', "a\nb\tc\0\x7f", "größe 火 🔥", "\u2028\x85", "'"]
)
def test_any_text_survives_dumps(text):
    run = replace(Run(), description=text)
    assert loads(dumps(run)) == run


@pytest.mark.parametrize("number", [1e-300, 5e-324, 1.7e308, 0.1 + 0.2, 1e16, -0.0])
def test_any_number_survives_dumps(number):
    run = replace(Run(), optimizer=Optimizer(lr=number))
    assert repr(loads(dumps(run)).optimizer.lr) == repr(number)


def test_only_optional_keys_are_none_by_default():
    # Otherwise dumps could leave out a None that loads as something else.
    assert all(key.optional == (key.default is None) for key in KEYS.values())


def test_differences_name_the_keys_and_both_values():
    assert differences(MADE, MADE) == []
    assert differences(Run(), replace(MADE, schedule=Schedule())) == [
        Difference("name", "run", "mine"),
        Difference("seed", 0, 3),
        Difference("optimizer.name", "mars-adamw", "muon"),
        Difference("optimizer.lr", 3e-3, 1.0),
        Difference("optimizer.betas", None, (0.0, 0.5)),
        Difference("training.micro_batch_size", None, 4),
        Difference("training.compile", False, True),
    ]


def test_every_key_is_documented():
    entries = documentation()
    assert [entry.key for entry in entries] == list(KEYS)
    assert len(entries) == 71
    assert all(entry.doc.endswith((".", ")", "...")) for entry in entries)
    by_key = {entry.key: entry for entry in entries}
    assert by_key["seed"] == Entry(
        "seed", "an integer", "0", "Seed of initial weights, data order and dropout."
    )
    assert by_key["data.prepare"][1:3] == ('one of "stdlib", "digits"', "")
    assert by_key["optimizer.betas"][1:3] == ("an array of 2 numbers", "")
    assert by_key["schedule.milestones"][1:3] == ("an array of numbers", "[0.5, 0.75]")
    assert by_key["metrics.wandb"][1:3] == ('one of "off", "offline", "online"', '"off"')
    assert by_key["model.bias"][1:3] == ("true or false", "false")


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("optimizer.lr=3e-4", "optimizer.lr", 3e-4),
        (" optimizer.lr = 1 ", "optimizer.lr", 1.0),
        ("gamma=0.05", "optimizer.gamma", 0.05),
        ("every=7", "checkpoint.every", 7),
        ("training.steps=10_000", "training.steps", 10_000),
        ("name=run-2", "name", "run-2"),
        ("name=2026", "name", "2026"),
        ("name=true", "name", "true"),
        ('name="with spaces"', "name", "with spaces"),
        ("name=with spaces", "name", "with spaces"),
        ("description=a=b", "description", "a=b"),
        ("description=none", "description", "none"),
        ("wandb_project=", "metrics.wandb_project", ""),
        ("optimizer.name=muon", "optimizer.name", "muon"),
        ('optimizer.name="muon"', "optimizer.name", "muon"),
        ("compile=true", "training.compile", True),
        ("exact=false", "optimizer.exact", False),
        ("betas=[0.9,0.95]", "optimizer.betas", (0.9, 0.95)),
        ("betas=0.9,0.95", "optimizer.betas", (0.9, 0.95)),
        ("milestones=0.5", "schedule.milestones", (0.5,)),
        ("milestones=[]", "schedule.milestones", ()),
        ("clip=none", "optimizer.clip", "none"),
        ("data.path=/data/a b/c", "data.path", "/data/a b/c"),
        ("description=1\nseed = 5", "description", "1\nseed = 5"),
    ],
)
def test_an_override_changes_its_key_alone(setting, key, value):
    (change,) = differences(Run(), override(Run(), [setting]))
    assert (change.key, change.second) == (key, value)
    assert type(change.second) is type(value)


@pytest.mark.parametrize(
    "key", [key for key in KEYS.values() if key.optional], ids=lambda k: k.name
)
def test_nothing_resets_an_optional_key(key):
    example = {float: "0.5", int: "5", bool: "true", tuple: "0.1,0.2", str: "text"}
    text = key.choices[0] if key.choices else example[key.kind]
    changed = override(Run(), [f"{key.name}={text}"])
    assert len(differences(Run(), changed)) == 1
    assert override(changed, [f"{key.name}="]) == Run()
    if "none" not in key.choices:
        assert override(changed, [f"{key.name}=none"]) == Run()


def test_the_last_of_several_overrides_wins_and_the_run_stays_as_it_was():
    run = Run()
    assert override(run, ["seed=1", "lr=0.5", "optimizer.lr=0.25"]) == replace(
        run, seed=1, optimizer=Optimizer(lr=0.25)
    )
    assert run == Run()


def test_a_short_name_of_several_keys_is_refused_with_the_candidates(monkeypatch):
    second = replace(KEYS["checkpoint.every"], name="metrics.every")
    monkeypatch.setattr(load, "KEYS", {**KEYS, second.name: second})
    with pytest.raises(RefusedError, match=r"every = \"3\" could be any of checkpoint.every, metr"):
        override(Run(), ["every=3"])
    assert override(Run(), ["checkpoint.every=3"]).checkpoint.every == 3


def test_every_key_but_the_name_can_be_set_by_its_last_part():
    last_parts = [key.last_part for key in KEYS.values()]
    assert {part for part in last_parts if last_parts.count(part) > 1} == {"name"}
    assert override(Run(), ["name=a"]) == replace(Run(), name="a")


@pytest.mark.parametrize(
    "path", sorted(Path(mars.config.__file__).parent.glob("*.py")), ids=lambda path: path.name
)
def test_the_room_imports_itself_and_the_standard_library_alone(path):
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    outside = [name for name in names if name.split(".")[0] not in sys.stdlib_module_names]
    assert [name for name in outside if not name.startswith("mars.config")] == []

"""Which tasks names stand for, where their data is, and what is refused."""

import json
from pathlib import Path

import pytest

from evaluation.trained import DATA, byte_subject, need_data, no_network
from mars.config.errors import RefusedError
from mars.evaluation.harness import hushed, run_tasks
from mars.evaluation.published import NINE, primary_metric, published_rows
from mars.evaluation.scoring import Compute
from mars.evaluation.tasks import Asked, check_asked, data_of, load_tasks, parse_names

ROWS = [{"question": f"What is {n}?", "choices": ["one", "two"], "answer": n % 2} for n in range(5)]
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: {kind}
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: answer
{more}
"""
CHOICE = "doc_to_choice: '{{choices}}'\nmetric_list:\n  - metric: acc"


def write_task(folder: Path, *, name: str = "own", kind: str = "multiple_choice", more=CHOICE):
    folder.mkdir(exist_ok=True)
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / f"{name}.yaml").write_text(TASK.format(name=name, data=data, kind=kind, more=more))
    return folder


def load(names: str, task_path: Path | None = None, **options):
    wanted = Asked(names=parse_names(names), task_path=task_path, **options)
    check_asked(wanted)
    with hushed(), no_network() as tried:
        loaded = load_tasks(wanted)
    assert tried == []
    return loaded


def test_the_nine_tasks_have_one_name():
    assert parse_names("mars9") == NINE
    assert len(NINE) == len(set(NINE)) == 9
    assert parse_names("piqa, mars9,own")[0] == "piqa"
    assert sorted(parse_names("piqa, mars9,own")) == sorted([*NINE, "own"])


@pytest.mark.parametrize("text", ["", " ", ",,"])
def test_no_name_is_no_task(text):
    with pytest.raises(RefusedError, match="names no task; use mars9"):
        parse_names(text)


@pytest.mark.parametrize(
    ("parameters", "size", "means"),
    [
        (124_000_000, "GPT-2 small", (41.19, 45.72, 45.93)),
        (1_500_000_000, "GPT-2 XL", (50.48, 55.43, 56.41)),
    ],
)
def test_published_rows_have_their_published_means(parameters, size, means):
    found, rows = published_rows(parameters)
    assert found == size
    for row, mean in zip(rows.values(), means, strict=True):
        assert tuple(row) == NINE
        # Published with two decimals.
        assert 100 * sum(row.values()) / 9 == pytest.approx(mean, abs=0.006)


@pytest.mark.parametrize(
    ("metrics", "primary"),
    [
        ({"acc": 1.0, "acc_norm": 0.5}, "acc_norm"),
        ({"acc": 1.0}, "acc"),
        ({"word_perplexity": 30.0}, "word_perplexity"),
        ({}, None),
    ],
)
def test_a_task_is_judged_by_the_published_metric(metrics, primary):
    assert primary_metric(metrics) == primary


def test_a_local_task_file_has_its_own_data(tmp_path):
    loaded = load("own", write_task(tmp_path / "tasks"))
    assert list(loaded["tasks"]) == ["own"]
    assert len(loaded["tasks"]["own"].eval_docs) == len(ROWS)
    assert dict(data_of(loaded))["own"]["split"] == "test"


@pytest.mark.parametrize(
    ("task", "count"), [("hellaswag", 10042), ("piqa", 1838), ("arc_easy", 2376), ("sciq", 1000)]
)
def test_packaged_tasks_read_local_data(task, count):
    need_data()
    loaded = load(task, DATA / "lm-eval")
    assert len(loaded["tasks"][task].eval_docs) == count
    assert loaded["tasks"][task].config.num_fewshot == 0


def test_the_nine_are_known_without_the_index_of_all_tasks(monkeypatch):
    from lm_eval.tasks import TaskManager

    made = []
    build = TaskManager.__init__

    def counted(self, *args, **options):
        made.append(options["include_defaults"])
        build(self, *args, **options)

    monkeypatch.setattr(TaskManager, "__init__", counted)
    with pytest.raises(RefusedError, match=r"task arc_easy cannot be loaded: .*--task-path"):
        load("mars9")
    assert made == [False, False]


def test_an_unknown_task_is_answered_with_the_nearest_name(tmp_path):
    with pytest.raises(RefusedError, match="there is no task 'hellaswga'; did you mean hellaswag"):
        load("hellaswga", tmp_path)


def test_data_that_needs_the_network_is_one_line():
    with pytest.raises(RefusedError, match="task openbookqa cannot be loaded") as refusal:
        load("openbookqa")
    assert "\n" not in str(refusal.value)
    assert "give local data with --task-path" in str(refusal.value)


def test_damaged_data_is_named(tmp_path):
    (tmp_path / "piqa").mkdir()
    (tmp_path / "piqa" / "validation.jsonl").write_text('{"goal": ')
    with pytest.raises(RefusedError, match=r"task piqa cannot be loaded: .*check its task file"):
        load("piqa", tmp_path)


def test_a_task_that_lets_the_model_write_is_refused(tmp_path):
    more = "generation_kwargs: {until: ['x']}\nmetric_list:\n  - metric: exact_match"
    folder = write_task(tmp_path / "tasks", kind="generate_until", more=more)
    with pytest.raises(RefusedError, match="task own lets the model write"):
        load("own", folder)


def test_examples_need_a_training_split(tmp_path):
    folder = write_task(tmp_path / "tasks")
    with pytest.raises(RefusedError, match="--num-fewshot 2: task own has no training split"):
        load("own", folder, num_fewshot=2)
    assert load("own", folder, num_fewshot=0)["tasks"]["own"].config.num_fewshot == 0


def test_a_task_that_is_zero_shot_by_its_file_stays_so(tmp_path):
    folder = write_task(tmp_path / "tasks", more=f"num_fewshot: 0\n{CHOICE}")
    with pytest.raises(RefusedError, match="--num-fewshot 2: the file of task own says 0"):
        load("own", folder, num_fewshot=2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"limit": 0}, "--limit must be at least 1, got 0"),
        ({"num_fewshot": -1}, "--num-fewshot must be at least 0, got -1"),
        ({"seed": -3}, "--seed must be at least 0, got -3"),
        ({"task_path": Path("absent")}, "--task-path absent is no folder"),
    ],
)
def test_impossible_numbers_are_refused_by_name(options, words):
    with pytest.raises(RefusedError, match=words):
        check_asked(Asked(names=("piqa",), **options))


def test_a_group_has_the_examples_of_its_tasks(tmp_path):
    folder = tmp_path / "tasks"
    for name in ("first", "second"):
        write_task(folder, name=name)
    (folder / "both.yaml").write_text(
        "group: both\ntask: [first, second]\n"
        "aggregate_metric_list:\n  - metric: acc\n    weight_by_size: true\n"
    )
    wanted = Asked(names=("both",), task_path=folder, limit=3)
    with hushed():
        loaded = load_tasks(wanted)
        found = run_tasks(byte_subject(), loaded, wanted, compute=Compute())
    assert set(found) == {"both", "first", "second"}
    assert (found["both"].examples, found["both"].available) == (6, 10)
    parts = [found[name].metrics["acc"] for name in ("first", "second")]
    assert found["both"].metrics["acc"] == pytest.approx(sum(parts) / 2)
    assert found["both"].data is None

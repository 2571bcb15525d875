"""lm_eval on our model and on the exported folder: the same answers, offline."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from evaluation.trained import DATA, TASKS, byte_subject, need_data, no_network
from mars.evaluation.export import export_run
from mars.evaluation.harness import MarsLM, evaluate, hushed, run_tasks
from mars.evaluation.scoring import Compute
from mars.evaluation.subject import open_subject
from mars.evaluation.tasks import Asked, load_tasks

LIMIT = 25
FEWSHOT = """
task: arc_fewshot
dataset_path: json
output_type: multiple_choice
dataset_kwargs:
  data_files: {{train: {arc}/validation.jsonl, test: {arc}/test.jsonl}}
training_split: train
test_split: test
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: "{{{{choices.label.index(answerKey)}}}}"
doc_to_choice: "{{{{choices.text}}}}"
metric_list:
  - metric: acc
"""


def asked(*names: str, limit: int | None = LIMIT, num_fewshot: int | None = None) -> Asked:
    task_path = DATA / "lm-eval"
    return Asked(names=names, task_path=task_path, limit=limit, num_fewshot=num_fewshot)


def samples(lm, names) -> dict:
    """Return everything that lm_eval says about tasks."""
    with hushed():
        loaded = load_tasks(asked(*names))
        return evaluate(lm=lm, task_dict=loaded, limit=LIMIT, bootstrap_iters=10, log_samples=True)


@pytest.fixture(scope="module")
def pair(english, tmp_path_factory):
    """Our model and lm_eval's own, on the folder that we export."""
    from lm_eval.models.huggingface import HFLM

    subject = open_subject(str(english))
    folder = tmp_path_factory.mktemp("export") / "model"
    export_run(subject, folder)
    theirs = HFLM(str(folder), device="cpu", dtype="float32", batch_size=8)
    return MarsLM(subject, Compute(batch_size=8)), theirs


@pytest.fixture(scope="module")
def both(pair):
    with no_network() as tried:
        found = [samples(lm, TASKS) for lm in pair]
    assert tried == []
    return found


@pytest.mark.parametrize("task", TASKS)
def test_accuracies_are_identical_to_those_of_the_exported_folder(task, both):
    ours, theirs = (each["results"][task] for each in both)
    for metric in ("acc,none", "acc_norm,none", "acc_stderr,none", "acc_norm_stderr,none"):
        assert ours[metric] == theirs[metric]
    # A model that always gives the same answer would agree with anything.
    chosen = [
        max(range(len(sample["filtered_resps"])), key=lambda i: sample["filtered_resps"][i][0])
        for sample in both[0]["samples"][task]
    ]
    assert len(set(chosen)) > 1


@pytest.mark.parametrize("task", TASKS)
def test_log_likelihoods_are_those_of_the_exported_folder(task, both):
    ours, theirs = (each["samples"][task] for each in both)
    assert len(ours) == len(theirs) == LIMIT
    for one, other in zip(ours, theirs, strict=True):
        assert one["arguments"] == other["arguments"]
        for (found, greedy), (expected, is_greedy) in zip(
            one["filtered_resps"], other["filtered_resps"], strict=True
        ):
            assert found == pytest.approx(expected, abs=2e-5)
            assert greedy == is_greedy


def test_rolling_log_likelihoods_are_those_of_the_exported_folder(pair):
    from lm_eval.api.instance import Instance

    text = (DATA / "wikitext-2" / "test.txt").read_text()
    requests = [
        Instance("loglikelihood_rolling", {}, (part,), 0)
        for part in (text[:90], text[500:3000], text[100:160])
    ]
    ours, theirs = (lm.loglikelihood_rolling(requests, disable_tqdm=True) for lm in pair)
    assert len(ours) == 3
    # Hundreds of tokens each.
    assert ours == pytest.approx(theirs, abs=2e-3)


def test_a_request_without_context_begins_at_the_end_of_text(pair):
    from lm_eval.api.instance import Instance

    requests = [Instance("loglikelihood", {}, ("", " The town"), 0)]
    ours, theirs = (lm.loglikelihood(requests) for lm in pair)
    assert ours[0][0] == pytest.approx(theirs[0][0], abs=1e-4)


def test_examples_shown_are_of_the_seed(english, tmp_path):
    subject = open_subject(str(english))
    (tmp_path / "arc.yaml").write_text(FEWSHOT.format(arc=DATA / "lm-eval" / "arc_easy"))
    shown = []
    for seed in (1, 1, 2):
        wanted = Asked(
            names=("arc_fewshot",), task_path=tmp_path, limit=5, num_fewshot=2, seed=seed
        )
        with hushed():
            loaded = load_tasks(wanted)
            found = run_tasks(subject, loaded, wanted, compute=Compute())
        assert found["arc_fewshot"].num_fewshot == 2
        texts = [instance.args[0] for instance in loaded["tasks"]["arc_fewshot"].instances]
        assert all(text.count("Question: ") == 3 for text in texts)
        shown.append(texts)
    assert shown[0] == shown[1] != shown[2]


def test_results_say_what_was_measured(english):
    subject = open_subject(str(english))
    wanted = asked("sciq", limit=10)
    with hushed():
        found = run_tasks(subject, load_tasks(wanted), wanted, compute=Compute())
    result = found["sciq"]
    assert (result.examples, result.available, result.num_fewshot) == (10, 1000, 0)
    assert result.primary == "acc_norm"
    assert result.metrics.keys() == result.errors.keys() == {"acc", "acc_norm"}
    # The standard error of a mean of ten zeros and ones.
    share = result.metrics["acc"]
    assert result.errors["acc"] == pytest.approx((share * (1 - share) / 9) ** 0.5)
    assert result.data == {"path": "json", "name": None, "split": "validation"}


def test_bytes_longer_than_the_context_are_scored():
    need_data()
    subject = byte_subject()
    wanted = asked("hellaswag", limit=3)
    with hushed():
        found = run_tasks(subject, load_tasks(wanted), wanted, compute=Compute(batch_size=4))
    assert 0 <= found["hellaswag"].metrics["acc"] <= 1
    assert found["hellaswag"].examples == 3


def test_transformers_opens_the_export_without_remote_code(english, tmp_path):
    subject = open_subject(str(english))
    export_run(subject, tmp_path / "model")
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert opened.config.scale_attn_by_inverse_layer_idx
    given = torch.randint(50257, (2, 96), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(opened(given).logits, subject.model(given), rtol=1e-5, atol=1e-5)

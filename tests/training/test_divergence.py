"""Runs that diverge: when they are ended, what they leave, and that a kill changes none of it."""

import json
import os
import shutil
import signal
from contextlib import nullcontext

import pytest
import torch

from mars import checkpoint, cli
from mars.config.errors import FailedError
from mars.training.step import Stepper, Taken
from training.runs import assert_same_run, make_corpus, records, run, write_config

STOP = ("training.stop_diverged=true",)
HOT = (*STOP, "optimizer.lr=1000")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def losses(monkeypatch):
    """Let the steps of a run have the losses given, while it trains as ever."""

    def arrange(values: list[float]) -> None:
        given = iter(values)
        whole = Stepper.__call__

        def pretending(self, *args, **kwargs):
            taken = whole(self, *args, **kwargs)
            loss = torch.tensor(next(given))
            return Taken(loss, taken.grad_norm, taken.is_skipped, taken.measures)

        monkeypatch.setattr(Stepper, "__call__", pretending)

    return arrange


def ended_at(out) -> tuple[int, float | None]:
    """Return the step of the last record, and what it says of divergence."""
    last = records(out)[-1]
    return last["step"], last.get("diverged")


def test_a_rate_far_too_high_ends_the_run_and_says_so(corpus, tmp_path, capsys):
    config = write_config(tmp_path, corpus, steps=100, optimizer="adamw")
    arguments = ["train", str(config), "--out", str(tmp_path / "run")]
    assert cli.main([*arguments, "--set", *HOT]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"mars: {tmp_path / 'run'} diverged at step 30: 20 losses in a row")
    assert err.endswith("lower optimizer.lr\n")
    assert err.count("\n") == 1
    last = records(tmp_path / "run")[-1]
    assert (last["step"], last["split"], last["diverged"]) == (30, "val", 1.0)
    assert last["loss"] > records(tmp_path / "run")[0]["loss"]
    assert checkpoint.newest_step(tmp_path / "run" / "checkpoints") == 30


def test_without_the_key_such_a_run_goes_to_its_end(corpus, tmp_path):
    config = write_config(tmp_path, corpus, steps=40, optimizer="adamw")
    run(config, tmp_path / "run", "optimizer.lr=1000")
    assert ended_at(tmp_path / "run") == (40, None)


@pytest.mark.parametrize(
    ("values", "settings", "end"),
    [
        # 48 steps: the first 5 are not looked at, or as many as the warm-up has.
        ([2.0] + 47 * [3.0], (), (25, 1.0)),
        ([2.0] + 47 * [3.0], ("warmup_steps=20",), (40, 1.0)),
        ([2.0] + 47 * [float("nan")], (), (25, 1.0)),
        ([2.0] + 47 * [float("inf")], (), (25, 1.0)),
        # The measure is the first loss that is finite.
        ([float("nan"), 2.0] + 46 * [3.0], (), (25, 1.0)),
        ([float("inf")] + 47 * [float("inf")], (), (25, 1.0)),
        # One loss that is not above starts the count anew.
        ([2.0] + 23 * [3.0] + [2.0] + 23 * [3.0], (), (45, 1.0)),
        ([2.0] + 23 * [3.0] + [2.0] + 19 * [3.0] + 4 * [1.0], (), (48, None)),
        (48 * [2.0], (), (48, None)),
        ([2.0] + 27 * [1.0] + 20 * [3.0], (), (48, 1.0)),
    ],
)
def test_twenty_watched_losses_in_a_row_that_are_not_below_the_first_are_divergence(
    values, settings, end, corpus, tmp_path, losses
):
    losses(values)
    config = write_config(tmp_path, corpus, steps=48, validate_every=25)
    is_told = pytest.raises(FailedError, match=f"diverged at step {end[0]}:")
    with is_told if end[1] else nullcontext():
        run(config, tmp_path / "run", *STOP, *settings)
    assert ended_at(tmp_path / "run") == end
    # Where the last step is a validation's anyway there is one record of it.
    validated = [r["step"] for r in records(tmp_path / "run") if r["split"] == "val"]
    assert validated == sorted({25, end[0]})


def test_a_diverged_run_that_is_resumed_ends_at_once_in_the_same_way(corpus, tmp_path):
    config = write_config(tmp_path, corpus, steps=100, optimizer="adamw")
    messages = []
    for resume in (False, True):
        with pytest.raises(FailedError) as failure:
            run(config, tmp_path / "run", *HOT, resume=resume)
        messages.append(str(failure.value))
        if not resume:
            before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert messages[0] == messages[1]
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("step", [3, 17, 29])
def test_a_stop_on_the_way_does_not_change_where_it_ends(step, corpus, tmp_path, monkeypatch):
    config = write_config(tmp_path, corpus, steps=100, optimizer="adamw")
    with pytest.raises(FailedError):
        run(config, tmp_path / "whole", *HOT)
    taken = []
    whole = Stepper.__call__

    def stopping(self, *args, **kwargs):
        taken.append(1)
        if len(taken) == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(Stepper, "__call__", stopping)
    run(config, tmp_path / "stopped", *HOT)
    assert checkpoint.newest_step(tmp_path / "stopped" / "checkpoints") == step
    with pytest.raises(FailedError):
        run(config, tmp_path / "stopped", *HOT, resume=True)
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


def test_a_kill_after_the_last_record_and_before_its_checkpoint_changes_nothing(corpus, tmp_path):
    config = write_config(tmp_path, corpus, steps=100, optimizer="adamw")
    for name in ("whole", "killed"):
        with pytest.raises(FailedError):
            run(config, tmp_path / name, *HOT)
    shutil.rmtree(tmp_path / "killed" / "checkpoints" / "step-00000030")
    with pytest.raises(FailedError):
        run(config, tmp_path / "killed", *HOT, resume=True)
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


def test_a_checkpoint_without_the_count_is_continued(corpus, tmp_path, monkeypatch):
    # Checkpoints of the version before it was there hold four numbers of progress.
    from mars.training import trainer

    config = write_config(tmp_path, corpus)
    run(config, tmp_path / "whole")
    whole = trainer.Progress.as_state
    old = ("step", "seconds", "skipped_steps", "validation_loss")
    with monkeypatch.context() as patch:
        patch.setattr(
            trainer.Progress, "as_state", lambda self: {name: whole(self)[name] for name in old}
        )
        run(config, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000012")
    run(config, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_the_record_of_divergence_is_standard_json(corpus, tmp_path, losses):
    losses([2.0] + 47 * [float("nan")])
    config = write_config(tmp_path, corpus, steps=48)
    with pytest.raises(FailedError, match=r"2\.000, or not finite"):
        run(config, tmp_path / "run", *STOP)
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(name))


def test_a_first_loss_that_is_not_finite_is_no_measure_for_the_others(corpus, tmp_path, losses):
    losses([float("nan"), *[5.0] * 99])
    config = write_config(tmp_path, corpus, steps=100, optimizer="adamw")
    run(config, tmp_path / "run", *STOP)
    assert ended_at(tmp_path / "run") == (100, None)

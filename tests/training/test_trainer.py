"""The loop: what it records, and that stopping it anywhere changes nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import weakref

import pytest
import torch

from mars import checkpoint
from mars.config.errors import FailedError, RefusedError
from mars.training.step import NonfiniteError, Stepper
from training.runs import (
    assert_same_run,
    make_corpus,
    records,
    run,
    weights,
    write_config,
)

OPTIMIZERS = [
    "mars-adamw",
    "mars-lion",
    "mars-shampoo",
    "mars-m",
    "adamw",
    "nadamw",
    "lion",
    "muon",
]
EXACT = ("optimizer.exact=true",)
LEAN = ("optimizer.lean=true", "optimizer.clip=none", "optimizer.second_moment=gradient")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def stop_after(monkeypatch):
    """Let a signal reach this process while the step of a number runs."""

    def arrange(step: int, number: int = signal.SIGTERM) -> None:
        taken = []
        whole = Stepper.__call__

        def stopping(self, *args, **kwargs):
            taken.append(1)
            if len(taken) == step:
                os.kill(os.getpid(), number)
            return whole(self, *args, **kwargs)

        monkeypatch.setattr(Stepper, "__call__", stopping)

    return arrange


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        *((name, ()) for name in OPTIMIZERS),
        *(("mars-adamw", EXACT), ("mars-m", EXACT), ("mars-adamw", LEAN)),
        ("mars-adamw", ("training.precision=bfloat16",)),
        ("mars-adamw", ("training.precision=float16", "optimizer.clip=global")),
        ("mars-lion", ("optimizer.last_grad_dtype=bfloat16",)),
        ("muon", ("training.precision=float16",)),
        ("adamw", ("optimizer.fused=true", "training.activation_checkpointing=true")),
    ],
)
def test_a_stopped_and_resumed_run_is_the_one_that_never_stopped(
    optimizer, settings, corpus, tmp_path, stop_after
):
    config = write_config(tmp_path, corpus, optimizer=optimizer)
    run(config, tmp_path / "whole", *settings)
    stop_after(6)
    shown = run(config, tmp_path / "stopped", *settings)
    assert "Stopped by SIGTERM" in shown
    assert f"mars train --resume --out {tmp_path / 'stopped'}" in shown
    assert checkpoint.newest_step(tmp_path / "stopped" / "checkpoints") == 6
    shown = run(config, tmp_path / "stopped", *settings, resume=True)
    assert "resumed     from step 6" in shown
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_saves_and_exits_with_0(number, corpus, tmp_path):
    config = write_config(tmp_path, corpus, steps=100_000, every=100_000)
    out = tmp_path / "run"
    command = [sys.executable, "-m", "mars", "train", str(config), "--out", str(out)]
    lines = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as process:
        for line in process.stdout:
            lines.append(line)
            if line.startswith("step 1/"):
                process.send_signal(number)
    assert process.returncode == 0
    assert any(line.startswith(f"Stopped by {number.name}, all is saved") for line in lines)
    step = checkpoint.newest_step(out / "checkpoints")
    assert step >= 1
    assert checkpoint.load_newest(out / "checkpoints").training["progress"]["step"] == step


def test_a_second_interrupt_leaves_at_once(corpus, tmp_path, stop_after):
    config = write_config(tmp_path, corpus, every=12)
    stop_after(6, signal.SIGINT)
    whole = Stepper.__call__

    def impatient(self, *args, **kwargs):
        result = whole(self, *args, **kwargs)
        if self.interrupted:
            os.kill(os.getpid(), signal.SIGINT)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stepper, "interrupted", property(interrupted_after(6)), raising=False)
        patch.setattr(Stepper, "__call__", impatient)
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "run")
    assert checkpoint.newest_step(tmp_path / "run" / "checkpoints") is None


def interrupted_after(step: int):
    """Return what says whether it was asked so many times."""
    asked = []

    def is_due(_) -> bool:
        asked.append(1)
        return len(asked) == step

    return is_due


def test_a_reader_that_leaves_does_not_end_the_run(corpus, tmp_path):
    config = write_config(tmp_path, corpus, steps=60)
    command = [sys.executable, "-m", "mars", "train", str(config), "--out", str(tmp_path / "run")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        process.stdout.readline()
        process.stdout.close()
    assert process.returncode == 0
    assert checkpoint.newest_step(tmp_path / "run" / "checkpoints") == 60


def test_a_run_is_the_same_for_any_number_of_workers(corpus, tmp_path):
    for workers in (0, 3):
        config = write_config(tmp_path, corpus, workers=workers)
        run(config, tmp_path / str(workers))
    assert_same_run(tmp_path / "0", tmp_path / "3")


def test_accumulated_gradients_are_those_of_the_whole_batch(corpus, tmp_path):
    config = write_config(tmp_path, corpus)
    for size in (4, 1):
        run(config, tmp_path / str(size), "model.dropout=0.0", f"micro_batch_size={size}")
    for name, value in weights(tmp_path / "4").items():
        torch.testing.assert_close(value, weights(tmp_path / "1")[name], rtol=1e-4, atol=1e-5)
    # An optimizer that ignores the gradients' scale would not show it in the weights.
    pairs = zip(records(tmp_path / "4"), records(tmp_path / "1"), strict=True)
    for whole, parts in pairs:
        assert whole["loss"] == pytest.approx(parts["loss"], rel=1e-4)
        if whole["split"] == "train":
            assert whole["grad_norm"] == pytest.approx(parts["grad_norm"], rel=1e-3)


def test_records_come_when_due_and_say_what_was_measured(corpus, tmp_path):
    config = write_config(tmp_path, corpus)
    run(config, tmp_path / "run")
    found = records(tmp_path / "run")
    assert [r["step"] for r in found if r["split"] == "train"] == [1, 3, 6, 9, 12]
    assert [r["step"] for r in found if r["split"] == "val"] == [5, 10, 12]
    assert [r["tokens"] for r in found] == [r["step"] * 4 * 16 for r in found]
    first, later = found[0], found[1]
    assert first["lr"] == 0.01 / 4
    assert "correction_ratio" not in first  # there is no previous gradient yet
    assert {"grad_norm", "correction_ratio", "gradient_cosine", "clip_rate"} <= later.keys()
    assert later["skipped_steps"] == 0


def test_measures_can_be_left_out(corpus, tmp_path):
    run(write_config(tmp_path, corpus), tmp_path / "run", "metrics.measures=false")
    assert not any("correction_ratio" in r for r in records(tmp_path / "run"))


def test_validation_is_over_the_same_sequences_each_time(corpus, tmp_path):
    # A learning rate of almost nothing: what differs between two validations is the data.
    config = write_config(tmp_path, corpus)
    run(config, tmp_path / "run", "optimizer.lr=1e-12", "lr_1d=1e-12", "weight_decay_1d=0")
    losses = [r["loss"] for r in records(tmp_path / "run") if r["split"] == "val"]
    assert len(losses) == 3
    assert max(losses) - min(losses) < 1e-6


def poison(monkeypatch, step: int) -> None:
    """Make the gradients of one step not finite."""
    taken = []
    whole = Stepper._gradients

    def poisoned(self, batch):
        loss = whole(self, batch)
        taken.append(1)
        if len(taken) == step:
            for group in self.optimizer.param_groups:
                for p in group["params"]:
                    p.grad.fill_(torch.nan)
            self._clip_()
        return loss

    monkeypatch.setattr(Stepper, "_gradients", poisoned)


@pytest.mark.parametrize("optimizer", ["mars-adamw", "adamw", "muon"])
def test_a_step_that_is_not_finite_is_left_out_and_counted(
    optimizer, corpus, tmp_path, monkeypatch
):
    config = write_config(tmp_path, corpus, optimizer=optimizer)
    poison(monkeypatch, 5)
    run(config, tmp_path / "run")
    skipped = [r["skipped_steps"] for r in records(tmp_path / "run") if r["split"] == "train"]
    assert skipped == [0, 0, 1, 1, 1]
    assert all(value.isfinite().all() for value in weights(tmp_path / "run").values())


def test_exact_mode_leaves_such_a_step_out_too(corpus, tmp_path, monkeypatch):
    poison(monkeypatch, 9)  # two evaluations a step, after the first: at the present point
    run(write_config(tmp_path, corpus), tmp_path / "run", *EXACT)
    skipped = [r["skipped_steps"] for r in records(tmp_path / "run") if r["split"] == "train"]
    assert skipped[-1] == 1
    assert all(value.isfinite().all() for value in weights(tmp_path / "run").values())


def test_a_step_that_is_not_finite_can_stop_the_run(corpus, tmp_path, monkeypatch):
    poison(monkeypatch, 6)
    config = write_config(tmp_path, corpus)
    with pytest.raises(NonfiniteError, match="norm is nan"):
        run(config, tmp_path / "run", "skip_nonfinite=false")
    # The checkpoint of step 4 is good, and the run can go on from it.
    monkeypatch.undo()
    run(config, tmp_path / "run", "skip_nonfinite=false", resume=True)
    run(config, tmp_path / "whole", "skip_nonfinite=false")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_exact_mode_can_stop_the_run_too(corpus, tmp_path, monkeypatch):
    poison(monkeypatch, 9)
    with pytest.raises(NonfiniteError, match="norm is nan"):
        run(write_config(tmp_path, corpus), tmp_path / "run", *EXACT, "skip_nonfinite=false")


@pytest.mark.parametrize("damage", ["truncated", "flipped", "foreign"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_used(damage, corpus, tmp_path):
    config = write_config(tmp_path, corpus)
    run(config, tmp_path / "whole")
    run(config, tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / "step-00000012"
    target = newest / "training.pt"
    content = bytearray(target.read_bytes())
    if damage == "truncated":
        target.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
        target.write_bytes(content)
    else:
        (newest / "manifest.json").write_text('{"format": "another"}')
    shown = run(config, tmp_path / "run", resume=True)
    assert "step-00000012" in shown.replace("\n", "")
    assert "resumed     from step 8" in shown
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_malicious_checkpoint_does_not_run(corpus, tmp_path):
    config = write_config(tmp_path, corpus)
    run(config, tmp_path / "run")
    witness = tmp_path / "witness"
    target = tmp_path / "run" / "checkpoints" / "step-00000012" / "training.pt"
    # A pickle that would create a file, written by hand.
    target.write_bytes(b"cbuiltins\nopen\n(V" + str(witness).encode() + b"\nVw\ntR.")
    shown = run(config, tmp_path / "run", resume=True)
    assert not witness.exists()
    assert "training.pt" in shown.replace("\n", "")
    assert "resumed     from step 8" in shown


def test_a_finished_run_that_is_resumed_says_so_and_changes_nothing(corpus, tmp_path):
    config = write_config(tmp_path, corpus)
    run(config, tmp_path / "run")
    before = records(tmp_path / "run")
    shown = run(config, tmp_path / "run", resume=True)
    assert "Finished: 12 steps" in shown
    assert records(tmp_path / "run") == before


def test_a_run_is_not_continued_with_another_config(corpus, tmp_path):
    config = write_config(tmp_path, corpus)
    run(config, tmp_path / "run")
    with pytest.raises(RefusedError, match=r"optimizer.lr \(was 0.01, is 0.02\)"):
        run(config, tmp_path / "run", "optimizer.lr=0.02", resume=True)
    # What does not change the computation may change.
    run(config, tmp_path / "run", "metrics.log_every=1", "checkpoint.keep=1", resume=True)


def test_a_run_is_not_continued_on_other_data(corpus, tmp_path):
    config = write_config(tmp_path, corpus)
    run(config, tmp_path / "run")
    manifest = tmp_path / "run" / "manifest.json"
    digest = json.loads(manifest.read_text())["data"]["digest"]
    manifest.write_text(manifest.read_text().replace(digest, "0" * 64))
    with pytest.raises(RefusedError, match="was trained on other data"):
        run(config, tmp_path / "run", resume=True)


def test_nothing_is_overwritten(corpus, tmp_path):
    config = write_config(tmp_path, corpus)
    run(config, tmp_path / "run")
    before = weights(tmp_path / "run")
    with pytest.raises(RefusedError, match="holds a run already; continue it with --resume"):
        run(config, tmp_path / "run")
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.tex").write_text("years of work")
    for resume in (False, True):
        with pytest.raises(RefusedError, match="exists and is not empty"):
            run(config, full, resume=resume)
    assert [p.name for p in full.iterdir()] == ["thesis.tex"]
    assert all(torch.equal(v, before[k]) for k, v in weights(tmp_path / "run").items())


def test_runs_without_a_place_are_numbered(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = write_config(tmp_path, corpus, steps=4)
    for _ in range(3):
        run(config, None)
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["tiny", "tiny-2", "tiny-3"]


def test_two_processes_do_not_train_in_one_directory(corpus, tmp_path):
    from mars.training.run_directory import RunDirectory

    config = write_config(tmp_path, corpus)
    run(config, tmp_path / "run")
    with (
        RunDirectory(tmp_path / "run").lock(),
        pytest.raises(RefusedError, match="another process is training in"),
    ):
        run(config, tmp_path / "run", resume=True)


def test_a_full_disk_loses_nothing_that_was_written(corpus, tmp_path, monkeypatch):
    config = write_config(tmp_path, corpus)
    run(config, tmp_path / "whole")
    real = os.fsync
    taken = []

    def failing(descriptor):
        taken.append(1)
        if len(taken) > 12:
            raise OSError(28, "No space left on device")
        return real(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises((OSError, checkpoint.SaveError), match="No space left on device"):
        run(config, tmp_path / "run")
    monkeypatch.undo()
    assert checkpoint.newest_step(tmp_path / "run" / "checkpoints") in (4, 8)
    run(config, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_tensorboard_and_wandb_receive_the_records(corpus, tmp_path):
    pytest.importorskip("tensorboard")
    pytest.importorskip("wandb")
    config = write_config(tmp_path, corpus)
    run(config, tmp_path / "run", "tensorboard=true", "metrics.wandb=offline")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    tags = events.Tags()["scalars"]
    loss = next(tag for tag in tags if "loss" in tag and "train" in tag)
    assert [e.step for e in events.Scalars(loss)] == [1, 3, 6, 9, 12]
    assert list((tmp_path / "run").rglob("*.wandb"))


def test_what_fails_before_training_leaves_no_directory(corpus, tmp_path, monkeypatch):
    from mars.training import assemble

    def failing(*_):
        raise RefusedError("no key")

    monkeypatch.setattr(assemble, "_optional_sinks", failing)
    config = write_config(tmp_path, corpus)
    with pytest.raises(RefusedError, match="no key"):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.undo()
    run(config, tmp_path / "run")
    # A run that was there stays, whatever fails.
    monkeypatch.setattr(assemble, "_optional_sinks", failing)
    with pytest.raises(RefusedError, match="no key"):
        run(config, tmp_path / "run", resume=True)
    assert checkpoint.newest_step(tmp_path / "run" / "checkpoints") == 12


def test_a_restored_run_does_not_hold_the_checkpoint(corpus, tmp_path, monkeypatch):
    config = write_config(tmp_path, corpus)
    run(config, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000012")
    held, alive = [], []
    load, step = checkpoint.load_newest, Stepper.__call__

    def loading(*args, **options):
        loaded = load(*args, **options)
        held.extend(weakref.ref(value) for value in loaded.model.values())
        return loaded

    def stepping(self, *args, **kwargs):
        alive.append(sum(reference() is not None for reference in held))
        return step(self, *args, **kwargs)

    monkeypatch.setattr(checkpoint, "load_newest", loading)
    monkeypatch.setattr(Stepper, "__call__", stepping)
    run(config, tmp_path / "run", resume=True)
    assert len(held) > 5
    assert alive == [0, 0, 0, 0]


def test_one_of_several_runs_is_not_guessed(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = write_config(tmp_path, corpus, steps=4)
    run(config, None)
    assert "Finished: 4 steps" in run(config, None, resume=True)
    run(config, None)
    with pytest.raises(RefusedError, match="runs/tiny, runs/tiny-2"):
        run(config, None, resume=True)


def test_another_machine_is_told(corpus, tmp_path):
    config = write_config(tmp_path, corpus)
    run(config, tmp_path / "run")
    manifest = tmp_path / "run" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(torch.__version__, "2.9.0"))
    shown = run(config, tmp_path / "run", resume=True)
    assert f"torch (was 2.9.0, is {torch.__version__})" in " ".join(shown.split())


def test_several_processes_without_a_launcher_are_refused(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RefusedError, match="'RANK'; start them with torchrun"):
        run(write_config(tmp_path, corpus), tmp_path / "run")


def test_one_process_is_not_asked_to_share(corpus, tmp_path):
    with pytest.raises(RefusedError, match="start it with torchrun --nproc-per-node N -m mars"):
        run(write_config(tmp_path, corpus), tmp_path / "run", "parallel=fsdp2")
    assert not (tmp_path / "run").exists()


def test_another_micro_batch_size_is_told_when_a_run_goes_on(corpus, tmp_path):
    config = write_config(tmp_path, corpus)
    run(config, tmp_path / "run")
    shown = run(config, tmp_path / "run", "micro_batch_size=1", resume=True)
    assert "not bit-identical from here on: micro_batch_size (was 2, is 1)" in shown


def test_a_lack_of_memory_is_told_in_one_line(corpus, tmp_path):
    settings = ("model.width=2000000", "model.heads=2")
    with pytest.raises(FailedError, match="not enough memory") as failure:
        run(write_config(tmp_path, corpus), tmp_path / "run", *settings)
    assert "\n" not in str(failure.value)
    assert not (tmp_path / "run").exists()

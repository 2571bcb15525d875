"""``mars train`` in several processes: the run of one process, divided."""

import json
import shutil

import pytest
import torch

from distributed.launches import launch
from mars.cli import main
from training.runs import assert_same_run, make_corpus, records, weights, write_config

STEPS, HALF = 6, 3
SHAPE = (
    *("model.layers=2", "model.width=32", "batch_size=8", "log_every=1", "model.dropout=0"),
    "optimizer.fused=false",  # each job has its own process, which would compile anew
)
MODES = {
    "ddp-2": (2, "parallel=ddp"),
    "ddp-4": (4, "parallel=ddp"),
    "fsdp2-2": (2, "parallel=fsdp2"),
    "fsdp2-4": (4, "parallel=fsdp2"),
    "hsdp-2x2": (4, "parallel=hsdp", "replicas=2"),
}
OPTIMIZERS = {
    "adamw": ("optimizer.name=adamw",),
    "mars-adamw": ("optimizer.name=mars-adamw",),
    "mars-m": ("optimizer.name=mars-m",),
}
OTHERS = {
    "exact": ("optimizer.exact=true",),
    "nadamw": ("optimizer.name=nadamw",),
    "lion": ("optimizer.name=lion",),
    "muon": ("optimizer.name=muon",),
    "mars-lion": ("optimizer.name=mars-lion",),
    "mars-shampoo": ("optimizer.name=mars-shampoo",),
    "lean": ("optimizer.lean=true", "optimizer.clip=none", "optimizer.second_moment=gradient"),
    "recomputed": ("training.activation_checkpointing=true",),
    "bfloat16": ("training.precision=bfloat16",),
    "float16": ("training.precision=float16",),
}
# Sums over processes are rounded in another order; half precision has three digits.
RELATIVE = {"bfloat16": 1e-3, "float16": 1e-3}


# Runs that others go on from, half way.
RESUMED = ("mars-adamw-fsdp2-2", "mars-m-one", "muon-fsdp2", "dropout-ddp", "dropout-fsdp2")


class Launches:
    """Jobs that are collected, then run in one go."""

    def __init__(self, folder):
        self.folder = folder
        self.config = write_config(
            folder, make_corpus(folder), steps=STEPS, every=HALF, validate_every=HALF, workers=0
        )
        self.jobs = []
        self.ended = {}

    def add(self, name, ranks, *settings, out=None, resume=False, **more):
        """Add a run; its directory has its name, unless another is given."""
        arguments = ["train", str(self.config), "--out", str(self.folder / (out or name))]
        arguments += ["--resume"] if resume else []
        every = f"checkpoint.every={HALF}" if name in RESUMED else "checkpoint.every=100"
        arguments += [part for each in (*SHAPE, every, *settings) for part in ("--set", each)]
        self.jobs.append({"name": name, "ranks": ranks, "arguments": arguments, **more})

    def run(self, name):
        """Run all that was added since the last time."""
        jobs, self.jobs = self.jobs, []
        self.ended |= launch(self.folder / name, jobs)

    def records(self, name):
        return records(self.folder / name)

    def codes(self, name):
        return [ended.code for ended in self.ended[name]]

    def stopped_at(self, source, name, step):
        """Make a run directory as it was right after the checkpoint of a step."""
        shutil.copytree(self.folder / source, self.folder / name)
        for path in (self.folder / name / "checkpoints").iterdir():
            if int(path.name.split("-")[1]) > step:
                shutil.rmtree(path)


@pytest.fixture(scope="module")
def launches(tmp_path_factory):
    found = Launches(tmp_path_factory.mktemp("launches"))
    for optimizer, settings in OPTIMIZERS.items():
        found.add(f"{optimizer}-one", 1, *settings, "micro_batch_size=1")
        for mode, (ranks, *parallel) in MODES.items():
            # Four processes take two micro-batches each, two processes four.
            found.add(f"{optimizer}-{mode}", ranks, *settings, *parallel, "micro_batch_size=1")
    for name, settings in OTHERS.items():
        found.add(f"{name}-one", 1, *settings)
        found.add(f"{name}-ddp", 2, *settings)
        found.add(f"{name}-fsdp2", 2, *settings, "parallel=fsdp2")
    dropout = "model.dropout=0.2"
    found.add("dropout-ddp", 2, dropout)
    found.add("dropout-fsdp2", 2, dropout, "parallel=fsdp2")
    found.add("signal", 2, dropout, signal_at=4, rank=1)
    found.add("nan-ddp", 2, nan_at=4, rank=1)
    found.add("nan-fsdp2", 2, "parallel=fsdp2", nan_at=4, rank=1)
    found.add("nan-stop", 2, "skip_nonfinite=false", nan_at=4, rank=1)
    found.add("patient", 2, "timeout_seconds=1", "steps=5", slow_seconds=2.5, rank=0)
    add_refusals(found)
    found.run("first")
    add_resumes(found)
    found.run("second")
    return found


def add_refusals(found):
    full = found.folder / "full"
    full.mkdir()
    (full / "thesis.tex").write_text("years of work")
    found.add("full-new", 2, out="full")
    found.add("odd", 2, "batch_size=9", "micro_batch_size=3")
    found.add("vocabulary", 2, "vocab_size=100", "training.parallel=fsdp2")
    # Processes that are started again do not continue what another launch began.
    found.add("again-other", 2, out="dropout-ddp", restarts=1, job="another")


def add_resumes(found):
    for ranks, parallel in ((1, "parallel="), (2, "parallel=fsdp2"), (4, "parallel=fsdp2")):
        found.stopped_at("mars-adamw-fsdp2-2", f"resumed-{ranks}", HALF)
        settings = ("optimizer.name=mars-adamw", parallel, "micro_batch_size=1")
        found.add(f"resumed-{ranks}", ranks, *settings, resume=True)
    found.stopped_at("mars-m-one", "resumed-sharded", HALF)
    settings = ("optimizer.name=mars-m", "parallel=hsdp", "replicas=2", "micro_batch_size=1")
    found.add("resumed-sharded", 4, *settings, resume=True)
    found.stopped_at("muon-fsdp2", "resumed-together", HALF)
    found.add("resumed-together", 4, *OTHERS["muon"], "parallel=fsdp2", resume=True)
    for mode in ("ddp", "fsdp2"):
        found.stopped_at(f"dropout-{mode}", f"resumed-{mode}", HALF)
        settings = ("model.dropout=0.2", f"parallel={mode}")
        found.add(f"resumed-{mode}", 2, *settings, resume=True)
    found.stopped_at("dropout-ddp", "resumed-again", HALF)
    # Without --resume, as torchrun starts processes again.
    found.add("resumed-again", 2, "model.dropout=0.2", restarts=1)
    found.add("resumed-signal", 2, "model.dropout=0.2", out="signal", resume=True)


def assert_close(ours, theirs, *, relative):
    """Assert that records tell of the same steps, with losses and norms equal to a tolerance."""
    assert len(ours) == len(theirs) == STEPS + 2
    for one, other in zip(ours, theirs, strict=True):
        assert (one["step"], one["split"]) == (other["step"], other["split"])
        assert one["tokens"] == other["tokens"] == one["step"] * 8 * 16
        assert one["loss"] == pytest.approx(other["loss"], rel=relative)
        if one["split"] == "train":
            assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=100 * relative)
            assert one["skipped_steps"] == other["skipped_steps"] == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_divided_run_has_the_losses_of_one_process(optimizer, mode, launches):
    name = f"{optimizer}-{mode}"
    assert set(launches.codes(name)) == {0}, launches.ended[name]
    relative = RELATIVE.get(optimizer, 1e-5)
    assert_close(launches.records(name), launches.records(f"{optimizer}-one"), relative=relative)


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
@pytest.mark.parametrize("name", OTHERS)
def test_so_does_every_other_way_to_train(name, mode, launches):
    assert launches.codes(f"{name}-{mode}") == [0, 0], launches.ended[f"{name}-{mode}"]
    relative = RELATIVE.get(name, 1e-5)
    assert_close(
        launches.records(f"{name}-{mode}"), launches.records(f"{name}-one"), relative=relative
    )


@pytest.mark.parametrize("mode", MODES)
def test_the_measures_of_the_correction_are_those_of_one_process(mode, launches):
    ours, theirs = launches.records(f"mars-adamw-{mode}"), launches.records("mars-adamw-one")
    for one, other in list(zip(ours, theirs, strict=True))[1:]:
        for measure in ("correction_ratio", "gradient_cosine", "clip_rate"):
            assert (measure in one) == (measure in other)
            if measure in one:
                assert one[measure] == pytest.approx(other[measure], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_two_processes_saved_goes_on_in_any_number(ranks, launches):
    name = f"resumed-{ranks}"
    assert launches.codes(name) == [0] * ranks, launches.ended[name]
    assert f"resumed     from step {HALF}" in launches.ended[name][0].out
    assert_close(launches.records(name), launches.records("mars-adamw-fsdp2-2"), relative=1e-6)
    told = f"processes (was 2, fsdp2, is {ranks}{', fsdp2' if ranks > 1 else ''})"
    assert (told in " ".join(launches.ended[name][0].out.split())) == (ranks != 2)


@pytest.mark.parametrize(
    ("name", "source"), [("resumed-sharded", "mars-m-one"), ("resumed-together", "muon-fsdp2")]
)
def test_so_does_what_one_process_saved_and_what_two_optimizers_share(name, source, launches):
    assert launches.codes(name) == [0] * 4, launches.ended[name]
    assert f"resumed     from step {HALF}" in launches.ended[name][0].out
    assert_close(launches.records(name), launches.records(source), relative=1e-4)


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
def test_the_same_processes_go_on_bit_by_bit(mode, launches):
    assert launches.codes(f"resumed-{mode}") == [0, 0], launches.ended[f"resumed-{mode}"]
    folder = launches.folder
    assert_same_run(folder / f"resumed-{mode}", folder / f"dropout-{mode}")


def test_processes_started_again_resume_what_they_began(launches):
    assert launches.codes("resumed-again") == [0, 0], launches.ended["resumed-again"]
    assert f"resumed     from step {HALF}" in launches.ended["resumed-again"][0].out
    assert_same_run(launches.folder / "resumed-again", launches.folder / "dropout-ddp")


def test_processes_started_again_leave_the_runs_of_others_alone(launches):
    assert launches.codes("again-other") == [2, 2]
    assert "holds a run already" in launches.ended["again-other"][0].err


def test_a_signal_to_one_process_stops_all_after_the_same_step(launches):
    assert launches.codes("signal") == [0, 0], launches.ended["signal"]
    first, second = launches.ended["signal"]
    assert "Stopped by SIGTERM, all is saved: 4 steps" in first.out
    command = f"torchrun --nproc-per-node 2 -m mars train --resume --out {launches.folder}/signal"
    assert command in first.out
    assert second.out == ""
    assert launches.codes("resumed-signal") == [0, 0]
    assert_same_run(launches.folder / "signal", launches.folder / "dropout-ddp")


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
def test_a_loss_that_is_not_finite_in_one_process_is_skipped_by_all(mode, launches):
    assert launches.codes(f"nan-{mode}") == [0, 0], launches.ended[f"nan-{mode}"]
    train = [r for r in launches.records(f"nan-{mode}") if r["split"] == "train"]
    assert [r["skipped_steps"] for r in train] == [0] * 3 + [1] * 3
    assert [r["step"] for r in train if r["loss"] is None] == [4]
    found = weights(launches.folder / f"nan-{mode}")
    assert all(value.isfinite().all() for value in found.values())


def test_or_ends_the_run_with_one_line(launches):
    assert launches.codes("nan-stop") == [1, 1]
    first, second = launches.ended["nan-stop"]
    assert first.err.startswith("mars: the gradients' norm is nan; lower optimizer.lr")
    assert second.err == ""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("odd", "training.batch_size = 9 is not divisible by 2 processes; use 10"),
        ("vocabulary", "model.vocab_size = 100 is too small for"),
        ("full-new", "exists and is not empty"),
    ],
)
def test_what_cannot_run_is_refused_once_and_leaves_nothing(name, reason, launches):
    assert launches.codes(name) == [2, 2]
    first, second = launches.ended[name]
    assert reason in first.err
    assert first.err.count("\n") == 1
    assert (first.out, second.out, second.err) == ("", "", "")
    assert not (launches.folder / name).exists()
    assert [path.name for path in (launches.folder / "full").iterdir()] == ["thesis.tex"]


def test_a_corpus_takes_the_time_it_takes(launches):
    assert launches.codes("patient") == [0, 0], launches.ended["patient"]
    assert launches.records("patient")[-1]["step"] == 5


def test_the_first_process_alone_speaks_and_says_how_many_there_are(launches):
    first, *others = launches.ended["adamw-hsdp-2x2"]
    assert "device      4 processes, hsdp: cpu, 1 thread each, float32" in first.out
    assert "Finished: 6 steps, 768 tokens" in first.out
    assert [(each.out, each.err) for each in others] == [("", "")] * 3
    manifest = json.loads((launches.folder / "adamw-hsdp-2x2" / "manifest.json").read_text())
    assert (manifest["processes"], manifest["job"]) == ("4, hsdp", "test")


def test_one_process_reads_what_several_saved(launches, capsys):
    run = launches.folder / "mars-adamw-fsdp2-4"
    assert main(["sample", str(run), "--tokens", "3", "--prompt", "12"]) == 0
    assert capsys.readouterr().out.startswith("12")
    ours, theirs = weights(run), weights(launches.folder / "mars-adamw-one")
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        assert type(value) is torch.Tensor
        torch.testing.assert_close(value, theirs[name], rtol=1e-3, atol=1e-5)


def test_one_process_diagnoses_what_several_trained(launches, capsys):
    run = launches.folder / "dropout-fsdp2"
    small = ["--streams", "3", "--large-batch", "16", "--history", "2"]
    assert main(["diagnose", str(run), "--at", "5", *small]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "not bit-identical from here on: processes (was 2, fsdp2, is 1)" in shown


def test_each_process_holds_its_part_of_the_optimizer(launches):
    bytes_held = {
        name: launches.records(f"mars-adamw-{name}")[-1]["optimizer_bytes"]
        for name in ("one", "ddp-2", "fsdp2-2", "fsdp2-4", "hsdp-2x2")
    }
    assert bytes_held["ddp-2"] == bytes_held["one"]
    # The vocabulary of 257 leaves a row over, which the first process has.
    row = 3 * 32 * 4
    assert bytes_held["one"] / 2 <= bytes_held["fsdp2-2"] <= bytes_held["one"] / 2 + row
    assert bytes_held["one"] / 4 <= bytes_held["fsdp2-4"] <= bytes_held["one"] / 4 + row
    assert bytes_held["hsdp-2x2"] == bytes_held["fsdp2-2"]

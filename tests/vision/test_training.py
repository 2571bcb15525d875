"""Runs on images, by the same trainer: accuracy, time to a goal, exact resumption, exact mode."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from mars.config.errors import RefusedError
from mars.data.images import write_images
from training.runs import run, weights
from vision.image_runs import assert_same_run, make_images, patterns, records, write_config

KILLED = Path(__file__).parents[1] / "training" / "killed_program.py"
OPTIMIZERS = (
    "mars-adamw",
    "mars-lion",
    "mars-shampoo",
    "mars-m",
    "adamw",
    "nadamw",
    "lion",
    "muon",
)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("network", ["resnet18", "vit"])
def test_records_count_samples_and_validations_have_an_accuracy(network, images, tmp_path):
    config = write_config(tmp_path, images, network=network)
    shown = run(config, tmp_path / "run", "vision.test_flip=true")
    found = records(tmp_path / "run")
    assert [r["samples"] for r in found if r["split"] == "val"] == [40, 80, 96]
    for record in found:
        assert record["samples"] == 8 * record["step"]
        if record["split"] == "val":
            assert record["accuracy"] * 24 == pytest.approx(round(record["accuracy"] * 24))
            assert 0 <= record["accuracy_flip"] <= 1
    last = found[-1]
    assert f"accuracy {100 * last['accuracy']:.2f} %" in shown
    assert f"with test-time flip {100 * last['accuracy_flip']:.2f} %" in shown
    assert "mars sample" not in shown


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_learns_the_patterns(optimizer, images, tmp_path):
    rate = {"lion": 1e-3, "mars-lion": 1e-3}.get(optimizer, 1e-2)
    config = write_config(tmp_path, images, optimizer=optimizer, steps=60, validate_every=60)
    settings = (f"optimizer.lr={rate}", "vision.flip=false", "schedule.kind=constant")
    run(config, tmp_path / "run", *settings)
    assert records(tmp_path / "run")[-1]["accuracy"] > 0.9


def test_the_rate_falls_at_a_half_and_three_quarters(images, tmp_path):
    config = write_config(tmp_path, images, steps=12)
    run(config, tmp_path / "run", "metrics.log_every=1")
    rates = [r["lr"] for r in records(tmp_path / "run") if r["split"] == "train"]
    assert rates == pytest.approx([1e-2] * 6 + [1e-3] * 3 + [1e-4] * 3)


def test_the_time_to_a_goal_is_that_of_the_first_validation_that_reached_it(images, tmp_path):
    config = write_config(tmp_path, images, steps=30, validate_every=5)
    settings = ("vision.target_accuracy=0.6", "vision.flip=false")
    run(config, tmp_path / "run", *settings)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    found = [r for r in map(json.loads, lines) if r["split"] == "val"]
    first = next(i for i, record in enumerate(found) if record["accuracy"] >= 0.6)
    assert all("seconds_to_60" not in record for record in found[:first])
    assert {r["seconds_to_60"] for r in found[first:]} == {found[first]["seconds"]}
    assert first < len(found) - 1


def test_a_goal_that_was_reached_stays_so_after_a_resume(images, tmp_path):
    config = write_config(tmp_path, images, steps=30, validate_every=5, every=5)
    settings = ("vision.target_accuracy=0.6", "vision.flip=false")
    run(config, tmp_path / "run", *settings)
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    for step in (30,):
        for path in (tmp_path / "run" / "checkpoints").glob(f"step-*{step}"):
            for file in sorted(path.rglob("*"), reverse=True):
                file.unlink()
            path.rmdir()
    run(config, tmp_path / "run", *settings, resume=True)
    after = (tmp_path / "run" / "metrics.jsonl").read_text()
    goals = [json.loads(text.splitlines()[-1])["seconds_to_60"] for text in (before, after)]
    assert goals[0] == goals[1]


@pytest.mark.parametrize("exact", ["false", "true"])
@pytest.mark.parametrize("network", ["resnet18", "vit"])
def test_a_resume_in_the_middle_of_an_epoch_is_bitwise_identical(network, exact, images, tmp_path):
    settings = (f"optimizer.exact={exact}",)
    config = write_config(tmp_path, images, network=network, steps=12, every=4)
    run(config, tmp_path / "whole", *settings)
    # 20 images are two and a half steps: the checkpoint of step 8 lies inside an epoch.
    run(config, tmp_path / "parts", *settings)
    last = tmp_path / "parts" / "checkpoints" / "step-00000012"
    for file in sorted(last.rglob("*"), reverse=True):
        file.unlink()
    last.rmdir()
    run(config, tmp_path / "parts", *settings, resume=True)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_kills_at_random_moments_change_nothing(images, tmp_path):
    config = write_config(tmp_path, images, steps=90, every=3, validate_every=20)
    start = time.perf_counter()
    run(config, tmp_path / "whole")
    seconds = time.perf_counter() - start
    done = subprocess.run(
        [sys.executable, str(KILLED), str(config), str(tmp_path / "killed"), "6", str(seconds)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": f"{KILLED.parents[1]}", "OMP_NUM_THREADS": "1"},
    )
    alive, writing = map(int, done.stdout.split())
    assert (alive, writing) == (6, 2), "the run ended before all kills; make it longer"
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


def test_micro_batches_see_the_same_images(images, tmp_path):
    # Without batch statistics the gradient of a batch is the mean of those of its parts.
    config = write_config(tmp_path, images, network="vit")
    losses = []
    for size in (8, 2):
        settings = (f"training.micro_batch_size={size}", "metrics.log_every=1")
        run(config, tmp_path / str(size), *settings)
        losses.append([record["loss"] for record in records(tmp_path / str(size))])
    # Sums in another order, twelve steps on.
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_statistics_advance_once_a_step_in_exact_mode(images, tmp_path):
    config = write_config(tmp_path, images, steps=7, every=7)
    counts = []
    for exact in ("false", "true"):
        run(config, tmp_path / exact, f"optimizer.exact={exact}")
        counts.append(int(weights(tmp_path / exact)["bn1.num_batches_tracked"]))
    assert counts == [7, 7]


def test_the_statistics_of_an_exact_step_are_those_of_the_present_point(images, tmp_path):
    # At a rate of almost nothing both modes stay where they are and see the same batches.
    config = write_config(tmp_path, images, steps=5, every=5)
    found = []
    for exact in ("false", "true"):
        settings = (f"optimizer.exact={exact}", "optimizer.lr=1e-12", "optimizer.lr_1d=0")
        run(config, tmp_path / exact, *settings)
        found.append(weights(tmp_path / exact))
    for name, value in found[0].items():
        if "running" in name:
            torch.testing.assert_close(value, found[1][name], rtol=1e-5, atol=1e-7, msg=name)


def test_channels_last_trains_to_the_same_losses(images, tmp_path):
    config = write_config(tmp_path, images, steps=6)
    losses = []
    for is_last in ("true", "false"):
        settings = (f"vision.channels_last={is_last}", "vision.channels=8")
        run(config, tmp_path / is_last, *settings, "metrics.log_every=1")
        losses.append([r["loss"] for r in records(tmp_path / is_last) if r["split"] == "train"])
    # Sums in another order, six steps on.
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


def test_convolutions_can_be_trained_as_vectors(images, tmp_path):
    config = write_config(tmp_path, images, steps=2, every=2)
    settings = ("optimizer.convolutions=vectors", "optimizer.lr_1d=0", "optimizer.weight_decay=0")
    run(config, tmp_path / "run", *settings)
    run(config, tmp_path / "same", *settings, "seed=3", "training.steps=1", "checkpoint.every=1")
    one, two = weights(tmp_path / "same"), weights(tmp_path / "run")
    # Their rate is that of vectors, which is 0: the head alone moves.
    moved = {name for name in one if "weight" in name and not torch.equal(one[name], two[name])}
    assert moved == {"fc.weight"}


def test_other_images_are_refused_on_resume(images, tmp_path):
    config = write_config(tmp_path, images)
    run(config, tmp_path / "run")
    other = tmp_path / "other"
    write_images(
        other,
        name="patterns",
        train=patterns(20, seed=5),
        validation=patterns(30, seed=1),
        classes=("a", "b", "c", "d"),
        source={"kind": "test"},
    )
    with pytest.raises(RefusedError, match="was trained on other data"):
        run(config, tmp_path / "run", f"data.path={other}", resume=True)


def test_a_missing_folder_is_refused_with_the_command_that_makes_it(images, tmp_path):
    config = write_config(tmp_path, images)
    with pytest.raises(RefusedError, match="mars prepare cifar10 --input FOLDER --out nowhere"):
        run(config, tmp_path / "run", "data.path=nowhere")
    assert not (tmp_path / "run").exists()


def test_text_in_place_of_images_is_refused(images, tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "manifest.json").write_text('{"format": "mars-corpus"}')
    config = write_config(tmp_path, images)
    with pytest.raises(RefusedError, match="is not that of prepared images"):
        run(config, tmp_path / "run", f"data.path={tmp_path / 'text'}")


def test_the_digits_are_prepared_by_the_run_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = run("digits-mars-m", tmp_path / "run", "training.steps=45", "schedule.warmup_steps=0")
    assert (tmp_path / "data" / "digits" / "manifest.json").exists()
    assert records(tmp_path / "run")[-1]["accuracy"] > 0.7
    assert "297 for validation" in shown

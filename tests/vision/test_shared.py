"""Runs on images that two processes share train on the same images as one process alone."""

import pytest

from distributed.launches import launch
from vision.image_runs import make_images, records, write_config


def test_two_processes_train_as_one_and_fsdp_is_refused(tmp_path):
    images = make_images(tmp_path)
    vit = write_config(tmp_path, images, network="vit")
    resnet = write_config(tmp_path, images)

    def train(config, name, *settings):
        out = ["--out", str(tmp_path / name)]
        return ["train", str(config), *out, "--set", "metrics.log_every=1", *settings]

    ended = launch(
        tmp_path / "jobs",
        [
            {"name": "one", "ranks": 1, "arguments": train(vit, "one")},
            {"name": "two", "ranks": 2, "arguments": train(vit, "two")},
            {"name": "again", "ranks": 2, "arguments": train(resnet, "again")},
            {
                "name": "refused",
                "ranks": 2,
                "arguments": train(resnet, "no", "training.parallel=fsdp2"),
            },
        ],
    )
    for name in ("one", "two", "again"):
        assert [rank.code for rank in ended[name]] == [0] * len(ended[name]), ended[name]
    one, two = records(tmp_path / "one"), records(tmp_path / "two")
    # The same gradients summed in another order, twelve steps on.
    for key in ("loss", "accuracy"):
        ours, theirs = ([r[key] for r in each if key in r] for each in (one, two))
        assert ours == pytest.approx(theirs, rel=1e-3)
    assert records(tmp_path / "again")[-1]["samples"] == 96
    refusal = ended["refused"][0]
    assert refusal.code == 2
    assert "networks for images train with ddp" in refusal.err
    assert not (tmp_path / "no").exists()

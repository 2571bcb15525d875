"""Checkpoints of several ranks: any number reads them, and what fails on one fails on all."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from distributed.checkpoint_program import LAYOUTS, LEAVES, whole_states, wrong
from mars.checkpoint import CheckpointError, find, load, load_newest, save
from mars.checkpoint.manifest import Fingerprint, Manifest, manifest_bytes, read_manifest


@pytest.fixture(scope="module")
def stories(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stories")
    model, training = whole_states()
    save(folder / "reshard" / "plain", step=1, model=model, training=training, keep=1)
    program = Path(__file__).with_name("checkpoint_program.py")
    done = subprocess.run(
        [sys.executable, str(program), str(folder)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    return folder


def told(folder: Path) -> list[dict]:
    """Return the report of every rank of a story that was not killed."""
    return [torch.load(p, weights_only=True) for p in sorted(folder.glob("report-*.pt"))]


@pytest.fixture(scope="module")
def folder(stories):
    return stories / "reshard"


@pytest.fixture(scope="module")
def reports(folder):
    return told(folder)


@pytest.fixture(scope="module")
def failures(stories):
    return told(stories / "fail")


def saved(folder: Path, name: str) -> Path:
    return folder / name / "step-00000001"


def test_any_number_of_ranks_reads_what_any_other_saved_exactly(reports):
    expected = {"2 on 4", "columns of 2 on 4", "plain on 4", "2 on 2", "plain on 2"}
    expected |= {f"4-{layout} on {world}" for layout in LAYOUTS for world in (1, 2)}
    expected |= {"1 on 1", "plain on 1"}
    reads = [{k: v for k, v in report.items() if " on " in k} for report in reports]
    assert set(reads[0]) == expected
    assert [len(read) for read in reads] == [len(expected), len(expected) - 7, 3, 3]
    for read in reads:
        for case, by_layout in read.items():
            assert set(by_layout) == {*LAYOUTS, "whole"}
            for layout, result in by_layout.items():
                assert result["wrong"] == [], (case, layout)


def test_a_rank_reads_the_regions_it_holds_and_no_more(reports):
    for report in reports:
        for case in ("2 on 4", "columns of 2 on 4"):
            for layout in LAYOUTS:
                result = report[case][layout]
                assert result["read"] == result["held"], (case, layout)
    # Over all ranks once in rows, and on each of them if replicated.
    elements = sum(torch.Size(shape).numel() for shape, _ in LEAVES.values()) + 35 + 12 + 10
    assert sum(report["2 on 4"]["rows"]["read"] for report in reports) == elements + 3
    assert [report["2 on 4"]["replicated"]["read"] for report in reports] == [elements] * 4


def test_what_is_a_ranks_own_comes_back_to_as_many_ranks_alone(reports):
    for rank, report in enumerate(reports[:2]):
        own = report["2 on 2"]["rows"]["own"]
        assert (own["rank"], own["random"].tolist()) == (rank, [rank] * 3)
        assert report["4-rows on 2"]["rows"]["own"] is None
    assert reports[0]["1 on 1"]["whole"]["own"]["rank"] == 0
    assert all(report["2 on 4"]["rows"]["own"] is None for report in reports)


@pytest.mark.parametrize("name", [*(f"4-{layout}" for layout in LAYOUTS), "2-columns", "1-rows"])
def test_a_process_without_a_group_reads_shards_whole(folder, name):
    loaded = load_newest(folder / name)
    assert wrong(loaded, None) == []
    assert loaded.about == {"layout": name[2:]}
    assert (loaded.own is None) == (name != "1-rows")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_model_of_shards_is_read_without_the_rest(folder, layout):
    whole = load_newest(folder / f"4-{layout}")
    alone = load_newest(folder / f"4-{layout}", model_only=True)
    assert alone.training == {}
    assert whole.training != {}
    assert list(alone.model) == list(whole.model)
    for name, value in alone.model.items():
        assert torch.equal(value, whole.model[name])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_several_ranks_hold_is_written_once(folder, layout):
    path = saved(folder, f"4-{layout}")
    total = 0
    for file in path.glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            total += sum(opened.get_tensor(name).nbytes for name in opened.keys())  # noqa: SIM118
    model, training = whole_states()
    sharded = [v for k, v in model.items() if k != "plain"]
    sharded += [training["stepper"]["state"][0]["exp_avg"], training["history"][0]]
    sharded += [training["history"][1][0]]
    assert total == sum(tensor.nbytes for tensor in sharded)


def test_a_sharded_checkpoint_has_a_version_that_older_readers_refuse(folder):
    entries = {
        name: json.loads((saved(folder, name) / "manifest.json").read_text())
        for name in ("4-rows", "bare/none", "1-rows", "plain")
    }
    assert [each["version"] for each in entries.values()] == [2, 1, 1, 1]
    assert [each.get("world_size") for each in entries.values()] == [4, 4, None, None]
    shards = {f"shard-{i:05d}-model-00001-of-00001.safetensors" for i in range(1, 5)}
    own = {f"own-{i:05d}.pt" for i in range(4)}
    assert set(entries["4-rows"]["files"]) == {"model.pt", "training.pt"} | shards | own
    files = {path.name for path in saved(folder, "4-rows").iterdir()}
    assert files == {"manifest.json", *entries["4-rows"]["files"]}
    assert set(entries["1-rows"]["files"]) == {"model.pt", "training.pt", "own-00000.pt"}
    assert set(entries["plain"]["files"]) == {"model.pt", "training.pt"}


def test_tied_sharded_weights_stay_tied_and_a_models_versions_survive(reports, folder):
    for report in reports:
        assert report["tied"] == {"wrong": [], "versions": True, "tied": True, "own": None}
    whole = load_newest(folder / "tied")
    assert whole.model["head.weight"] is whole.model["embedding.weight"]
    assert whole.model["head.weight"].shape == (3, 8)


def test_tensor_parallel_weights_that_are_sharded_too_come_back(reports):
    assert [report["tensor parallel"] for report in reports] == [[[], []]] * 4


def test_ranks_with_nothing_to_write_write_nothing(reports):
    for rank, report in enumerate(reports):
        bare = report["bare"]
        assert bare["scalar"].item() == 2.5
        shard = "shard-00001-model-00001-of-00001.safetensors"
        assert bare["one"] == ["manifest.json", "model.pt", shard, "training.pt"]
        own = [f"own-{i:05d}.pt" for i in (0, 2, 3)]
        assert bare["none"] == ["manifest.json", "model.pt", *own, "training.pt"]
        assert bare["own"] == (None if rank == 1 else {"rank": rank})


FAILURES = {
    "shard": "rank 1: No space left on device",
    "own": "rank 1: No space left on device",
    "model": "rank 0: No space left on device",
    "space": "rank 0: Input/output error",
    "seal": "rank 0: Input/output error",
    "memory": "rank 0: MemoryError: no memory",
}


def test_what_fails_on_one_rank_fails_on_all_and_loses_nothing(failures):
    assert failures[0].keys() == {*FAILURES, "apart", "refused", "damage"}
    for name, why in FAILURES.items():
        kind, message, *left = failures[0][name]
        assert (kind, left) == ("SaveError", ["step-00000001"]), name
        assert f"/step-00000002 failed: {why}; step 1 is good: " in message
        assert "\n" not in message
        assert failures[1][name] == failures[0][name]


def test_ranks_that_do_not_share_a_folder_write_no_checkpoint(failures):
    for rank, report in enumerate(failures):
        kind, message, *left = report["apart"]
        assert (kind, left) == ("SaveError", [])
        assert f"/apart-{rank}/step-00000001 failed: rank 1: No such file or directory" in message


def test_what_cannot_be_saved_is_refused_on_every_rank_before_anything_is_written(failures):
    refused = failures[0]["refused"]
    assert refused == failures[1]["refused"]
    assert refused["slash"] == [
        "CheckpointError",
        "model/a/b has a key with a '/' in its path: rename it",
    ]
    assert refused["partial"][1].startswith("model/w is a DTensor ((Partial(sum),), cpu); ")
    assert refused["complex"][1].endswith(
        "of torch.complex128, which safetensors has not: view it as real"
    )
    assert refused["placeholder"][1] == "model/x has the key 'mars.sharded': rename it"
    assert "['model/w1', [4], 'torch.float32'] where rank 0 has ['model/w0'" in refused["names"][1]
    assert "where rank 0 has None" in refused["more"][1]
    assert refused["keep"] == [
        "RefusedError",
        "keep must be at least 1, got 0: the newest is always kept",
    ]
    assert refused["step"][1] == "step must be the same on all ranks, got [5, 6]"
    assert refused["own"][1].startswith("own['x'] is a builtins.set")
    assert refused["folder"] == ["False"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("shard-00002-model-00001-of-00001.safetensors", "its SHA-256 differs"),
        ("own-00001.pt", "its SHA-256 differs"),
        ("model.pt", "its manifest says"),
    ],
)
def test_ranks_agree_on_the_newest_good_checkpoint(failures, name, why):
    for rank, report in enumerate(failures):
        step, rejected, differing, own = report["damage"][name]
        assert (step, differing, own["rank"]) == (1, [], rank)
        (complaint,) = rejected
        assert complaint == failures[0]["damage"][name][1][0]
        assert f"/step-00000002/{name} is damaged: " in complaint
        assert why in complaint
        kind, message = report["damage"][f"{name} itself"]
        assert (kind, message.startswith(f"{complaint}; step 1 is good: ")) == (
            "CheckpointError",
            True,
        )


def test_ranks_without_a_good_checkpoint_do_not_start_anew(failures):
    kind, message = failures[0]["damage"]["none"]
    assert kind == "CheckpointError"
    assert message.count("manifest.json cannot be read: No such file") == 2
    assert failures[1]["damage"]["none"] == [kind, message]


def test_a_place_of_another_shape_is_no_damage(failures):
    for report in failures:
        kind, message = report["damage"]["misplaced"]
        assert kind == "RefusedError"
        assert message.startswith("model/matrix has the shape (7, 5) in the checkpoint and (2,) in")


@pytest.mark.parametrize("story", ["lose_first", "lose_second"])
def test_a_killed_rank_ends_the_save_of_the_others_and_loses_nothing(stories, story):
    survivors = told(stories / story)
    assert len(survivors) == 2
    for report in survivors:
        kind, message = report["seen"]
        assert kind == "SaveError"
        assert re.search(r"/step-00000002 failed: a rank is gone: [\w ]+ \[127\.0\.0\.1\]", message)
        assert "; step 1 is good: /" in message
        assert not re.search("GLHF|pair.cc|\n", message)
        assert report["seconds"] < 60
    checkpoints = stories / story / "checkpoints"
    assert [found.step for found in find(checkpoints)] == [1]
    loaded = load_newest(checkpoints)
    assert (loaded.step, loaded.rejected, wrong(loaded, None)) == (1, [], [])
    save(checkpoints, step=3, model={}, training={}, keep=2)
    assert sorted(p.name for p in checkpoints.iterdir()) == ["step-00000001", "step-00000003"]


def test_plain_tensors_are_copied_into_their_places(tmp_path):
    model, training = whole_states()
    path = save(tmp_path, step=1, model=model, training=training, keep=1, own={"seed": 3})
    asked = {}

    def give(name, shape, dtype):
        asked[name] = torch.zeros(shape, dtype=torch.float64 if dtype.is_floating_point else dtype)
        return asked[name]

    loaded = load(path, place=give)
    names = {f"model/{name}" for name in model}
    names |= {f"training/stepper/state/0/{name}" for name in ("exp_avg", "step")}
    assert set(asked) == names | {"training/history/0", "training/history/1/0"}
    assert loaded.model["low"] is asked["model/low"]
    assert torch.equal(loaded.model["low"], model["low"].double())
    assert loaded.training["history"][1][1] == "text"
    assert loaded.own == {"seed": 3}


@pytest.fixture
def sharded(folder, tmp_path):
    return Path(shutil.copytree(saved(folder, "4-rows"), tmp_path / "step-00000001"))


def reseal(path: Path, *, without: str = "") -> None:
    """Adjust the manifest to the files, as an adversary would, or leave one out."""
    manifest = read_manifest(path)
    files = {}
    for name in manifest.files.keys() - {without}:
        raw = (path / name).read_bytes()
        files[name] = Fingerprint(len(raw), hashlib.sha256(raw).hexdigest())
    sealed = Manifest(manifest.step, files, manifest.about, manifest.world_size)
    (path / "manifest.json").write_bytes(manifest_bytes(sealed))


SHARD = "shard-00001-model-00001-of-00001.safetensors"


def test_a_shard_that_is_no_safetensors_is_refused(sharded):
    (sharded / SHARD).write_bytes(b"\x08" + bytes(7) + b"nonsense")
    with pytest.raises(CheckpointError, match=f"{SHARD} is damaged: it has 16 bytes"):
        load(sharded)
    reseal(sharded)
    with pytest.raises(
        CheckpointError, match="has shards that cannot be loaded: SafetensorError: "
    ):
        load(sharded)


def test_a_shard_that_is_left_out_is_missed(sharded):
    reseal(sharded, without=SHARD)
    with pytest.raises(CheckpointError, match=r"shards of model/\w+ are not the whole"):
        load(sharded)
    for number in (2, 3):
        reseal(sharded, without=SHARD.replace("1-model", f"{number}-model"))
    with pytest.raises(CheckpointError, match=r"shards of model/\w+ are not the whole"):
        load(sharded)


def test_a_placeholder_without_a_shard_is_missed(sharded):
    torch.save({"w": {"mars.sharded": "model/other"}}, sharded / "model.pt")
    reseal(sharded)
    with pytest.raises(CheckpointError, match="is damaged: no shard has model/other"):
        load(sharded)


def test_a_file_that_the_manifest_does_not_name_is_not_read(sharded):
    (sharded / SHARD.replace("1-model", "9-model")).write_bytes(b"nonsense")
    assert wrong(load(sharded), None) == []


@pytest.mark.parametrize("name", ["../secret.pt", "/etc/passwd", "own-1.pt", "shard.safetensors"])
def test_a_manifest_that_names_other_files_is_foreign(sharded, name):
    manifest = read_manifest(sharded)
    files = {**manifest.files, name: Fingerprint(0, "")}
    (sharded / "manifest.json").write_bytes(manifest_bytes(Manifest(1, files, {})))
    with pytest.raises(CheckpointError, match=f"it names the file '{name}'"):
        load(sharded)

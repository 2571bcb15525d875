"""What is asked: models by name, GPUs by name, batches that divide."""

import pytest

from mars.config import presets
from mars.config.errors import RefusedError
from mars.planning.gpus import GPUS, gpu_of, size_in_bytes
from mars.planning.inventory import take_inventory
from mars.planning.request import make_request
from mars.planning.shapes import NAMES, run_of
from mars.training import hardware

H100 = gpu_of("h100")


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt2-small", 0.124),
        ("gpt2-medium", 0.354),
        ("gpt2-large", 0.773),
        ("gpt2-xl", 1.557),
        ("gpt3-2.7b", 2.65),
        ("gpt3-6.7b", 6.66),
        ("gpt3-13b", 12.85),
    ],
)
def test_named_models_have_their_published_sizes(name, billions):
    run = run_of(name)
    inventory = take_inventory(run.model, run.optimizer)
    assert inventory.elements / 1e9 == pytest.approx(billions, abs=0.005 * max(1, billions))
    assert run.name == name


def test_every_name_is_a_model_that_can_be_planned():
    assert len(NAMES) == 7
    for name in NAMES:
        assert make_request(name, gpus=1, gpu=H100).run.training.precision == "bfloat16"


def test_an_unknown_model_is_refused_with_the_nearest():
    with pytest.raises(RefusedError, match=r'unknown model "gpt2-xxl"; did you mean gpt2-xl\?'):
        run_of("gpt2-xxl")


def test_a_shape_takes_one_micro_batch_a_gpu():
    made = make_request("gpt2-xl", gpus=32, gpu=H100)
    assert (made.micro_batch_size, made.micro_batches) == (4, 1)
    assert made.run.training.batch_size == 32 * 4
    smaller = make_request("gpt2-xl", gpus=32, gpu=H100, settings=["micro_batch_size=2"])
    assert (smaller.micro_batch_size, smaller.micro_batches) == (2, 1)
    more = make_request("gpt2-xl", gpus=32, gpu=H100, settings=["batch_size=512"])
    assert (more.micro_batch_size, more.micro_batches) == (4, 4)


def test_a_preset_divides_its_own_batch():
    made = make_request("gpt2-small-openwebtext-mars-adamw", gpus=8, gpu=H100)
    assert made.run.training.batch_size == 480
    assert (made.micro_batch_size, made.micro_batches) == (15, 4)


def test_a_file_can_be_planned(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[model]\nlayers = 2\n[training]\nbatch_size = 8\nparallel = "fsdp2"\n')
    made = make_request(str(path), gpus=4, gpu=H100)
    assert made.run.model.layers == 2
    assert (made.micro_batch_size, made.micro_batches) == (2, 1)
    assert [layout.mode for layout in made.layouts] == ["fsdp2"]


def test_an_optimizer_brings_its_constants():
    made = make_request("gpt2-small", gpus=1, gpu=H100, optimizer="muon")
    assert made.run.optimizer == presets.constants("muon")


def test_the_optimizer_of_a_preset_stays_as_it_is():
    name = "gpt2-small-openwebtext-adamw"
    made = make_request(name, gpus=8, gpu=H100, optimizer="adamw")
    assert made.run.optimizer == presets.preset(name).optimizer


@pytest.mark.parametrize(
    ("model", "keywords", "message"),
    [
        ("gpt2-small", {"gpus": 0}, "--gpus must be at least 1, got 0"),
        ("gpt2-small", {"gpus": -3}, "--gpus must be at least 1, got -3"),
        (
            "gpt2-small-openwebtext-adamw",
            {"gpus": 7},
            "training.batch_size = 480 is not divisible by --gpus 7; use --set batch_size=483",
        ),
        (
            "gpt2-xl-openwebtext-adamw",
            {"gpus": 32},
            "training.micro_batch_size = 4 does not divide the 15 sequences of each of 32 GPUs",
        ),
        (
            "gpt2-small",
            {"gpus": 1, "settings": ["heads=11"]},
            "model.width = 768 is not divisible by model.heads = 11",
        ),
        (
            "gpt2-small",
            {"gpus": 1, "optimizer": "adamw", "settings": ["gamma=0.1"]},
            "optimizer.gamma = 0.1 has no meaning for adamw",
        ),
        (
            "gpt2-small",
            {"gpus": 1, "settings": ["lean=true"]},
            'optimizer.lean = true needs optimizer.clip = "none"',
        ),
        ("gpt2-small", {"gpus": 1, "settings": ["gama=0.1"]}, "did you mean optimizer.gamma?"),
        (
            "gpt2-small",
            {"gpus": 1, "options": {"training.micro_batch_size": 0}},
            "training.micro_batch_size must be at least 1, got 0",
        ),
    ],
)
def test_what_cannot_be_is_refused(model, keywords, message):
    with pytest.raises(RefusedError) as refusal:
        make_request(model, gpu=H100, **keywords)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("80GB", 80 * 10**9),
        ("80", 80 * 10**9),
        ("79.5 gb", 79_500_000_000),
        ("24GiB", 24 * 2**30),
        ("500MB", 5 * 10**8),
        ("1TB", 10**12),
    ],
)
def test_sizes_are_read_as_people_write_them(text, count):
    assert size_in_bytes(text, option="--gpu-memory") == count


@pytest.mark.parametrize("text", ["", "GB", "80XB", "-3GB", "0GB", "eighty", "nan", "1e3GB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(RefusedError, match="--gpu-memory"):
        size_in_bytes(text, option="--gpu-memory")


def test_an_unknown_gpu_is_refused_with_the_nearest():
    with pytest.raises(RefusedError, match=r"did you mean h100\? describe others by --gpu-memory"):
        gpu_of("h110")
    with pytest.raises(RefusedError, match="there are a100-40gb, a100-80gb, h100"):
        gpu_of("voodoo")
    assert gpu_of("H100") is H100


def test_peaks_are_those_that_training_measures_itself_against():
    known = {name.lower().replace(" ", "-"): peak for name, peak in hardware._PEAK_FLOPS.items()}
    for name, gpu in GPUS.items():
        assert gpu.half_flops == known[name.removesuffix("-40gb").removesuffix("-80gb")]

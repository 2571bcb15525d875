"""``mars plan`` from the command line: what it prints, its JSON, what it refuses."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mars import cli

ROOT = Path(__file__).parents[2]


def printed(arguments: str, capsys) -> str:
    assert cli.main(["plan", *arguments.split()]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def figures(arguments: str, capsys) -> dict:
    return json.loads(printed(f"{arguments} --json", capsys))


def row(out: str, name: str) -> list[str]:
    (line,) = (line for line in out.splitlines() if line.startswith(name))
    return line.removeprefix(name).split()


def test_all_modes_stand_side_by_side(capsys):
    out = printed("--model gpt2-xl --gpus 32 --optimizer mars-adamw", capsys)
    assert out.startswith("gpt2-xl  1.6B parameters, mars-adamw, bfloat16\n")
    assert "32 x h100 of 80.0 GB, 4 x 1024 tokens a GPU" in out
    assert row(out, "of one GPU") == ["ddp", "fsdp2", "hsdp", "4x8"]
    parameters = 4 * 1_556_609_600 / 1e9
    expected = [f"{parameters:.2f}", f"{parameters / 32:.2f}", f"{parameters / 8:.2f}"]
    assert row(out, "parameters, GB") == expected
    assert row(out, "optimizer state, GB") == ["18.7", "0.58", "2.34"]


def test_the_table_has_the_figures_of_the_json(capsys):
    arguments = "--model gpt3-13b --gpus 64 --optimizer mars-m"
    out, made = printed(arguments, capsys), figures(arguments, capsys)
    peaks = [plan["memory"]["peak"] / 1e9 for plan in made["plans"]]
    for shown, peak in zip(row(out, "peak, GB"), peaks, strict=True):
        assert float(shown) == pytest.approx(peak, rel=0.01)
    links = [1000 * plan["times"]["link"] for plan in made["plans"]]
    for shown, link in zip(row(out, "link time, ms"), links, strict=True):
        assert float(shown) == pytest.approx(link, rel=0.01)
    assert made["optimizer"]["state_bytes"] == 8 * made["model"]["parameters"]


def test_every_layout_has_a_verdict(capsys):
    out = printed("--model gpt3-13b --gpus 16", capsys)
    assert re.search(r"^ddp does not fit: needs \d+ GB$", out, re.MULTILINE)
    assert re.search(r"^fsdp2 fits$", out, re.MULTILINE)
    assert "Next to try" not in out


def test_what_does_not_fit_comes_with_the_next_thing_to_try(capsys):
    out = printed("--model gpt3-13b --gpus 16 --parallel ddp", capsys)
    assert re.search(r"^Next to try: --parallel fsdp2, which fits with [\d.]+ GB\.$", out, re.M)
    out = printed("--model gpt3-13b --gpus 16 --gpu-memory 1GB", capsys)
    assert "Nothing else fits either: choose larger GPUs or a smaller model." in out


def test_a_mode_can_be_asked_for_alone(capsys):
    made = figures("--model gpt2-small --gpus 8 --parallel hsdp --replicas 4", capsys)
    (only,) = made["plans"]
    assert only["layout"] == {"mode": "hsdp", "replicas": 4, "shards": 2}


def test_options_reach_the_run(capsys):
    made = figures(
        "--model gpt2-small --precision float32 --micro-batch-size 2 --context-length 256 "
        "--activation-checkpointing --set optimizer.exact=true --set bias=true",
        capsys,
    )
    assert made["training"] == {
        "precision": "float32",
        "batch_size": 2,
        "activation_checkpointing": True,
    }
    assert made["model"]["context_length"] == 256
    assert made["model"]["bias"]
    assert made["optimizer"]["exact"]
    assert made["plans"][0]["memory"]["previous_gradients"] > 0


def test_figures_of_a_gpu_can_be_given(capsys):
    made = figures(
        "--model gpt2-small --gpus 16 --gpu a100-40gb --gpu-memory 24GB --bandwidth 500 --link 10",
        capsys,
    )
    gpu = made["gpu"]
    assert (gpu["memory_bytes"], gpu["bandwidth"]) == (24 * 10**9, 500)
    assert (gpu["link"], gpu["node_link"]) == (10, 10)
    both = figures("--model gpt2-small --gpus 16 --link 10 --node-link 100", capsys)["gpu"]
    assert (both["link"], both["node_link"]) == (10, 100)


def test_a_slower_link_takes_longer_in_proportion(capsys):
    fast, slow = (
        figures(f"--model gpt2-small --gpus 16 --link {rate}", capsys) for rate in (100, 25)
    )
    for a, b in zip(fast["plans"], slow["plans"], strict=True):
        assert b["times"]["link"] == pytest.approx(4 * a["times"]["link"])


def test_the_lean_form_keeps_a_third_less(capsys):
    lean = "--set lean=true clip=none second_moment=gradient"
    full, less = (figures(f"--model gpt2-xl {extra}", capsys) for extra in ("", lean))
    ratio = less["optimizer"]["state_bytes"] / full["optimizer"]["state_bytes"]
    assert ratio == pytest.approx(2 / 3, rel=1e-3)


def test_a_preset_is_planned_with_its_own_numbers(capsys):
    made = figures("--model quickstart", capsys)
    assert made["model"]["name"].startswith("quickstart")
    assert made["plans"][0]["layout"]["mode"] == "none"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "--model is needed: gpt2-small, gpt2-medium"),
        ("--model gpt2-xxl", 'unknown model "gpt2-xxl"; did you mean gpt2-xl?'),
        ("--model nowhere.toml", "nowhere.toml"),
        ("--model gpt2-xl --gpus 0", "--gpus must be at least 1, got 0"),
        ("--model gpt2-xl --gpus many", "--gpus"),
        ("--model gpt2-xl --gpu h10", "did you mean h100?"),
        ("--model gpt2-xl --gpu-memory 80XB", '--gpu-memory: "80XB" is no size'),
        ("--model gpt2-xl --bandwidth 0", "--bandwidth must be positive and finite, got 0"),
        ("--model gpt2-xl --link -1", "--link must be positive and finite, got -1"),
        ("--model gpt2-xl --node-link inf", "--node-link must be positive and finite, got inf"),
        ("--model gpt2-xl --parallel ddp", "--parallel ddp needs several GPUs"),
        ("--model gpt2-xl --gpus 4 --parallel hsdp", "with --replicas, or use fsdp2"),
        ("--model gpt2-xl --gpus 6 --replicas 4", "--replicas 4 does not divide --gpus 6"),
        ("--model gpt2-xl --gpus 8 --parallel hsdp --replicas 0", "--replicas 0 does not divide"),
        ("--model gpt2-xl --optimizer adam", "invalid choice 'adam'"),
        ("--model gpt2-xl --optimizer adamw --set lean=true", "has no meaning for adamw"),
        ("--model gpt2-xl --set heads=7", "is not divisible by model.heads = 7"),
        ("--model gpt2-xl --micro-batch-size 0", "must be at least 1, got 0"),
        ("--model gpt2-xl --precisoin float32", "did you mean --precision?"),
    ],
)
def test_bad_arguments_exit_with_2_and_one_clear_line(arguments, message, capsys):
    assert cli.main(["plan", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("mars: ")
    assert message in err


def test_help_lists_every_option(capsys):
    assert cli.main(["plan", "--help"]) == 0
    out = capsys.readouterr().out
    for option in ("model", "gpus", "optimizer", "precision", "parallel", "replicas", "link"):
        assert f"--{option}" in out
    assert "{None}" not in out


def test_a_refusal_needs_no_torch():
    # The package's own __init__ offers MARS and so imports torch: a stand-in for it.
    program = f"""
import sys, types
package = types.ModuleType("mars")
package.__path__ = [{str(ROOT / "src" / "mars")!r}]
sys.modules["mars"] = package
from mars.cli import main
assert main(["plan", "--model", "gpt2-xl", "--gpus", "4", "--parallel", "hsdp"]) == 2
assert "torch" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

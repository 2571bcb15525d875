"""The command line: help, refusals, exit codes. What commands do is tested with their rooms."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mars import cli

ROOT = Path(__file__).parents[1]


def test_help_lists_every_command_with_one_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main(["--help"]) == 0
    lines = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line.startswith("•")] == [
        "• train     Train a model: from a preset or a TOML file to a run directory.",
        "• prepare   Turn text or images into a folder to train on.",
        "• compare   Compare optimizers, each with its own search for a learning rate, over seeds.",
        "• report    Make one page of any number of runs or comparisons: verdict, tables, curves.",
        "• diagnose  Measure how much variance MARS removes from a run's gradients, mode by mode.",
        "• eval      Measure a model: tasks of lm-evaluation-harness, validation loss on a corpus.",
        "• export    Write a run as a Hugging Face folder: weights, config, tokenizer, model card.",
        "• sample    Let a trained model continue a prompt.",
        "• bench     Step time and memory, against torch and other ports of MARS.",
        "• plan      Compute what training takes on a cluster: memory, traffic, times; what fits.",
    ]


def test_help_of_bench_lists_every_option_and_says_defaults(capsys):
    assert cli.main(["bench", "--help"]) == 0
    out = capsys.readouterr().out
    for option in ("sizes", "types", "engines", "steps", "rounds", "threads", "json", "quick"):
        assert f"--{option}" in out
    assert "default: small" in out
    assert "{None}" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [],
            "a command is needed: train, prepare, compare, report, diagnose, eval, export, sample, "
            "bench, plan;",
        ),
        (
            ["bemch"],
            "'bemch' is no command: train, prepare, compare, report, diagnose, eval, export, "
            "sample, bench, plan",
        ),
        (["bench", "--stepz", "3"], "did you mean --steps?"),
        (["bench", "--steps", "x"], "--steps: a whole number is needed, got 'x'"),
        (["bench", "--steps"], "Missing value for argument '--steps'"),
        (["bench", "--steps", "0"], "--steps must be at least 1, got 0"),
        (["bench", "--rounds", "-1"], "--rounds must be at least 1, got -1"),
        (["bench", "--threads", "0"], "--threads must be at least 1, got 0"),
        (["bench", "--types", "mars-adam"], "invalid choice 'mars-adam' for argument '--types'"),
        (["bench", "--engines", "slow"], "invalid choice 'slow' for argument '--engines'"),
        (["bench", "--sizes"], "--sizes needs at least one value"),
        (["bench", "--sizes", "tiny"], "unknown size 'tiny'; choose small, medium"),
        (["bench", "--sizes", "1Mx3"], "1,000,000 elements do not make 3 equal tensors"),
        (["bench", "--sizes", "0M"], "0M is not possible"),
        (["bench", "--sizes", "small", "900G"], "900G (900,000,000,000 parameters) does not fit"),
        (["bench", "--json", "/nowhere/at/all.json"], "there is no directory /nowhere/at"),
        (["bench", "--json", "/tmp"], "--json /tmp is a directory"),
    ],
)
def test_bad_arguments_exit_with_2_and_one_clear_line(arguments, message, capsys):
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("mars: ")
    assert message in err


def test_a_long_refusal_stays_one_line_in_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert cli.main(["bench", "--types", "mars-adam"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "Expected one of ('mars-adamw', 'mars-lion', 'mars-shampoo', 'mars-m')" in err


def test_an_interrupt_exits_with_130(capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("mars.bench.run.run", interrupted)
    assert cli.main(["bench", "--quick"]) == 130
    assert capsys.readouterr().err == "mars: interrupted\n"


def test_the_installed_command_and_the_module_are_the_same():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"mars": "mars.cli:main"}
    done = subprocess.run(
        [sys.executable, "-m", "mars", "bench", "--steps", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, "mars: --steps must be at least 1, got 0\n")


def in_a_process(program: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


def test_help_and_refusals_need_no_torch():
    # The package's own __init__ offers MARS and so imports torch; a stand-in shows what the
    # command adds to it.
    done = in_a_process(
        f"""
import sys, types
package = types.ModuleType("mars")
package.__path__ = [{str(ROOT / "src" / "mars")!r}]
sys.modules["mars"] = package
from mars.cli import main
assert main(["--help"]) == 0 and main(["bench", "--help"]) == 0
assert main(["bench", "--rounds", "0"]) == 2
assert "torch" not in sys.modules
"""
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["tyro", "rich"])
def test_without_its_extra_the_command_says_what_to_install(package):
    done = in_a_process(
        f"""
import sys
sys.modules[{package!r}] = None
from mars.cli import main
sys.exit(main([]))
"""
    )
    assert done.returncode == 2
    assert done.stderr == (
        "mars: the command needs the extra 'train': pip install 'mars-optimizer[train]'\n"
    )

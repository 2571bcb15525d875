"""``mars compare`` as a person uses it: lists, plans, refusals, and what is shown at the end."""

import os
import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest

from mars import cli
from mars.commands import compare, extras
from mars.comparison import conduct, study
from mars.comparison.plan import Failure
from mars.comparison.runner import StoppedError
from mars.report import table
from training.runs import make_corpus, write_config

RATES = ("--optimizers", "mars-adamw,adamw", "--lr", "mars-adamw=0.01,0.02", "adamw=0.01,1000")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


def test_the_studies_are_listed_with_what_they_ask(capsys):
    assert cli.main(["compare", "--list"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for name in study.names():
        assert name in out
        assert " ".join(study.describe(name).split()[:4]) in out


def test_a_dry_run_shows_what_would_run_and_makes_nothing(tmp_path, corpus, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config = write_config(tmp_path, corpus)
    before = sorted(tmp_path.rglob("*"))
    seeds = ("--seeds", "0,1,2", "--search-seeds", "1")
    assert cli.main(["compare", str(config), *RATES, *seeds, "--dry-run"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1:4] == [
        "arm rates settings",
        "mars-adamw 0.01, 0.02",
        "adamw (baseline) 0.01, 1000",
    ]
    assert lines[4:] == [
        "seeds 0, 1, 2",
        "8 runs: 4 to search rates on seed 0, 4 of the best rates on the other seeds",
        f"{8 * 12 * 4 * 16 / 1000:.1f}k tokens in all",
    ]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_search_on_all_seeds_has_one_phase(tmp_path, corpus, capsys):
    config = write_config(tmp_path, corpus)
    assert cli.main(["compare", str(config), *RATES, "--seeds", "3,4", "--dry-run"]) == 0
    assert "8 runs: 8 to search rates on seeds 3, 4\n" in capsys.readouterr().out


def test_what_an_arm_sets_is_shown(capsys):
    assert cli.main(["compare", "gamma-study", "--dry-run"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "gamma = 0.025, betas = [0.95, 0.99]" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a preset, a study or a TOML file; mars compare --list"),
        (["quickstat"], "did you mean quickstart"),
        (["quickstart", "--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["quickstart", "--jobs", "many"], "--jobs"),
        (["quickstart", "--optimizers", "adam"], "adam"),
        (["quickstart", "--seeds", "a"], "--seeds"),
        (["quickstart", "--lr", "adamw=-1,2"], "adamw"),
        (["quickstart", "--baseline", "sgd"], "sgd"),
        (["quickstart", "--set", "lr=-1"], "lr"),
        (["quickstart", "--out", "full"], "--out full exists and holds no comparison"),
    ],
)
def test_a_wrong_command_line_leaves_nothing(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("years of work")
    assert cli.main(["compare", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mars: ")
    assert err.count("\n") == 1
    assert words in err
    assert os.listdir(tmp_path) == ["full"]
    assert os.listdir(tmp_path / "full") == ["thesis.tex"]


def test_without_its_extra_it_refuses_before_it_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "plotly" else name)
    assert cli.main(["compare", "quickstart"]) == 2
    err = capsys.readouterr().err
    assert err == "mars: mars compare needs plotly: pip install 'mars-optimizer[report]'\n"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ("quickstart", "compare-quickstart"),
        ("gamma-study", "gamma-study"),
        ("tiny.toml", "compare-tiny"),
        ("mine.toml", "mine"),
    ],
)
def test_without_a_place_the_name_gives_one(config, place, tmp_path, corpus, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path, corpus, optimizer="adamw")
    (tmp_path / "mine.toml").write_text(
        'base = "tiny.toml"\n[[arms]]\noptimizer = "adamw"\nrates = [0.01]\n'
        '[[arms]]\noptimizer = "lion"\nrates = [0.01]\n'
    )
    places = []
    monkeypatch.setattr(compare, "_compare", lambda _, folder, *__: places.append(folder))
    lr = () if config != "tiny.toml" else RATES
    assert cli.main(["compare", config, *lr]) == 0
    assert [str(folder) for folder in places] == [f"runs/{place}"]


def test_data_that_is_not_there_is_refused_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path, tmp_path / "absent")
    before = sorted(tmp_path.rglob("*"))
    assert cli.main(["compare", "tiny.toml", *RATES, "--jobs", "2"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"mars: data.path = '{tmp_path / 'absent'}' does not exist; make it with")
    assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_comparison_ends_with_its_table_and_paths_and_never_imports_torch(tmp_path, corpus):
    config = write_config(tmp_path, corpus, optimizer="adamw", steps=30)
    program = """
import sys
from mars.cli import main
code = main(sys.argv[1:])
print("torch" in sys.modules)
sys.exit(code)
"""
    rates = ("--optimizers", "adamw,nadamw", "--lr", "adamw=0.01", "nadamw=0.01")
    arguments = ["compare", str(config), *rates, "--seeds", "0", "--jobs", "1", "--out", "out"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[-4:] == [
        "runs    out/runs",
        "results out/results.json",
        "page    out/report.html",
        "False",
    ]
    ended = [line for line in lines if line.startswith(("1/2  ", "2/2  "))]
    assert [line.split()[1] for line in ended] == ["adamw", "nadamw"]
    assert all(" validation loss " in line for line in ended)
    assert sum(line.endswith("on 1 process (from the first steps)") for line in lines) == 1
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [("SIGINT", 130, "mars: interrupted\n"), ("SIGTERM", 143, ""), ("SIGHUP", 129, "")],
)
def test_a_signal_gives_the_exit_code_of_its_number(
    name, code, words, tmp_path, corpus, monkeypatch, capsys
):
    def stopped(*_, **__):
        raise StoppedError(name)

    monkeypatch.setattr(conduct, "conduct", stopped)
    config = write_config(tmp_path, corpus)
    arguments = ["compare", str(config), *RATES, "--out", "out"]
    assert cli.main(arguments) == code
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"Stopped by {name}, all is saved. Go on with:",
        f"  mars {shlex.join(arguments)}",
    ]
    assert err == words


def test_runs_that_failed_are_told_and_exit_with_1(tmp_path, corpus, monkeypatch, capsys):
    failures = (Failure("runs/a", "no luck"), Failure("runs/b", "none either"))
    done = SimpleNamespace(analysis=None, failures=failures)
    monkeypatch.setattr(conduct, "conduct", lambda *_, **__: done)
    monkeypatch.setattr(table, "show", lambda *_: None)
    config = write_config(tmp_path, corpus)
    assert cli.main(["compare", str(config), *RATES, "--out", str(tmp_path / "out")]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == f"page    {tmp_path / 'out' / 'report.html'}"
    assert err == (
        "mars: 2 runs failed, which the same command tries again: "
        "runs/a: no luck; runs/b: none either\n"
    )

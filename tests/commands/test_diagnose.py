"""``mars diagnose`` as a person uses it: the table, the file, the bar, and mistakes."""

import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from mars import cli
from mars.commands import diagnose as command
from mars.diagnosis.gradients import Gradients
from mars.diagnosis.plan import Asked
from mars.diagnosis.run import Work, diagnose
from mars.training.run_directory import RunDirectory
from training.runs import make_corpus, run, write_config

SMALL = ("--streams", "3", "--history", "3", "--large-batch", "16")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    run(write_config(folder, make_corpus(folder)), folder / "run")
    return folder / "run"


@pytest.fixture
def copied(trained, tmp_path):
    """A run of its own, to be written to."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def found(trained):
    asked = Asked(at="2,12", streams=3, history=3, large_batch=16)
    return diagnose(RunDirectory(trained), asked, observe=lambda _: None, tell=lambda _: None)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def shown(diagnosis, *, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    command.show(diagnosis, console)
    return console.file.getvalue()


def test_a_diagnosis_writes_one_file_and_changes_no_other(copied, capsys):
    before = contents(copied)
    assert cli.main(["diagnose", str(copied), "--at", "6,12", *SMALL]) == 0
    after = contents(copied)
    assert after.keys() - before.keys() == {"diagnosis.json"}
    assert {name: after[name] for name in before} == before
    data = json.loads(after["diagnosis.json"])
    assert [step["step"] for step in data["steps"]] == [6, 12]
    assert (data["streams"], data["history"], data["large_batch"]) == (3, 3, 16)
    out = capsys.readouterr().out
    assert f"Written to {copied / 'diagnosis.json'}" in out
    assert f"report {copied}" in out


def test_the_same_command_gives_the_same_file_and_another_replaces_it(copied, capsys):
    results = []
    for at in ("6", "6", "12"):
        assert cli.main(["diagnose", str(copied), "--at", at, *SMALL]) == 0
        results.append((copied / "diagnosis.json").read_bytes())
    capsys.readouterr()
    assert results[0] == results[1]
    assert [step["step"] for step in json.loads(results[2])["steps"]] == [12]


def test_the_table_has_a_row_for_each_kind_with_the_figures_of_the_file(found):
    text = shown(found)
    rows = [line.split() for line in text.splitlines()]
    steps = {row[0]: row for row in rows if row and row[0] in ("2", "12")}
    for step in found.steps:
        row = steps[str(step.step)]
        figures = step.kinds["all"]
        assert row[1] == "all"
        assert row[2] == f"{figures['gradient'].variance:.3g}"
        assert row[3] == f"{figures['ema'].variance:.3g}"
        assert row[4] == f"{figures['approx'].ratio_to_ema:.2f}"
        assert row[5] == f"[{figures['approx'].ratio_low:.2f},"
        assert row[7] == f"{figures['exact'].ratio_to_ema:.2f}"
        errors = [f"{figures[name].error:.3g}" for name in ("ema", "approx", "exact")]
        assert row[-3:] == errors
    kinds = [row[0] for row in rows if row and row[0] in ("attention", "embedding", "mlp")]
    assert kinds == ["attention", "embedding", "mlp"] * 2


def test_a_narrow_terminal_gets_whole_columns(found):
    text = shown(found, width=80)
    table = text[: text.index("3 streams of")]
    assert "…" not in table
    assert "exact" in table
    assert "error\n" not in table
    assert max(map(len, table.splitlines())) <= 80


def test_the_notes_say_how_it_was_measured(found):
    text = shown(found)
    assert (
        "3 streams of 4 sequences a step over 3 steps, against 16 sequences; beta1 0.95, "
        "gamma 0.025, the run's own." in text
    )
    assert "MARS's defaults" in shown(replace(found, is_own_correction=False))
    # Two steps of history leave 0.95^2 of the start.
    assert re.search(r"At step 2 .*\n?.* 90\.2% of them is that start", text)


def test_a_noisy_large_batch_is_pointed_out(found):
    step = found.steps[0]
    quiet = replace(found, steps=(replace(step, squared_norm_noise={"all": 0.0}),))
    assert "--large-batch" not in shown(quiet)
    half = {"all": step.squared_norm["all"] / 2}
    noisy = replace(found, steps=(replace(step, squared_norm_noise=half),))
    assert "At step 2, 50.0% of the large batch's squared gradient is its own noise" in shown(noisy)


def test_the_clip_is_shown_where_it_matters(found):
    step = found.steps[0]
    plain = dict(step.kinds["all"])
    same = {**plain, "approx_clipped": plain["approx"], "exact_clipped": plain["exact"]}
    assert "clipped" not in shown(replace(found, steps=(replace(step, kinds={"all": same}),)))
    halved = replace(plain["approx"], variance=plain["approx"].variance / 2)
    other = {**same, "approx_clipped": halved}
    assert "clipped" in shown(replace(found, steps=(replace(step, kinds={"all": other}),)))


def test_two_streams_have_figures_without_intervals(trained):
    asked = Asked(at="2", streams=2, history=2, large_batch=8)
    made = diagnose(RunDirectory(trained), asked, observe=lambda _: None, tell=lambda _: None)
    figures = made.steps[0].kinds["all"]["approx"]
    assert figures.ratio_low is None
    table = shown(made).split("2 streams")[0]
    assert f" {figures.ratio_to_ema:.3g} " in table
    assert "[0" not in table


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--at", "13"], "--at 13 lies beyond step 12"),
        (["--at", "0"], "--at takes steps from 1 on"),
        (["--at", "soon"], "got 'soon'"),
        (["--streams", "1"], "--streams 1 must be at least 2"),
        (["--streams", "many"], "--streams"),
        (["--history", "0"], "--history 0 must be at least 1"),
        (["--micro-batch-size", "-1"], "--micro-batch-size -1"),
        (["--large-batch", "7"], "--large-batch 7 must be at least twice the micro-batch of 4"),
        (["--strems", "3"], "did you mean --streams?"),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(trained, arguments, words, capsys):
    before = contents(trained)
    assert cli.main(["diagnose", str(trained), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err
    assert contents(trained) == before


@pytest.mark.parametrize("place", ["nothing", "."])
def test_a_folder_that_is_no_run_is_refused(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["diagnose", place]) == 2
    assert "is not a run directory: it has no run.toml" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_unfinished_run_is_measured_as_far_as_it_has_come(copied, capsys):
    metrics = copied / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:3]))
    shutil.rmtree(copied / "checkpoints" / "step-00000012")
    assert cli.main(["diagnose", str(copied), *SMALL]) == 0
    capsys.readouterr()
    data = json.loads((copied / "diagnosis.json").read_text())
    assert [step["step"] for step in data["steps"]] == [1, 4, 8]
    assert cli.main(["diagnose", str(copied), "--at", "9"]) == 2
    assert "beyond step 8" in capsys.readouterr().err


def test_an_interruption_leaves_nothing_behind(copied, monkeypatch, capsys):
    before = contents(copied)
    calls = []
    whole = Gradients.at

    def interrupted(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 20:
            raise KeyboardInterrupt
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(Gradients, "at", interrupted)
    assert cli.main(["diagnose", str(copied), "--at", "12", *SMALL]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert contents(copied) == before


def test_a_lack_of_memory_is_put_into_words(copied, monkeypatch, capsys):
    def greedy(*_, **__):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 8 bytes")

    monkeypatch.setattr(Gradients, "at", greedy)
    assert cli.main(["diagnose", str(copied), "--at", "12", *SMALL]) == 1
    assert capsys.readouterr().err == (
        "mars: there is not enough memory; lower --micro-batch-size or --history\n"
    )


def test_another_error_is_not_taken_for_a_lack_of_memory(copied, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(Gradients, "at", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        cli.main(["diagnose", str(copied), "--at", "12", *SMALL])


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A file that takes itself for a terminal."""

    def isatty(self) -> bool:
        return True


def advance(show, clock: Clock, work: Work, *, seconds: float, sequences: int) -> None:
    clock.now += seconds
    work.done += sequences
    show(work)


def test_a_log_gets_a_line_now_and_then_with_the_time_left():
    clock, console = Clock(), Console(file=io.StringIO(), width=100)
    work = Work(total=1000, observe=lambda _: None, doing="replaying")
    with command._shown(console, clock=clock) as show:
        # What came before the first gradient does not count.
        advance(show, clock, work, seconds=100, sequences=100)
        for _ in range(4):
            advance(show, clock, work, seconds=5, sequences=100)
    lines = console.file.getvalue().splitlines()
    assert lines == [
        "20.0%  0:40 left  replaying",
        "40.0%  0:30 left  replaying",
    ]


def test_a_terminal_gets_a_bar_that_goes_away():
    clock = Clock()
    console = Console(file=Terminal(), width=100, force_terminal=True, force_interactive=True)
    work = Work(total=1000, observe=lambda _: None, doing="drawing")
    with command._shown(console, clock=clock) as show:
        for _ in range(4):
            advance(show, clock, work, seconds=1, sequences=100)
    drawn = console.file.getvalue()
    assert "30.0%  0:07 left  drawing" in drawn
    assert "━" in drawn
    assert drawn.rstrip().endswith("\x1b[2K")


def test_the_command_does_not_import_torch_before_it_must():
    program = (
        "import sys, mars.cli\n"
        "code = mars.cli.main(['diagnose', 'x', '--streams', '1'])\n"
        "print(code, 'torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["2", "False"]

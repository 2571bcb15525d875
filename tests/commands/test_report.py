"""``mars report`` as a person uses it."""

import os
import subprocess
import sys

import pytest

from mars import cli
from mars.commands.extras import REPORT
from report.example import FINALS, parsed, write_example
from report.synthetic import make_config, write_run


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return write_example(tmp_path_factory.mktemp("report") / "study")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(arguments, capsys):
    """Return the one line that a refused command line gives."""
    assert cli.main(["report", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mars: ")
    assert err.count("\n") == 1
    return err


def test_a_page_is_made_and_its_place_told(study, here, capsys):
    assert cli.main(["report", str(study)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "example study"
    assert out.splitlines()[-1].split() == ["page", "report.html"]
    assert "mars-m ended at a lower validation loss than adamw" in out
    tree = parsed((here / "report.html").read_text())
    assert [e.text for e in tree.by_id("arms").all("th")][-4:] == list(FINALS)
    assert os.listdir(here) == ["report.html"]


def test_title_baseline_place_and_figures_are_as_asked(study, here, capsys):
    arguments = ["--title", "My study", "--baseline", "mars-m", "--out", "pages/a.html"]
    assert cli.main(["report", str(study), *arguments, "--figures", "figures"]) == 0
    out = capsys.readouterr().out
    tree = parsed((here / "pages" / "a.html").read_text())
    assert [e.text for e in tree.all("h1")] == ["My study"]
    assert "Compared with mars-m" in tree.by_id("arms").text
    assert len(list((here / "figures").iterdir())) == 10
    assert out.splitlines()[-1] == "figures figures (10 files)"


def test_runs_are_given_one_by_one_too(here, capsys):
    for label, lr, final in (("adamw", 0.002, 1.5), ("muon", 0.02, 1.4)):
        write_run(here / label, make_config(label, lr=lr, seed=0), final)
    assert cli.main(["report", "adamw", "muon"]) == 0
    assert "One seed" in " ".join(capsys.readouterr().out.split())
    tree = parsed((here / "report.html").read_text())
    assert [e.text for e in tree.all("h1")] == ["Comparison of adamw, muon"]


def test_markdown_is_printed_and_no_page_made(study, here, capsys):
    assert cli.main(["report", str(study), "--markdown"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("### example study\n")
    assert "| mars-m | 0.016 " in out
    assert max(map(len, out.splitlines())) > 150  # no row is wrapped
    assert os.listdir(here) == []


def test_markdown_with_figures_prints_markdown_alone(study, here, capsys):
    assert cli.main(["report", str(study), "--markdown", "--figures", "figures"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("```")
    assert len(list((here / "figures").iterdir())) == 10


def test_an_old_page_is_replaced(study, here, capsys):
    for title in ("old", "new"):
        assert cli.main(["report", str(study), "--title", title]) == 0
    capsys.readouterr()
    assert "<h1>new</h1>" in (here / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent"], "absent is neither a run nor a comparison"),
        ([], "no runs were given; name run directories or comparisons"),
        (["STUDY", "--out", "."], "--out . is a directory; name a file, such as report.html"),
        (
            ["STUDY", "--baseline", "adam"],
            "--baseline adam is none of the arms; did you mean adamw?",
        ),
        (["STUDY", "--markdown", "--out", "a.html"], "--markdown prints and makes no page"),
        (["STUDY", "--figures", "notes.txt"], "--figures notes.txt is a file; name a directory"),
        (["STUDY", "--out", "notes.txt"], "--out notes.txt exists and is no page of ours"),
        (["STUDY", "--out", "notes.txt/page.html"], "--out notes.txt/page.html cannot be made"),
        (["STUDY", "--outt", "x"], "did you mean --out?"),
    ],
)
def test_a_wrong_command_line_leaves_everything_as_it_was(arguments, words, study, here, capsys):
    (here / "notes.txt").write_text("precious")
    given = [str(study) if each == "STUDY" else each for each in arguments]
    assert words in refused(given, capsys)
    assert os.listdir(here) == ["notes.txt"]
    assert (here / "notes.txt").read_text() == "precious"


def test_records_are_not_replaced_by_a_page(study, here, capsys):
    run = study / "runs" / "adamw" / "lr-0.002" / "seed-0"
    before = (run / "metrics.jsonl").read_bytes()
    assert "is no page of ours" in refused([str(run), "--out", str(run / "metrics.jsonl")], capsys)
    assert (run / "metrics.jsonl").read_bytes() == before
    assert os.listdir(here) == []


@pytest.mark.parametrize("name", REPORT)
def test_a_missing_package_names_the_extra(name, study, here, capsys, monkeypatch):
    monkeypatch.setattr(
        "mars.commands.extras.find_spec", lambda asked: None if asked == name else object()
    )
    line = refused([str(study)], capsys)
    assert line == f"mars: mars report needs {name}: pip install 'mars-optimizer[report]'\n"
    assert os.listdir(here) == []


def test_damaged_records_are_named_and_nothing_is_written(here, capsys):
    run = write_run(here / "run", make_config("adamw", lr=0.002, seed=0))
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([*lines[:5], "{broken\n", *lines[6:]]))
    assert "run/metrics.jsonl, line 6" in refused(["run"], capsys)
    assert os.listdir(here) == ["run"]


def test_reporting_does_not_import_torch(study, tmp_path):
    program = (
        "import sys; from mars import cli; code = cli.main(sys.argv[1:]); "
        "print(code, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, "report", str(study)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.splitlines()[-1] == "0 False"

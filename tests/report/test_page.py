"""The page as text: whole, valid, harmless, and saying what the analysis says."""

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mars.report.analysis import analyze
from mars.report.page import is_page, page, write_page
from mars.report.results import collect
from report.example import DIAGNOSED, FINALS, in_memory, parsed, read_example, write_example
from report.synthetic import make_config, write_run

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    '"><img src=x onerror=alert(3)>',
    "<!-- ]]> ${alert(4)} &lt;b&gt; %{x}",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_example(tmp_path_factory.mktemp("page") / "comparison")


@pytest.fixture(scope="module")
def analysis(folder):
    return read_example(folder)


@pytest.fixture(scope="module")
def text(analysis):
    return page(analysis)


@pytest.fixture(scope="module")
def tree(text):
    return parsed(text)


def test_tags_are_closed_and_ids_unique(tree):
    ids = [e.attributes["id"] for e in tree.walk() if "id" in e.attributes]
    assert len(ids) > 100
    assert len(set(ids)) == len(ids)


def test_every_reference_inside_the_page_has_its_target(tree):
    ids = {e.attributes["id"] for e in tree.walk() if "id" in e.attributes}
    targets = [
        e.attributes["href"][1:]
        for e in tree.walk()
        if e.attributes.get("href", "").startswith("#")
    ]
    targets += [
        e.attributes["aria-labelledby"] for e in tree.walk() if "aria-labelledby" in e.attributes
    ]
    targets += re.findall(r"url\(#([^)]+)\)", " ".join(str(e.attributes) for e in tree.walk()))
    assert len(targets) > 50
    assert set(targets) <= ids


def test_nothing_is_fetched_from_anywhere(tree):
    for element in tree.walk():
        for name in ("src", "href", "action", "data", "srcset", "poster"):
            value = element.attributes.get(name) or ""
            assert value.startswith(("#", "data:")) or not value, (element.name, value)
    (sheet,) = tree.all("style")
    assert "@import" not in sheet.text
    assert not re.search(r"url\(\s*['\"]?(?!#|data:)", sheet.text)


def test_only_the_scripts_of_the_page_may_run(tree):
    (policy,) = (
        e.attributes["content"]
        for e in tree.all("meta")
        if e.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["base-uri"] == rules["form-action"] == "'none'"
    assert "unsafe" not in rules["script-src"]
    scripts = [e for e in tree.all("script") if "type" not in e.attributes]
    assert len(scripts) == len(rules["script-src"].split()) == 2


def test_the_policy_names_the_digest_of_each_script(text):
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert len(digests) == 2
    for digest in digests:
        assert f"'sha256-{digest}'" in text.replace("&#x27;", "'")


def test_the_answer_comes_first_and_the_rest_in_order(tree):
    assert [e.text for e in tree.all("h1")] == ["example study"]
    assert [e.text for e in tree.all("h2")] == [
        "Verdict",
        "Results",
        "Loss curves",
        "Learning-rate sensitivity",
        "Time and memory",
        "What the correction does",
        "Variance of the gradient",
        "What the arms differ in",
        "Environment",
        "What the data do not show",
        "How to repeat it",
        "All runs",
    ]


def test_the_verdict_is_the_analysis_in_its_own_words(tree, analysis):
    (section,) = (e for e in tree.all("section") if e.attributes.get("class") == "verdict")
    said = [e.text.replace("\N{NO-BREAK SPACE}", " ") for e in section.all("p")]
    assert said == list(analysis.verdict)
    assert "mars-m" in said[0]


def test_the_table_has_the_numbers_of_every_arm(tree):
    rows = tree.by_id("arms").all("tr")
    titles = [e.text for e in rows[0].all("th")]
    assert titles[:5] == ["Arm", "Best rate", "Validation loss", "Seeds", "Difference"]
    by_label = {row.all("th")[0].text: row.all("td") for row in rows[1:]}
    assert list(by_label) == list(FINALS)
    best = by_label["mars-m"]
    assert [best[0].text, best[2].text] == ["0.016 edge of grid", "3"]
    assert best[1].own_text == ["1.5200"]
    assert float(best[1].attributes["data-sort"]) == pytest.approx(1.52)
    assert best[3].own_text == ["\N{MINUS SIGN}0.1000"]
    assert "lower" in best[3].text
    assert best[6].text == "52 ms"
    assert best[7].text == "6.1 MB"
    assert by_label["mars-lion"][8].text == "1 of 6"
    assert by_label["mars-lion"][4].text == "never"


def test_one_seed_has_no_interval():
    finals = {
        label: {lr: {0: by[0]} for lr, by in rates.items()} for label, rates in FINALS.items()
    }
    tree = parsed(page(in_memory(finals)))
    cells = tree.by_id("arms").all("tr")[2].all("td")
    assert cells[1].text == "1.5700"
    assert cells[3].text == "\N{MINUS SIGN}0.0500 one seed: no claim"
    assert " to " not in cells[1].text + cells[3].text


def test_every_figure_says_in_numbers_what_it_shows(tree):
    figures = tree.all("figure")
    assert len(figures) == 11
    for figure in figures:
        assert len(figure.all("figcaption")) == 1
        assert figure.all("figcaption")[0].text
        drawings = [e for e in figure.all("svg") if e.attributes.get("role") == "img"]
        plots = [e for e in figure.all("div") if e.attributes.get("role") == "img"]
        assert drawings
        assert len(plots) == ("data-chart" in figure.attributes)
        for image in drawings + plots:
            assert len(re.findall(r"\d", image.attributes["aria-label"])) >= 3


def test_interactive_figures_have_a_static_drawing_and_their_data(tree):
    charts = [e for e in tree.all("figure") if "data-chart" in e.attributes]
    assert len(charts) == 9
    for chart in charts:
        (data,) = chart.all("script")
        assert data.attributes["id"] == f"{chart.attributes['id']}-data"
        assert json.loads(data.text)
        (static,) = (e for e in chart.all("div") if e.attributes.get("class") == "static")
        assert static.all("svg")


def test_static_drawings_take_their_colours_from_the_page(tree):
    drawings = [e for e in tree.all("svg") if e.attributes.get("role") == "img"]
    styles = " ".join(str(e.attributes) for drawing in drawings for e in drawing.walk())
    assert "currentColor" in styles
    assert "var(--rule)" in styles
    assert {f"var(--arm-{index})" for index in range(4)} <= set(
        re.findall(r"var\(--arm-\d\)", styles)
    )
    assert not re.search(r"#0[147]0[258]0", styles)
    # Black is matplotlib's own choice: something was drawn in no colour of ours.
    assert "#000000" not in styles


def test_the_environment_and_the_command_are_there(tree):
    text = tree.text
    for words in ("0123456789abcdef0123456789abcdef01234567", "2.13.0", "ab" * 32, "826,112"):
        assert words in text
    assert [e.text for e in tree.all("pre")] == ["mars compare quickstart"]


def test_limits_are_the_analysis_s(tree, analysis):
    (listed,) = (
        e
        for e in tree.all("ul")
        if e.attributes.get("class") == "prose" and e.all("li")[0].text == analysis.caveats[0]
    )
    assert [e.text for e in listed.all("li")] == list(analysis.caveats)


def test_differences_of_the_configs_are_a_table(tree):
    rows = {
        row.all("th")[0].text: [e.text for e in row.all("td")]
        for row in tree.by_id("differing").all("tr")
    }
    assert rows["name"] == list(FINALS)
    assert rows["lr"] == ["0.002", "0.006", "0.016", "0.0006"]
    assert rows["gamma"] == ["\N{EN DASH}", "0.025", "0.025", "0.025"]


def test_what_the_arms_share_is_what_they_do_not_differ_in(tree):
    shared = tree.by_id("shared")
    values = dict(
        zip([e.text for e in shared.all("dt")], [e.text for e in shared.all("dd")], strict=True)
    )
    assert values["training.steps"] == "500"
    assert values["model.layers"].isdigit()
    differing = [row.all("th")[0].text for row in tree.by_id("differing").all("tr")]
    assert not {f"optimizer.{key}" for key in differing} & values.keys()
    assert "seed" not in values


def test_every_run_is_listed_with_its_outcome(tree, folder):
    rows = tree.by_id("runs-table").all("tr")[1:]
    assert len(rows) == 24
    cells = {row.all("td")[-1].text: [e.text for e in row.all("td")] for row in rows}
    assert cells[str(folder / DIAGNOSED)][:4] == ["0.006", "0", "1.5700", "1.5700"]
    lost = cells[str(folder / "runs/mars-lion/lr-0.0012/seed-0")]
    assert lost[7] == "diverged"
    assert lost[2] == "∞"
    assert [row.all("td")[7].text for row in rows].count("finished") == 23


def test_variance_is_told_relative_to_the_average(tree):
    said = [e.text for e in tree.all("p") if "of the variance of the plain average" in e.text]
    assert [re.findall(r"[\d.]+%", sentence)[:2] for sentence in said] == [
        ["95.0%", "5.0%"],
        ["40.0%", "60.0%"],
    ]


def test_parts_without_data_are_left_out():
    titles = [e.text for e in parsed(page(in_memory())).all("h2")]
    assert "Variance of the gradient" not in titles
    assert "What the correction does" not in titles
    assert "Loss curves" in titles


def test_the_same_runs_give_the_same_page(analysis, text):
    assert page(analysis) == text


def hostile(folder: Path, words: str) -> Path:
    """Write a comparison whose every text is hostile."""
    write_example(folder)
    plan = json.loads((folder / "comparison.json").read_text())
    plan |= {"name": words, "description": words, "command": words}
    for arm in plan["arms"]:
        if arm["label"] == "mars-adamw":
            arm["label"] = words
    for trial in plan["trials"]:
        if trial["arm"] == "mars-adamw":
            trial["arm"] = words
    plan["failures"] = [{"path": "runs/x", "reason": words}]
    (folder / "comparison.json").write_text(json.dumps(plan))
    manifest = folder / DIAGNOSED / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "commit": words}))
    return folder


@pytest.mark.parametrize("words", HOSTILE)
def test_words_from_a_file_stay_words(words, tmp_path, tree):
    found = parsed(page(read_example(hostile(tmp_path / "study", words))))
    assert [e.text for e in found.all("h1")] == [words]
    assert words in [e.text for e in found.by_id("arms").all("th")]
    assert [e.text for e in found.all("pre")] == [words]
    assert len(found.all("script")) == len(tree.all("script"))
    assert found.all("img") == []
    assert not any(name.startswith("on") for e in found.walk() for name in e.attributes)
    assert [e.name for e in found.walk()].count("b") == 0
    for data in found.all("script"):
        if data.attributes.get("type") == "application/json":
            assert "<" not in data.text
    (curves,) = (e for e in found.all("script") if e.attributes.get("id") == "curves-data")
    assert [arm["label"] for arm in json.loads(curves.text)["arms"]][1] == words


ODD = {
    "one arm": {"adamw": {0.002: {0: 1.5, 1: 1.6}}},
    "everything diverged": {
        "adamw": {0.002: {0: math.inf}},
        "muon": {0.02: {0: math.inf}},
    },
    "nothing finished": {"adamw": {0.002: {0: math.nan}}, "muon": {0.02: {0: math.nan, 1: None}}},
    "an arm to come": {"adamw": {0.002: {0: 1.5}}, "muon": {0.02: {0: None}}},
    "a baseline that diverged": {"adamw": {0.002: {0: math.inf}}, "muon": {0.02: {0: 1.5}}},
    "seeds apart": {"adamw": {0.002: {0: 1.5}}, "muon": {0.02: {1: 1.5}}},
    "thirty arms": {f"mars-adamw gamma={i / 100}": {0.006: {0: 1.5 + i / 100}} for i in range(30)},
}


@pytest.mark.parametrize("name", ODD)
def test_odd_results_have_a_whole_page(name):
    finals = ODD[name]
    baseline = "adamw" if len(finals) == 2 else None
    tree = parsed(page(in_memory(finals, baseline=baseline)))
    rows = tree.by_id("arms").all("tr")[1:]
    assert [row.all("th")[0].text for row in rows] == list(finals)
    started = [
        label
        for label, by in finals.items()
        for s in by.values()
        for f in s.values()
        if f is not None
    ]
    assert len(tree.by_id("runs-table").all("tr")) - 1 == len(started)


def test_a_run_without_records_has_a_page(tmp_path):
    run = write_run(tmp_path / "run", make_config("adamw", lr=0.002, seed=0))
    (run / "metrics.jsonl").write_text("")
    tree = parsed(page(analyze(collect([run]))))
    cells = [e.text for e in tree.by_id("runs-table").all("td")]
    assert cells[2:5] == ["\N{EN DASH}", "\N{EN DASH}", "0"]
    assert cells[7] == "unfinished"


def test_a_loss_that_is_not_a_number_leaves_a_gap(tmp_path):
    losses = [3.0, math.nan, 2.0]
    run = write_run(tmp_path / "run", make_config("adamw", lr=0.002, seed=0), 2.0, losses=losses)
    (curves,) = (
        e
        for e in parsed(page(analyze(collect([run])))).all("script")
        if e.attributes.get("id") == "curves-data"
    )
    (arm,) = json.loads(curves.text)["arms"]
    assert arm["runs"][0]["validation"]["losses"] == [3, None, 2]


def test_a_page_is_written_whole_and_known_again(tmp_path, analysis, text):
    write_page(analysis, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == text
    assert is_page(tmp_path / "report.html")
    (tmp_path / "other.html").write_text("<!DOCTYPE html><html><head><title>other</title>")
    assert not is_page(tmp_path / "other.html")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.html", "report.html"]


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path, analysis, monkeypatch):
    (tmp_path / "report.html").write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_page(analysis, tmp_path / "report.html")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "old"


def test_runs_alone_say_how_to_repeat_one_of_them(analysis):
    alone = replace(analysis, results=replace(analysis.results, command=None))
    (command,) = (e.text for e in parsed(page(alone)).all("pre"))
    assert command == f"mars train {analysis.results.trials[0].path}/run.toml --out again"


def test_samples_are_called_samples(tmp_path):
    config = make_config("adamw", lr=0.002, seed=0)
    run = write_run(tmp_path / "run", config, unit="samples")
    tree = parsed(page(analyze(collect([run]))))
    assert "Samples to baseline" in [e.text for e in tree.by_id("arms").all("th")]
    assert "against samples" in tree.by_id("curves").all("svg")[-2].attributes["aria-label"]

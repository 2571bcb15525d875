"""Figures for a paper: the size of a column, whole fonts, the same bytes again."""

import re
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from mars.config.errors import RefusedError
from mars.report.drawing import draw_curves, draw_forest, draw_sensitivity
from mars.report.figures import write_figures
from mars.report.svg import COLORS, inline_svg, looks
from report.example import FINALS, in_memory, parsed, read_example, write_example

NAMES = ("loss-tokens", "loss-seconds", "sensitivity", "differences", "variance-mars-adamw")


@pytest.fixture(scope="module")
def analysis(tmp_path_factory):
    return read_example(write_example(tmp_path_factory.mktemp("figures") / "comparison"))


@pytest.fixture(scope="module")
def folder(analysis, tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures") / "deep" / "figures"
    write_figures(analysis, folder)
    return folder


def axes_of(draw):
    with looks(COLORS, size=8):
        axes = Figure().subplots()
        draw(axes)
        return axes


def test_every_figure_is_written_as_svg_and_pdf(analysis, folder, tmp_path):
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        f"{name}.{kind}" for name in NAMES for kind in ("svg", "pdf")
    )
    written = write_figures(analysis, tmp_path / "again")
    assert sorted(path.name for path in written) == sorted(p.name for p in folder.iterdir())
    for path in written:
        assert path.read_bytes() == (folder / path.name).read_bytes(), path.name


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_as_wide_as_a_column(folder, name):
    root = ElementTree.fromstring((folder / f"{name}.svg").read_text())
    assert root.attrib["width"] == "237.6pt"  # 3.3 inches
    box = re.search(
        rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+) ?\]", (folder / f"{name}.pdf").read_bytes()
    )
    assert float(box[1]) == pytest.approx(237.6)
    assert 60 < float(box[2]) < 260


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_brings_its_fonts_and_no_date(folder, name):
    pdf = (folder / f"{name}.pdf").read_bytes()
    assert b"/CIDFontType2" in pdf or b"/TrueType" in pdf
    assert b"/Type3" not in pdf
    assert b"CreationDate" not in pdf
    svg = (folder / f"{name}.svg").read_text()
    assert "<dc:date>" not in svg
    assert "<text" not in svg  # outlines, which need no font


def test_without_a_baseline_or_a_diagnosis_their_figures_are_left_out(tmp_path):
    finals = {"adamw": FINALS["adamw"]}
    written = write_figures(in_memory(finals, baseline=None), tmp_path)
    assert sorted({path.stem for path in written}) == ["loss-seconds", "loss-tokens", "sensitivity"]


def test_a_place_that_cannot_be_made_is_refused(analysis, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RefusedError, match=r"--figures .*file/x cannot be made"):
        write_figures(analysis, tmp_path / "file" / "x")


def test_curves_end_at_the_mean_of_the_seeds(analysis):
    axes = axes_of(lambda axes: draw_curves(axes, analysis, COLORS, against="counts"))
    ends = {line.get_label(): line.get_ydata()[-1] for line in axes.get_lines()}
    assert ends == pytest.approx(
        {"adamw": 1.62, "mars-adamw": 1.57333, "mars-m": 1.52, "mars-lion": 1.66167}, abs=1e-5
    )
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("tokens", "validation loss")
    # A band from the lowest to the highest seed.
    band = axes.collections[2].get_paths()[0].vertices
    last = band[band[:, 0] == band[:, 0].max()][:, 1]
    assert (last.min(), last.max()) == pytest.approx((1.505, 1.535))


def test_curves_against_seconds_end_when_the_runs_did(analysis):
    axes = axes_of(lambda axes: draw_curves(axes, analysis, COLORS, against="seconds"))
    ends = {line.get_label(): line.get_xdata()[-1] for line in axes.get_lines()}
    assert ends == pytest.approx({"adamw": 20, "mars-adamw": 23, "mars-m": 26, "mars-lion": 20.5})


def test_the_vertical_axis_fits_what_comes_after_the_start(analysis):
    axes = axes_of(lambda axes: draw_curves(axes, analysis, COLORS, against="counts"))
    low, high = axes.get_ylim()
    assert 1.3 < low < 1.505
    start = max(line.get_ydata()[0] for line in axes.get_lines())
    assert 1.68 < high < start


def test_sensitivity_shows_every_rate_and_marks_divergence(analysis):
    axes = axes_of(lambda axes: draw_sensitivity(axes, analysis, COLORS))
    assert axes.get_xscale() == "log"
    drawn = {c.get_label(): c.lines[0].get_xydata().tolist() for c in axes.containers}
    assert [lr for lr, _ in drawn["mars-m"]] == [0.016, 0.032]
    assert [loss for _, loss in drawn["mars-m"]] == pytest.approx([1.52, 1.55])
    assert [lr for lr, _ in drawn["mars-lion"]] == [0.0006]
    crosses = [line for line in axes.get_lines() if line.get_marker() == "x"]
    assert [line.get_xdata().tolist() for line in crosses if len(line.get_xdata())] == [[0.0012]]


def test_the_forest_has_an_interval_for_every_arm_but_the_baseline(analysis):
    axes = axes_of(lambda axes: draw_forest(axes, analysis, COLORS))
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == ["mars-adamw", "mars-m", "mars-lion"]
    means = [container.lines[0].get_xdata()[0] for container in axes.containers]
    assert means == pytest.approx([-0.046667, -0.1, 0.041667], abs=1e-5)
    for arm, container in zip(analysis.arms[1:], axes.containers, strict=True):
        (bar,) = container.lines[2]
        ends = bar.get_segments()[0][:, 0]
        assert ends == pytest.approx([arm.paired.difference.low, arm.paired.difference.high])


def test_a_drawing_in_the_page_has_ids_of_its_own_and_says_what_it_shows():
    def draw(axes):
        axes.plot([1, 2], [3, 4], color=COLORS.arms[1])

    made = [inline_svg(draw, name=name, alt='a "b" <c>') for name in ("one", "two")]
    ids = [set(re.findall(r' id="([^"]+)"', each)) for each in made]
    assert ids[0].isdisjoint(ids[1])
    assert all(each.startswith("one-") for each in ids[0])
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', made[0]))
    assert used
    assert used <= ids[0]
    (svg,) = parsed(made[0]).children
    assert svg.attributes["aria-label"] == 'a "b" <c>'
    assert svg.attributes["role"] == "img"
    assert "stroke: var(--arm-1)" in made[0]
    assert svg.all("style") == svg.all("metadata") == []


def test_formulas_in_labels_are_words():
    drawn = inline_svg(lambda axes: axes.set_xlabel("$x_1$ \\frac"), name="a", alt="1")
    assert "$x_1$ \\frac" in parsed(drawn).text

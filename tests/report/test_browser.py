"""The page in a real browser: offline, by mouse, by keyboard, on a phone, in the dark, on paper."""

import pytest

from mars.report.cells import shortened
from mars.report.page import write_page
from report.browser import TEXT_COLORS, contrast, executable, opened, started, until
from report.example import FINALS, read_example, write_example
from report.test_page import HOSTILE, hostile

PLOT = "document.querySelector('#curves .plot')"
ROWS = "Array.from(document.querySelectorAll('#arms tbody th'), (cell) => cell.textContent)"
LABELS = list(FINALS)


@pytest.fixture(scope="module")
def browser():
    with started() as running:
        yield running


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    write_page(read_example(write_example(folder / "comparison")), folder / "report.html")
    return folder / "report.html"


def names(page):
    """Return the arms whose mean is drawn."""
    drawn = page.evaluate(f"{PLOT}.data.filter((t) => t.line.width > 2).map((t) => t.name)")
    shown = page.evaluate("document.querySelectorAll('#curves .scatterlayer .trace').length")
    assert shown == page.evaluate(f"{PLOT}.data.length")
    return drawn


def axis(page, which="xaxis"):
    return page.evaluate(
        f"(() => {{ const a = {PLOT}.layout.{which}; return [a.type, a.range]; }})()"
    )


def choose(page, text):
    page.locator("#curves .controls").get_by_label(text, exact=True).click()


def test_the_page_opens_offline_without_a_message_or_a_request(browser, path):
    with opened(browser, path) as page:
        assert page.title() == "example study · mars report"
        assert page.locator("figure.live").count() == 9


def test_interactive_charts_take_the_place_of_their_drawings(browser, path):
    with opened(browser, path) as page:
        for figure in page.locator("figure[data-chart]").all():
            assert figure.locator(".plot .main-svg").first.is_visible()
            assert not figure.locator(".static").is_visible()
        for figure in page.locator("figure:not([data-chart])").all():
            assert figure.locator(".static svg").is_visible()


def test_a_click_on_the_legend_toggles_an_arm(browser, path):
    with opened(browser, path) as page:
        assert names(page) == LABELS
        key = page.locator("#curves .legend button").nth(1)
        assert key.get_attribute("aria-pressed") == "true"
        key.click()
        assert key.get_attribute("aria-pressed") == "false"
        assert names(page) == [label for label in LABELS if label != "mars-adamw"]
        key.press("Enter")
        assert names(page) == LABELS
        for each in page.locator("#curves .legend button").all():
            each.click()
        assert names(page) == []


def test_a_single_run_is_drawn_when_it_is_ticked(browser, path):
    with opened(browser, path) as page:
        count = page.evaluate(f"{PLOT}.data.length")
        page.locator("#curves .runs summary").click()
        boxes = page.locator("#curves .runs input")
        assert boxes.count() == 24
        boxes.nth(0).check()
        boxes.nth(7).check()
        added = page.evaluate(f"{PLOT}.data.filter((t) => t.line.width === 1).map((t) => t.name)")
        assert added == ["adamw, lr 0.002, seed 0", "mars-adamw, lr 0.006, seed 1"]
        assert page.evaluate(f"{PLOT}.data.length") == count + 2
        boxes.nth(0).uncheck()
        assert page.evaluate(f"{PLOT}.data.length") == count + 1


def test_dragging_zooms_and_a_double_click_goes_back(browser, path):
    with opened(browser, path) as page:
        page.locator("#curves .plot").scroll_into_view_if_needed()
        box = page.locator("#curves .plot .nsewdrag").bounding_box()
        _, before = axis(page)
        middle = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + 0.25 * box["width"], middle)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.75 * box["width"], middle, steps=5)
        page.mouse.up()
        _, after = axis(page)
        span = before[1] - before[0]
        assert after == pytest.approx(
            [before[0] + 0.25 * span, before[0] + 0.75 * span], abs=0.02 * span
        )
        # A zoom stays while arms come and go.
        page.locator("#curves .legend button").first.click()
        assert axis(page)[1] == after
        page.mouse.dblclick(box["x"] + box["width"] / 2, middle)
        until(page, f"Math.abs({PLOT}.layout.xaxis.range[0] - {before[0]}) < 1")
        assert axis(page)[1] == pytest.approx(before)


def test_the_parts_of_a_run_fit_the_axes(browser, path):
    with opened(browser, path) as page:
        end = max(page.evaluate(f"{PLOT}.data[0].x"))
        choose(page, "last half")
        assert axis(page)[1] == pytest.approx([0.5 * end, end])
        low, high = axis(page, "yaxis")[1]
        late = page.evaluate(
            f"{PLOT}.data.flatMap((t) => t.y.filter((y, i) => t.x[i] >= 0.5 * {end}))"
        )
        assert low < min(late) < max(late) < high < 2.5
        choose(page, "whole run")
        first = max(page.evaluate(f"{PLOT}.data.map((t) => t.y[0])"))
        assert axis(page, "yaxis")[1][1] > first > 3


def test_axes_become_logarithmic_and_back(browser, path):
    with opened(browser, path) as page:
        assert (axis(page)[0], axis(page, "yaxis")[0]) == ("linear", "linear")
        choose(page, "loss")
        assert (axis(page)[0], axis(page, "yaxis")[0]) == ("linear", "log")
        low, high = axis(page, "yaxis")[1]
        assert 1.4 < 10**low < 1.52
        assert 1.66 < 10**high < 4
        choose(page, "horizontal")
        assert (axis(page)[0], axis(page, "yaxis")[0]) == ("log", "log")
        choose(page, "loss")
        choose(page, "horizontal")
        assert (axis(page)[0], axis(page, "yaxis")[0]) == ("linear", "linear")


def test_curves_are_drawn_against_tokens_seconds_and_steps(browser, path):
    with opened(browser, path) as page:
        ends = {}
        for against in ("seconds", "steps", "tokens"):
            choose(page, against)
            assert page.evaluate(f"{PLOT}.layout.xaxis.title.text") == against
            ends[against] = {
                trace["name"]: trace["x"][-1] for trace in page.evaluate(f"{PLOT}.data")
            }
        assert ends["steps"] == dict.fromkeys(LABELS, 500)
        assert ends["seconds"] == pytest.approx(
            {"adamw": 20, "mars-adamw": 23, "mars-m": 26, "mars-lion": 20.5}
        )
        assert len(set(ends["tokens"].values())) == 1


def test_training_and_validation_losses_are_switched(browser, path):
    with opened(browser, path) as page:
        ends = page.evaluate(f"{PLOT}.data.filter((t) => t.line.width > 2).map((t) => t.y.at(-1))")
        assert ends == pytest.approx([1.62, 1.5733, 1.52, 1.6617], abs=1e-4)
        choose(page, "training")
        assert page.evaluate(f"{PLOT}.layout.yaxis.title.text") == "training loss"
        assert page.evaluate(f"{PLOT}.data.map((t) => t.y.length)") == [50] * 4


def test_variance_is_shown_by_kind_of_layer(browser, path):
    plot = "document.querySelector('#variance-0 .plot')"
    last = f"Object.fromEntries({plot}.data.map((t) => [t.name, t.y.at(-1)]))"
    with opened(browser, path) as page:
        everything = page.evaluate(last)
        assert everything["MARS, exact"] == pytest.approx(0.8)
        page.locator("#variance-0 .controls").get_by_label("embedding").click()
        assert page.evaluate(last)["MARS, exact"] == pytest.approx(1.6)
        page.locator("#variance-0 .controls").get_by_label("squared bias").click()
        assert page.evaluate(last)["MARS, exact"] == pytest.approx(-0.01)
        assert page.evaluate(f"{plot}.layout.yaxis.type") == "linear"


def test_the_table_sorts_by_click(browser, path):
    with opened(browser, path) as page:
        assert page.evaluate(ROWS) == LABELS
        header = page.locator("#arms thead th").nth(2)
        header.locator("button").click()
        assert header.get_attribute("aria-sort") == "ascending"
        assert page.evaluate(ROWS) == ["mars-m", "mars-adamw", "adamw", "mars-lion"]
        header.locator("button").click()
        assert header.get_attribute("aria-sort") == "descending"
        assert page.evaluate(ROWS) == ["mars-lion", "adamw", "mars-adamw", "mars-m"]
        # What is missing stays last: mars-lion never came down to the baseline's loss.
        to_baseline = page.locator("#arms thead th").nth(5)
        for order in ("ascending", "descending"):
            to_baseline.locator("button").click()
            assert to_baseline.get_attribute("aria-sort") == order
            assert page.evaluate(ROWS)[-1] == "mars-lion"
        assert header.get_attribute("aria-sort") is None


def test_the_table_sorts_by_keyboard(browser, path):
    with opened(browser, path) as page:
        button = page.locator("#arms thead th button").first
        button.focus()
        page.keyboard.press("Enter")
        assert page.evaluate(ROWS) == sorted(LABELS)
        page.keyboard.press("Space")
        assert page.evaluate(ROWS) == sorted(LABELS, reverse=True)


def test_a_phone_scrolls_no_page_sideways(browser, path):
    for scripts in (True, False):
        with opened(
            browser, path, width=375, is_mobile=True, has_touch=True, java_script_enabled=scripts
        ) as page:
            for details in page.locator("details").all():
                details.evaluate("(element) => { element.open = true; }") if scripts else None
            wide = "document.documentElement.scrollWidth"
            assert page.evaluate(f"[{wide}, innerWidth]") == [375, 375]
            box = page.locator("#arms .scroll")
            inside, outside = box.evaluate("(box) => [box.scrollWidth, box.clientWidth]")
            assert inside > outside
            assert outside <= 375


def test_a_finger_on_a_chart_scrolls_the_page(browser, path):
    with opened(browser, path, width=375, is_mobile=True, has_touch=True) as page:
        assert page.evaluate(f"{PLOT}.layout.dragmode") is False


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("scripts", [True, False])
def test_all_text_stands_out_from_its_background(browser, path, scheme, scripts):
    with opened(browser, path, color_scheme=scheme, java_script_enabled=scripts) as page:
        if scripts:
            for details in page.locator("details").all():
                details.evaluate("(element) => { element.open = true; }")
            page.locator("#curves .legend button").first.click()
        found = page.evaluate(TEXT_COLORS)
    assert len(found) > 300
    worst = min(found, key=lambda each: contrast(each[1], each[2]))
    assert contrast(worst[1], worst[2]) >= 4.5, worst


def test_a_change_to_dark_redraws_the_charts(browser, path):
    color = f"{PLOT}.data.at(-1).line.color"
    text = f"{PLOT}.layout.font.color"
    back = "getComputedStyle(document.body).backgroundColor"
    with opened(browser, path, color_scheme="light") as page:
        light = [page.evaluate(each) for each in (color, text, back)]
        page.locator("#curves .legend button").first.click()
        page.emulate_media(color_scheme="dark")
        until(page, f"{text} !== '{light[1]}'")
        dark = [page.evaluate(each) for each in (color, text, back)]
        assert light == ["#00926a", "#1d2127", "rgb(255, 255, 255)"]
        assert dark == ["#3ddc9b", "#e6e9ee", "rgb(21, 24, 29)"]
        assert names(page) == LABELS[1:]
        page.emulate_media(color_scheme="light")
        until(page, f"{text} === '{light[1]}'")


def test_without_scripts_tables_and_drawings_are_there(browser, path):
    with opened(browser, path, java_script_enabled=False) as page:
        for figure in page.locator("figure").all():
            assert figure.locator(".static svg").first.is_visible()
            assert figure.locator(".static svg").first.bounding_box()["height"] > 80
        assert not any(plot.is_visible() for plot in page.locator(".plot").all())
        assert not any(each.is_visible() for each in page.locator(".controls, .runs").all())
        assert page.locator("#arms tbody tr").count() == 4
        assert page.locator("#arms").is_visible()
        assert page.locator("button").count() == 0
        assert page.locator("#curves .legend .key").count() == 4


def test_a_chart_that_cannot_be_drawn_leaves_its_drawing(browser, path, tmp_path):
    broken = tmp_path / "broken.html"
    # The digest no longer fits: the browser runs neither script.
    broken.write_text(path.read_text().replace("plotly.js v", "plotly.js w"))
    with opened(browser, broken, expected=10) as page:
        assert page.locator("figure.live").count() == 0
        assert all(
            page.locator(f"#{name} .static").is_visible() for name in ("curves", "variance-0")
        )
        page.locator("#arms thead th button").first.click()
        assert page.evaluate(ROWS) == sorted(LABELS)


def test_paper_has_the_drawings(browser, path):
    with opened(browser, path, color_scheme="dark") as page:
        page.emulate_media(media="print")
        assert page.locator("#curves .static svg").first.is_visible()
        assert not page.locator("#curves .plot").is_visible()
        assert not page.locator("nav").is_visible()
        # Paper is white, whatever the screen is.
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(29, 33, 39)"


def test_the_keyboard_reaches_everything_and_shows_where_it_is(browser, path):
    with opened(browser, path) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        assert page.locator(".skip").bounding_box()["y"] >= 0
        outline = "getComputedStyle(document.activeElement).outline"
        assert "solid 3px" in page.evaluate(outline)
        for selector in ("#arms thead th button", "#curves .legend button", "#arms .scroll"):
            page.locator(selector).first.focus()
            page.keyboard.press("Shift+Tab")
            page.keyboard.press("Tab")
            assert "solid 3px" in page.evaluate(outline), selector
        page.locator("#curves .choice input").first.focus()
        page.keyboard.press("ArrowRight")
        assert page.evaluate(f"{PLOT}.layout.yaxis.title.text") == "training loss"


def test_nothing_moves_for_those_who_asked_for_rest(browser, path):
    longest = (
        "Math.max(...Array.from(document.querySelectorAll('.legend button, .choice span'), "
        "(e) => parseFloat(getComputedStyle(e).transitionDuration)))"
    )
    with opened(browser, path) as page:
        for motion, seconds in (("reduce", 0), ("no-preference", 0.12)):
            page.emulate_media(reduced_motion=motion)
            assert page.evaluate(longest) == seconds


def test_every_control_has_a_name(browser, path):
    unnamed = """Array.from(document.querySelectorAll('button, input, a, [role]'))
      .filter((e) => !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length
        || e.getAttribute('aria-labelledby')) && !e.closest('.plot .main-svg, .modebar'))
      .map((e) => e.outerHTML)"""
    with opened(browser, path) as page:
        assert page.evaluate(unnamed) == []
        assert page.evaluate("document.documentElement.lang") == "en"
        ids = "Array.from(document.querySelectorAll('[id]'), (e) => e.id)"
        assert page.evaluate(f"{ids}.length") == page.evaluate(f"new Set({ids}).size")


def test_words_from_a_file_run_nothing(browser, tmp_path):
    words = " ".join(HOSTILE)
    folder = hostile(tmp_path / "study", words)
    write_page(read_example(folder), tmp_path / "report.html")
    with opened(browser, tmp_path / "report.html") as page:
        assert page.locator("h1").inner_text() == words
        key = page.locator("#curves .legend button").nth(1)
        assert key.inner_text() == f"{words}, lr 0.006"
        ticks = page.locator("#step-time-figure .ytick text").all_text_contents()
        assert shortened(words) in ticks
        key.click()
        page.locator("#curves .runs summary").click()
        page.locator("#curves .runs input").nth(7).check()
        page.mouse.move(600, 400)
        assert page.locator("img:not(.plot img)").count() == 0


def test_without_a_browser_tests_are_skipped_and_under_ci_they_fail(monkeypatch):
    monkeypatch.setattr("report.browser.shutil.which", lambda _: None)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="make browser"):
        executable()
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="make browser"):
        executable()

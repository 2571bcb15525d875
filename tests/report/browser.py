"""A real browser that opens pages from disk, and writes down all that a page does amiss."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")

# The colours of every visible text: what it is written in, and on what.
TEXT_COLORS = """() => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const [red, green, blue, alpha = 1] = numbers(getComputedStyle(at).backgroundColor);
      if (alpha === 1) return [red, green, blue];
      if (alpha !== 0) throw new Error(`a background that is half transparent: ${at.outerHTML}`);
    }
    return [255, 255, 255];
  };
  return Array.from(document.querySelectorAll("body *"))
    .filter((e) => e.checkVisibility({ opacityProperty: true, visibilityProperty: true }))
    .filter((e) => Array.from(e.childNodes).some((n) => n.nodeType === 3 && n.data.trim()))
    .filter((e) => !["SCRIPT", "STYLE", "NOSCRIPT"].includes(e.tagName.toUpperCase()))
    .map((e) => {
      const style = getComputedStyle(e);
      const color = e instanceof SVGElement ? style.fill : style.color;
      return [e.textContent.trim().slice(0, 40), numbers(color).slice(0, 3), behind(e)];
    });
}"""


def executable() -> str:
    """Return a browser of this machine; without one the test is skipped, or fails under CI."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        reason = f"needs a browser, one of {', '.join(NAMES)}: make browser"
        if "CI" in os.environ:
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@contextmanager
def started() -> Iterator[Browser]:
    """Give a browser that has no window."""
    path = executable()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--headless"]
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Browser, path: Path, *, width: int = 1200, expected: int = 0, **context: object
) -> Iterator[Page]:
    """Give a page that has finished drawing; on leaving, it must have done nothing amiss.

    Amiss is any message on the console (but for ``expected`` of them), any error, any dialog, and
    any request but that for the file itself.
    """
    amiss: list[str] = []
    url = path.resolve().as_uri()
    made = browser.new_context(viewport={"width": width, "height": 900}, offline=True, **context)
    made.set_default_timeout(120_000)  # a browser among other tests is slow
    page = made.new_page()
    page.on("console", lambda message: amiss.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: amiss.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (amiss.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: _check(request.url, url, amiss))
    try:
        page.goto(url)
        if context.get("java_script_enabled", True):
            still = "document.querySelectorAll('figure[data-chart]:not(.live)').length"
            until(page, f"{still} <= {expected}")
        yield page
        page.wait_for_timeout(50)  # for what an action has set off
    finally:
        made.close()
    assert len(amiss) == expected, amiss


def until(page: Page, expression: str) -> None:
    """Return once an expression is true; the page's policy forbids Playwright's own way."""
    end = time.monotonic() + 120
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(20)


def _check(requested: str, url: str, amiss: list[str]) -> None:
    if requested.split("#")[0] != url and not requested.startswith(("data:", "blob:")):
        amiss.append(f"request: {requested}")


def contrast(first: tuple[float, ...], second: tuple[float, ...]) -> float:
    """Return the contrast of two colours, as WCAG defines it, from channels of 0 to 255."""
    light, dark = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: tuple[float, ...]) -> float:
    parts = [channel / 255 for channel in color]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

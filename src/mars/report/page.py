"""The report as one HTML file that opens offline: no network, and nothing runs but its own scripts.

Without scripts the page is complete: tables, and static drawings of every figure. With them, the
drawings give way to interactive charts and the tables sort.
"""

from importlib.resources import files
from pathlib import Path

from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]  # it has no types

from mars._version import __version__
from mars.report import charts, diagnostics, overview, provenance
from mars.report.analysis import Analysis
from mars.report.files import write_whole
from mars.report.markup import Markup, script, script_digest, tag
from mars.report.palette import custom_properties

GENERATOR = "mars-optimizer"
_SCRIPTS = ("tables.js", "charts.js", "curves.js", "start.js")


def write_page(analysis: Analysis, path: Path) -> None:
    """Write the page, whole or not at all."""
    write_whole(path, page(analysis).encode())


def page(analysis: Analysis) -> str:
    """Return the page; the same runs give the same text."""
    plotly, own = get_plotlyjs(), "\n".join(_asset(name) for name in _SCRIPTS)
    return "\n".join(
        [
            "<!DOCTYPE html>",
            tag(
                "html",
                _head(analysis, scripts=(plotly, own)),
                tag(
                    "body",
                    tag("a", "Skip to the verdict", href="#verdict", class_="skip"),
                    *_body(analysis),
                    script(plotly),
                    script(own),
                ),
                lang="en",
            ),
            "",
        ]
    )


def is_page(path: Path) -> bool:
    """Whether a file is a page that this module wrote."""
    with path.open("rb") as file:
        return f'content="{GENERATOR} '.encode() in file.read(1024)


def _head(analysis: Analysis, *, scripts: tuple[str, ...]) -> Markup:
    policy = (
        f"default-src 'none'; script-src {' '.join(map(script_digest, scripts))}; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="generator", content=f"{GENERATOR} {__version__}"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{analysis.results.title} · mars report"),
        tag("link", rel="icon", href="data:,"),
        tag("style", Markup(custom_properties() + _asset("page.css"))),
    )


def _body(analysis: Analysis) -> list[Markup]:
    sections: dict[str, tuple[str, Markup | None]] = {
        "results": ("Results", overview.results_table(analysis)),
        "loss": ("Loss curves", charts.loss_curves(analysis)),
        "sensitivity": ("Learning-rate sensitivity", charts.sensitivity(analysis)),
        "cost": ("Time and memory", charts.costs(analysis)),
        "correction": ("What the correction does", charts.measures(analysis)),
        "variance": ("Variance of the gradient", diagnostics.variance(analysis)),
        "configuration": ("What the arms differ in", provenance.configuration(analysis)),
        "environment": ("Environment", provenance.surroundings(analysis)),
        "limits": ("What the data do not show", provenance.limits(analysis)),
        "repeat": ("How to repeat it", provenance.repetition(analysis)),
        "runs": ("All runs", provenance.all_runs(analysis)),
    }
    shown = {name: (title, body) for name, (title, body) in sections.items() if body is not None}
    links = (tag("li", tag("a", title, href=f"#{name}")) for name, (title, _) in shown.items())
    return [
        overview.header(analysis),
        tag("nav", tag("ul", *links), aria_label="Sections"),
        tag(
            "main",
            overview.verdict(analysis),
            *(_section(name, title, body) for name, (title, body) in shown.items()),
        ),
        tag("footer", tag("p", f"Made by mars {__version__} from the records of the runs.")),
    ]


def _section(name: str, title: str, body: Markup) -> Markup:
    return tag("section", tag("h2", title, id=name), body, aria_labelledby=name)


def _asset(name: str) -> str:
    return files("mars.report").joinpath("assets", name).read_text(encoding="utf-8")

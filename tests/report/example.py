"""A comparison with everything that a page can show, and the page as a tree."""

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from mars.report.analysis import Analysis, analyze
from mars.report.results import collect
from report.synthetic import Shape, make_results, write_comparison

LABELS = ("adamw", "mars-adamw", "mars-m", "mars-lion")
FINALS = {
    "adamw": {
        0.002: {0: 1.62, 1: 1.63, 2: 1.61},
        0.004: {0: 1.65, 1: 1.66, 2: 1.64},
    },
    "mars-adamw": {
        0.006: {0: 1.57, 1: 1.585, 2: 1.565},
        0.012: {0: 1.60, 1: 1.61, 2: 1.59},
    },
    "mars-m": {
        0.016: {0: 1.52, 1: 1.535, 2: 1.505},
        0.032: {0: 1.55, 1: 1.56, 2: 1.54},
    },
    "mars-lion": {
        0.0006: {0: 1.66, 1: 1.68, 2: 1.645},
        0.0012: {0: float("inf"), 1: 1.8, 2: 1.79},
    },
}
SHAPES = {
    "adamw": Shape(step_seconds=0.04, optimizer_bytes=6.6e6),
    "mars-adamw": Shape(step_seconds=0.046, optimizer_bytes=9.9e6),
    "mars-m": Shape(step_seconds=0.052, optimizer_bytes=6.1e6),
    "mars-lion": Shape(step_seconds=0.041, optimizer_bytes=6.6e6),
}
VARIANCES = {"gradient": 3.2, "ema": 0.2, "approx": 0.19, "exact": 0.08}
KINDS = {"all": 1.0, "attention": 0.8, "mlp": 1.1, "embedding": 2.0, "vector": 0.3}
DIAGNOSIS = {
    "format": 1,
    "beta1": 0.95,
    "gamma": 0.025,
    "streams": 16,
    "history": 40,
    "micro_batch_size": 16,
    "large_batch": 2048,
    "parameters": dict.fromkeys(KINDS, 1000),
    "steps": [
        {
            "step": step,
            "kinds": {
                kind: {
                    name: {
                        "bias": 0.01 - 0.00004 * step,
                        "variance": size * variance * step / 50,
                        "variance_low": 0.9 * size * variance * step / 50,
                        "variance_high": 1.2 * size * variance * step / 50,
                    }
                    for name, variance in VARIANCES.items()
                }
                for kind, size in KINDS.items()
            },
            "squared_norm": dict.fromkeys(KINDS, 1.3),
        }
        for step in (50, 250, 500)
    ],
}
DIAGNOSED = "runs/mars-adamw/lr-0.006/seed-0"


def write_example(folder: Path) -> Path:
    """Write a comparison of four arms, one run of which was diagnosed."""
    write_comparison(folder, FINALS, name="example study", shapes=SHAPES)
    (folder / DIAGNOSED / "diagnosis.json").write_text(json.dumps(DIAGNOSIS))
    return folder


def read_example(folder: Path) -> Analysis:
    """Return what a written comparison says."""
    return analyze(collect([folder]))


def in_memory(finals=FINALS, **given) -> Analysis:
    """Return what a table of final losses says, without files."""
    return analyze(make_results(finals, **given))


@dataclass
class Element:
    """An element with its attributes, its children and all text inside it."""

    name: str
    attributes: dict[str, str | None] = field(default_factory=dict)
    children: list["Element"] = field(default_factory=list)
    own_text: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text inside, own before that of children."""
        return " ".join([*self.own_text, *(child.text for child in self.children)]).strip()

    def walk(self):
        """Give the element and everything inside it, in order."""
        yield self
        for child in self.children:
            yield from child.walk()

    def all(self, name: str) -> list["Element"]:
        """Return the elements of a name inside it, in order."""
        return [element for element in self.walk() if element.name == name]

    def by_id(self, name: str) -> "Element":
        """Return the one element of an id."""
        (found,) = (e for e in self.walk() if e.attributes.get("id") == name)
        return found


class _Reader(HTMLParser):
    VOID = frozenset({"br", "col", "input", "link", "meta"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("")
        self.open = [self.root]

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"<{tag}> has an attribute twice: {names}"
        made = Element(tag, dict(attrs))
        self.open[-1].children.append(made)
        if tag not in self.VOID:
            self.open.append(made)

    def handle_startendtag(self, tag, attrs):
        # Only SVG has elements that close themselves.
        assert "svg" in [element.name for element in self.open], tag
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open[-1].name == tag, f"</{tag}> closes <{self.open[-1].name}>"
        self.open.pop()

    def handle_data(self, data):
        if data.strip():
            self.open[-1].own_text.append(data)


def parsed(page: str) -> Element:
    """Return a page as a tree; a tag that is not closed where it must be fails."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == [reader.root], f"<{reader.open[-1].name}> is never closed"
    return reader.root

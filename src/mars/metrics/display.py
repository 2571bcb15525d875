"""What is said about a run to a person: at its start, on the way, and at its end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console
from rich.text import Text

from mars.metrics.quantities import count_text, duration_text, loss_text
from mars.metrics.record import Record, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What is known before the first step; what is empty or None is not shown."""

    name: str
    total_steps: int
    per_step: int
    """Tokens or samples a step."""
    unit: Unit = "tokens"
    description: str = ""
    optimizer: str = ""
    parameters: int | None = None
    device: str = ""
    """Device, threads and precision: ``cpu, 2 threads, float32``."""
    data: str = ""
    output: str = ""
    checkpoints: str = ""
    resumed_from: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What is known once a run has ended."""

    steps: int
    count: int
    """Tokens or samples trained on."""
    seconds: float
    per_second: float | None
    unit: Unit = "tokens"
    outcome: str = "Finished"
    """How it ended, as the first words of the summary."""
    validation_loss: float | None = None
    validation_details: Sequence[str] = ()
    """The same in other words: ``perplexity 4.4``, ``2.14 bits per byte``."""
    files: Mapping[str, str] = field(default_factory=dict)
    """What is where: ``{"metrics": "runs/tiny/metrics.jsonl"}``."""
    commands: Sequence[str] = ()
    """What to run next."""


class Display(Protocol):
    """Something that shows a run while it goes on."""

    def start(self, header: Header) -> None:
        """Say what is about to run."""

    def train(self, record: Record) -> None:
        """Take a training record."""

    def validation(self, record: Record) -> None:
        """Take a validation record."""

    def message(self, text: str) -> None:
        """Show a line in between."""

    def finish(self, summary: Summary) -> None:
        """Say how the run ended."""

    def close(self) -> None:
        """Give the terminal back, also after an error; closing twice is harmless."""


def header_text(header: Header) -> Text:
    """Return the header as lines of text."""
    per_step, total = header.per_step, header.per_step * header.total_steps
    rows = {
        "optimizer": header.optimizer,
        "parameters": "" if header.parameters is None else count_text(header.parameters),
        "steps": f"{header.total_steps} of {count_text(per_step)} {header.unit}, "
        f"{count_text(total)} in all",
        "device": header.device,
        "data": header.data,
        "output": header.output,
        "resumed": "" if header.resumed_from is None else f"from step {header.resumed_from}",
    }
    text = Text(header.name, style="bold")
    if header.description:
        text.append(f"  {header.description}", style="not bold")
    return Text("\n").join([text, *_rows(rows)])


def summary_text(summary: Summary) -> Text:
    """Return the summary as lines of text; commands stand alone on theirs, to be copied."""
    speed = "" if summary.per_second is None else f", {count_text(summary.per_second)} a second"
    lines = [
        Text.assemble(
            (summary.outcome, "bold green"),
            f": {summary.steps} steps, {count_text(summary.count)} {summary.unit} "
            f"in {duration_text(summary.seconds)}{speed}",
        )
    ]
    if summary.validation_loss is not None:
        details = ", ".join(summary.validation_details)
        lines.append(
            Text.assemble(
                "Validation loss ",
                (loss_text(summary.validation_loss), "bold"),
                f" ({details})" if details else "",
            )
        )
    lines += _rows(summary.files)
    if summary.commands:
        lines.append(Text("Next:"))
        lines += [Text(f"  {command}", style="cyan") for command in summary.commands]
    return Text("\n").join(lines)


def print_text(console: Console, text: Text) -> None:
    """Print text without wrapping it, each character as the console can show it."""
    text.plain = printable(text.plain, encoding=console.encoding)
    console.print(text, soft_wrap=True)


def printable(text: str, *, encoding: str) -> str:
    """Return the text, as long as it was, without what the encoding lacks or a terminal obeys."""
    shown = "".join(char if char.isprintable() or char == "\n" else " " for char in text)
    return shown.encode(encoding, "replace").decode(encoding)


def _rows(rows: Mapping[str, str]) -> list[Text]:
    """Return a line each for what is not empty, values below each other."""
    shown = {label: value for label, value in rows.items() if value}
    width = max(map(len, shown), default=0)
    return [Text.assemble((f"  {label:{width}}  ", "dim"), value) for label, value in shown.items()]

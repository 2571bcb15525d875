"""A plan for people: a column for each layout, its verdict, what to try; and for programs."""

from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mars.metrics.display import print_text
from mars.metrics.quantities import count_text
from mars.planning.advice import Advice
from mars.planning.estimate import USABLE_SHARE, Estimate
from mars.planning.gpus import GIGA
from mars.planning.inventory import Inventory
from mars.planning.request import Request

_MEMORY = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
    "activations": "activations",
    "casts": "casts of weights",
    "gathered": "gathered layers",
    "previous_gradients": "previous gradients",
    "optimizer_scratch": "optimizer scratch",
}
# Less than this would be shown as zero.
_SHOWN_BYTES = 5 * 10**6


@dataclass(frozen=True, slots=True)
class Shown:
    """A finished plan: what was asked, and the answers."""

    request: Request
    inventory: Inventory
    estimates: list[Estimate]
    advice: Advice | None


def show(plan: Shown, console: Console) -> None:
    """Print a plan: what is asked, a column for each layout, what to try, what is assumed."""
    estimates, advice = plan.estimates, plan.advice
    for line in _header(plan):
        print_text(console, line)
    console.print()
    console.print(_table(estimates))
    console.print()
    for each in estimates:
        style = "bold green" if each.fits else "bold red"
        print_text(console, Text(f"{_title(each)} {_verdict(each)}", style=style))
    if advice is not None:
        used = _gb(advice.estimate.memory.peak)
        words = " ".join(advice.options)
        print_text(console, Text(f"Next to try: {words}, which fits with {used} GB."))
    elif not any(each.fits for each in estimates):
        print_text(
            console, Text("Nothing else fits either: choose larger GPUs or a smaller model.")
        )
    console.print()
    for sentence in _assumptions(plan.request):
        print_text(console, Text(sentence, style="dim"))


def _header(plan: Shown) -> tuple[Text, ...]:
    request, first = plan.request, plan.estimates[0]
    run, gpu = request.run, request.gpu
    checkpointed = ", activation checkpointing" if run.training.activation_checkpointing else ""
    count = f"{request.gpus} x {gpu.name}"
    accumulated = f" {first.micro_batches} times a step" if first.micro_batches > 1 else ""
    return (
        Text.assemble(
            (run.name, "bold"),
            f"  {count_text(plan.inventory.elements)} parameters, {run.optimizer.name}"
            f"{_variant(request)}, {run.training.precision}",
        ),
        Text(
            f"{count} of {_gb(gpu.memory_bytes)} GB, {first.micro_batch_size} x "
            f"{run.model.context_length} tokens a GPU{accumulated}{checkpointed}"
        ),
    )


def _variant(request: Request) -> str:
    optimizer = request.run.optimizer
    words = [name for name in ("exact", "lean") if getattr(optimizer, name)]
    if optimizer.last_grad_dtype == "bfloat16":
        words.append("bfloat16 last_grad")
    return f" ({', '.join(words)})" if words else ""


def _table(estimates: list[Estimate]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("of one GPU", no_wrap=True)
    for each in estimates:
        table.add_column(_title(each), justify="right", no_wrap=True)
    for name, words in _MEMORY.items():
        values = [getattr(each.memory, name) for each in estimates]
        if any(values):
            table.add_row(f"{words}, GB", *(_gb(value) if value else "-" for value in values))
    peaks = [each.memory.peak for each in estimates]
    table.add_row("peak, GB", *(_gb(peak) for peak in peaks), style="bold")
    table.add_row("  reached in", *(each.memory.peak_moment for each in estimates), style="dim")
    table.add_row()
    _add_transfers(table, estimates)
    _add_times(table, estimates)
    return table


def _add_transfers(table: Table, estimates: list[Estimate]) -> None:
    """Add what a GPU sends, kind by kind."""
    kinds = dict.fromkeys(
        (sent.what, sent.operation) for each in estimates for sent in each.transfers
    )
    for what, operation in kinds:
        sent = [
            sum(s.bytes for s in each.transfers if (s.what, s.operation) == (what, operation))
            for each in estimates
        ]
        if max(sent) >= _SHOWN_BYTES:
            table.add_row(
                f"{operation} of {what}, GB a step",
                *(_gb(count) if count else "-" for count in sent),
            )


def _add_times(table: Table, estimates: list[Estimate]) -> None:
    times = [each.times for each in estimates]
    if any(each.link for each in times):
        table.add_row("link time, ms", *(_ms(each.link) for each in times))
    table.add_row("optimizer, memory, ms", *(_ms(each.optimizer_memory) for each in times))
    if any(each.newton_schulz for each in times):
        table.add_row("Newton-Schulz, ms", *(_ms(each.newton_schulz) for each in times))
    table.add_row("forward and backward, ms", *(_ms(each.model) for each in times))


def _title(each: Estimate) -> str:
    layout = each.layout
    if layout.mode != "hsdp":
        return layout.mode if layout.mode != "none" else "one GPU"
    return f"hsdp {layout.replicas}x{layout.shards}"


def _verdict(each: Estimate) -> str:
    """Return whether a layout fits, in words."""
    return "fits" if each.fits else f"does not fit: needs {_gb(each.needed_bytes)} GB"


def _assumptions(request: Request) -> tuple[str, ...]:
    gpu = request.gpu
    return (
        "Computed from shapes, for the GPU that holds the most; gradients come as activations go, "
        "so the peak is less than the sum.",
        f"A GPU fits what takes at most {USABLE_SHARE:.0%} of its memory. Parameters, gradients "
        "and moments are float32; attention stores no matrix; no compiler.",
        f"Times are at full rates, nothing overlapping: memory {gpu.bandwidth:g} GB/s, links "
        f"{gpu.node_link:g} GB/s inside a node of 8 and {gpu.link:g} between; docs/planning.md.",
    )


def _gb(count: float) -> str:
    """Return bytes in GB with about three digits."""
    value = count / GIGA
    return (
        f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
    )


def _ms(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def as_dict(plan: Shown) -> dict[str, object]:
    """Return every figure of a plan, for JSON."""
    request, run = plan.request, plan.request.run
    return {
        "model": {"name": run.name, "parameters": plan.inventory.elements, **asdict(run.model)},
        "optimizer": {**asdict(run.optimizer), "state_bytes": plan.inventory.state_bytes},
        "training": {
            "precision": run.training.precision,
            "batch_size": run.training.batch_size,
            "activation_checkpointing": run.training.activation_checkpointing,
        },
        "gpus": request.gpus,
        "gpu": asdict(request.gpu),
        "plans": [asdict(each) for each in plan.estimates],
        "advice": None if plan.advice is None else asdict(plan.advice),
    }

"""``mars eval``: what a model can do, alone or with the other processes of a launch."""

from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from mars._version import __version__
from mars.commands.eval_options import EvalOptions
from mars.commands.extras import check_extra
from mars.config.errors import RefusedError
from mars.evaluation.source import Kind, check_source
from mars.evaluation.tasks import Asked, check_asked, parse_names
from mars.training.launch import read_launch, refused_once

if TYPE_CHECKING:
    import torch

    from mars.commands.eval_display import Heard
    from mars.data.corpus import Corpus
    from mars.evaluation.results import Measured, TaskResult
    from mars.evaluation.scoring import Compute
    from mars.evaluation.subject import Subject, Tell
    from mars.evaluation.validation import Extent
    from mars.training.world import World

_TOKENS = 1 << 20
# Processes get equal shares: one that is so much later than the others is lost.
_TIMEOUT_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class _Checked:
    """Options that are refused in no part, as far as can be known without torch."""

    options: EvalOptions
    asked: Asked | None
    kind: Kind
    place: Path | None


def evaluate(options: EvalOptions, console: Console) -> None:
    """Do what the command line asks for."""
    launch = read_launch()
    with refused_once(launch):
        checked = _check(options)
    # Torch is imported from here on: refusals of the options come at once.
    from mars.commands.eval_display import show, shown
    from mars.evaluation import results
    from mars.training.hardware import memory_errors_in_words
    from mars.training.world import connected

    with (
        connected(launch, device=options.device, timeout_seconds=_TIMEOUT_SECONDS) as world,
        memory_errors_in_words(way_out="lower --batch-size"),
    ):
        with shown(console, quiet=not world.is_first) as (tell, heard):
            subject, compute = _open(checked, world, tell)
            measured = _measure(checked, subject, compute, heard)
        with world.agreed():
            if world.is_first and checked.place is not None:
                results.write(checked.place, measured)
    if world.is_first:
        show(measured, console, asked=checked.asked, place=checked.place)


def _check(options: EvalOptions) -> _Checked:
    if options.tasks is None and options.validation is None:
        raise RefusedError("nothing to measure: name --tasks, such as mars9, or --validation")
    if options.batch_size < 1:
        raise RefusedError(f"--batch-size must be at least 1, got {options.batch_size}")
    for option in ("tokens", "context_length"):
        value = getattr(options, option)
        name = f"--{option.replace('_', '-')}"
        if value is not None and options.validation is None:
            raise RefusedError(f"{name} is for --validation; leave it out")
        if value is not None and value < 1:
            raise RefusedError(f"{name} must be at least 1, got {value}")
    kind = check_source(options.source, step=options.step)
    place = options.out
    if place is None and kind == "run":
        place = Path(options.source) / "evaluation.json"
    return _Checked(options, _asked(options), kind, place)


def _asked(options: EvalOptions) -> Asked | None:
    if options.tasks is None:
        return None
    asked = Asked(
        names=parse_names(options.tasks),
        task_path=options.task_path,
        limit=options.limit,
        num_fewshot=options.num_fewshot,
        seed=options.seed,
    )
    check_asked(asked)
    check_extra(("lm_eval",), command="eval --tasks", extra="eval")
    return asked


def _open(checked: _Checked, world: "World", tell: "Tell") -> tuple["Subject", "Compute"]:
    """Return the model on its device, in every process."""
    from mars.evaluation import results
    from mars.evaluation.hub import fetch
    from mars.evaluation.scoring import Compute
    from mars.evaluation.subject import open_subject

    options = checked.options
    with world.agreed():
        device = world.device or _device(options.device)
    if checked.kind == "hub":
        world.in_turn(lambda: fetch(options.source))
    with world.agreed():
        subject = open_subject(options.source, step=options.step, tell=tell)
        if checked.place is not None:
            results.check_place(checked.place, _about(subject))
        subject.model.to(device)
    compute = Compute(
        device=device,
        precision=_precision(options.precision, device),
        batch_size=options.batch_size,
        world=world,
    )
    return subject, compute


def _measure(
    checked: _Checked, subject: "Subject", compute: "Compute", heard: "Heard"
) -> "Measured":
    """Return what was asked for; everything is opened before anything is measured."""
    from mars.evaluation.results import Measured
    from mars.evaluation.validation import validate

    options, asked, world = checked.options, checked.asked, compute.world
    corpus = None
    if options.validation is not None:
        with world.agreed():
            corpus, extent = _corpus(options, subject)
    tasks: dict[str, TaskResult] = {}
    if asked is not None:
        from mars.evaluation.harness import hushed, run_tasks
        from mars.evaluation.tasks import load_tasks

        with hushed():
            loaded = world.in_turn(lambda: load_tasks(asked))
            tasks = run_tasks(subject, loaded, asked, compute=compute, advance=heard("tasks"))
    validation = None
    if corpus is not None:
        validation = validate(subject, corpus, extent, compute=compute, advance=heard("validation"))
    return Measured(
        model=_about(subject),
        common=_common(checked, subject, compute),
        tasks=tasks,
        validation=validation,
    )


def _corpus(options: EvalOptions, subject: "Subject") -> tuple["Corpus", "Extent"]:
    from mars.data.corpus import Corpus
    from mars.evaluation.validation import Extent, check_corpus

    assert options.validation is not None
    if not options.validation.exists():
        raise RefusedError(
            f"--validation {options.validation} does not exist; make it with mars prepare"
        )
    corpus = Corpus.open(options.validation)
    extent = Extent(tokens=options.tokens or _TOKENS, context_length=options.context_length)
    check_corpus(subject, corpus, extent)
    return corpus, extent


def _device(name: str) -> "torch.device":
    from mars.training.hardware import resolve_device

    try:
        return resolve_device(name)
    except RefusedError as refusal:
        reason = str(refusal.__cause__).strip().splitlines()[0]
        raise RefusedError(f"--device {name} cannot be used here: {reason}") from refusal


def _precision(asked: str, device: "torch.device") -> str:
    from mars.optim.orthogonalize import default_dtype

    return asked if asked != "auto" else str(default_dtype(device)).removeprefix("torch.")


def _about(subject: "Subject") -> dict[str, Any]:
    return {
        "source": subject.source,
        "kind": subject.kind,
        "parameters": subject.model.parameter_count(),
        "tokenizer": subject.tokenizer.name,
    }


def _common(checked: _Checked, subject: "Subject", compute: "Compute") -> dict[str, Any]:
    """Return what every entry of the file says about how it was measured."""
    import torch

    return {
        "step": subject.step,
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": checked.options.seed,
        "precision": compute.precision,
        "device": str(compute.device),
        "batch_size": compute.batch_size,
        "processes": compute.world.size,
        "mars": __version__,
        "torch": torch.__version__,
        "lm_eval": version("lm_eval") if checked.asked else None,
    }

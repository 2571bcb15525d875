"""``mars train``: from a preset or a file to a finished run, or to one that can be resumed."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from mars.commands.listing import show_presets
from mars.commands.options import TrainOptions
from mars.config import presets
from mars.config.check import check
from mars.config.errors import RefusedError
from mars.config.load import load_file, override
from mars.config.schema import Run

if TYPE_CHECKING:
    from mars.metrics.display import Summary
    from mars.training.run_directory import RunDirectory
    from mars.training.trainer import Outcome

_RUNS = Path("runs")
_SAMPLE_TOKENS = 240
_SAMPLE_PROMPT = "def "


def train(options: TrainOptions, console: Console) -> None:
    """Do what the command line asks for."""
    if options.list:
        show_presets(console)
        return
    config = resolve(options)
    # Torch is imported from here on: refusals of the config come at once.
    from mars.training.run_directory import RunDirectory, available, check_new

    out = options.out
    if options.resume:
        directory = RunDirectory(out or _RUNS / config.name)
        if not directory.exists:
            check_new(directory.path)
    else:
        directory = RunDirectory(out or available(_RUNS, name=config.name))
        check_new(directory.path)
    _train(config, directory, console, resume=options.resume)


def resolve(options: TrainOptions) -> Run:
    """Return the checked config that the options name."""
    config = override(_named(options), options.set)
    check(config)
    return config


def _named(options: TrainOptions) -> Run:
    if options.config is not None:
        path = Path(options.config)
        is_file = path.suffix == ".toml" or path.is_file()
        return load_file(path) if is_file else presets.preset(options.config)
    if options.resume and options.out is not None:
        return load_file(options.out / "run.toml")
    raise RefusedError("name a preset or a TOML file; mars train --list shows the presets")


def _train(config: Run, directory: "RunDirectory", console: Console, *, resume: bool) -> None:
    from mars.metrics.console import make_display
    from mars.training.assemble import assemble

    display = make_display(console)
    try:
        with assemble(config, directory, display=display, resume=resume, tell=display.message) as (
            trainer,
            header,
        ):
            display.start(header)
            outcome = trainer.run()
        display.finish(summary(config, directory, outcome))
    finally:
        display.close()
    if outcome.stopped_by is None:
        _show_sample(directory, console)


def summary(config: Run, directory: "RunDirectory", outcome: "Outcome") -> "Summary":
    """Return what is said at the end of a run."""
    from mars.metrics.display import Summary

    progress, path = outcome.progress, directory.path
    per_step = config.training.batch_size * config.model.context_length
    is_complete = outcome.stopped_by is None
    resume = f"mars train {directory.config} --out {path} --resume"
    return Summary(
        steps=progress.step,
        count=progress.step * per_step,
        seconds=progress.seconds,
        per_second=progress.step * per_step / progress.seconds if progress.seconds else None,
        outcome="Finished" if is_complete else f"Stopped by {outcome.stopped_by}, all is saved",
        validation_loss=progress.validation_loss,
        validation_details=_details(directory, progress.validation_loss),
        files={
            "records": str(directory.metrics),
            "config": str(directory.config),
            "checkpoints": str(directory.checkpoints),
        },
        commands=(f'mars sample {path} --prompt "{_SAMPLE_PROMPT}"',) if is_complete else (resume,),
    )


def _details(directory: "RunDirectory", loss: float | None) -> list[str]:
    """Return a validation loss in other words."""
    if loss is None:
        return []
    details = [f"perplexity {math.exp(min(loss, 700)):.4g}"]
    if directory.read_manifest()["tokenizer"] == "bytes":
        details.append(f"{loss / math.log(2):.3f} bits per byte")
    return details


def _show_sample(directory: "RunDirectory", console: Console) -> None:
    from mars.commands.options import SampleOptions
    from mars.commands.sample import sample

    console.print("\nWhat the model writes now:", style="bold")
    sample(SampleOptions(directory.path, prompt=_SAMPLE_PROMPT, tokens=_SAMPLE_TOKENS), console)

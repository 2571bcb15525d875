"""``mars train``: from a preset or a file to a finished run, or to one that can be resumed."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from mars.commands.listing import show_presets
from mars.commands.options import SampleOptions, TrainOptions
from mars.config import presets
from mars.config.check import check
from mars.config.errors import FailedError, RefusedError
from mars.config.load import load_file, override
from mars.config.schema import Run
from mars.metrics.quantities import loss_text
from mars.training.launch import Launch, check_launch, read_launch, refused_once

if TYPE_CHECKING:
    from mars.metrics.display import Header, Summary
    from mars.training.run_directory import RunDirectory
    from mars.training.trainer import Outcome, Progress
    from mars.training.world import World

_RUNS = Path("runs")
_SAMPLE_TOKENS = 240
# What small models are trained on: source as bytes, English as tokens.
_PROMPTS = {"bytes": "def ", "gpt2": "The "}
_LARGEST_SAMPLED = 12 * 768


def train(options: TrainOptions, console: Console) -> None:
    """Do what the command line asks for, alone or with the other processes of a launch."""
    if options.list:
        show_presets(console)
        return
    launch = read_launch()
    with refused_once(launch):
        config = resolve(options)
        check_launch(config, launch)
    # Torch is imported from here on: refusals of the config come at once.
    from mars.training.world import connected

    training = config.training
    with connected(
        launch, device=training.device, timeout_seconds=training.timeout_seconds
    ) as world:
        directory, resume = _agreed_place(options, config, world)
        is_complete = _train(config, directory, console, resume=resume, world=world)
    # The others have left: from here on this process is alone.
    if is_complete and world.is_first:
        _show_sample(config, directory, console)


def _agreed_place(
    options: TrainOptions, config: Run, world: "World"
) -> tuple["RunDirectory", bool]:
    """Return where to train and whether to continue what is there, as the first process says."""
    from mars.training.run_directory import RunDirectory

    said = ""
    with world.agreed():
        if world.is_first:
            path, resume = _place(options, config, world.launch)
            said = json.dumps([str(path), resume])
    path, resume = json.loads(world.told(said))
    return RunDirectory(Path(path)), resume


def _place(options: TrainOptions, config: Run, launch: Launch) -> tuple[Path, bool]:
    """Return where to train, and whether to continue what is there."""
    from mars.training.run_directory import RunDirectory, available, check_new, of_this_job

    if launch.restarts:
        begun = of_this_job([options.out] if options.out else _runs(config.name), launch)
        if begun is not None:
            return begun, True
    if options.resume:
        path = options.out or _only_run(config.name)
        if not RunDirectory(path).exists:
            check_new(path)
        return path, True
    path = options.out or available(_RUNS, name=config.name)
    check_new(path)
    return path, False


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
        if not (options.out / "run.toml").exists():
            raise RefusedError(f"there is no run in {options.out}; name what to train there")
        return load_file(options.out / "run.toml")
    raise RefusedError("name a preset or a TOML file; mars train --list shows the presets")


def _runs(name: str) -> list[Path]:
    """Return where runs of a name may be that have no ``--out``."""
    return [_RUNS / name, *sorted(_RUNS.glob(f"{name}-[0-9]*"))]


def _only_run(name: str) -> Path:
    """Return the run of a name without ``--out``, or refuse to guess which one is meant."""
    only, *others = _runs(name)
    if others:
        places = ", ".join(str(path) for path in (only, *others))
        raise RefusedError(f"there are several runs of {name}; choose one with --out: {places}")
    return only


def _train(
    config: Run, directory: "RunDirectory", console: Console, *, resume: bool, world: "World"
) -> bool:
    """Train, and return whether the run came to its end."""
    from mars.metrics.console import make_display
    from mars.metrics.silent import SilentDisplay
    from mars.training.assemble import assemble
    from mars.training.failures import failures_told
    from mars.training.hardware import memory_errors_in_words

    display = make_display(console) if world.is_first else SilentDisplay()
    tell = display.message
    try:
        with (
            failures_told(world, directory) as reached,
            memory_errors_in_words(),
            assemble(config, directory, display=display, resume=resume, tell=tell, world=world) as (
                trainer,
                header,
            ),
        ):
            reached.step = lambda: trainer.progress.step
            display.start(header)
            outcome = trainer.run()
        if outcome.stopped_by == "divergence":
            raise _diverged(directory, outcome.progress) if world.is_first else SystemExit(1)
        if world.is_first:
            display.finish(summary(header, directory, outcome))
    finally:
        display.close()
    return outcome.stopped_by is None


def _diverged(directory: "RunDirectory", progress: "Progress") -> FailedError:
    from mars.training.trainer import DIVERGED_STEPS

    return FailedError(
        f"{directory.path} diverged at step {progress.step}: {DIVERGED_STEPS} losses in a row were "
        f"above that of the first step, {loss_text(progress.first_loss)}, or not finite, and the "
        f"validation loss is {loss_text(progress.validation_loss)}; lower optimizer.lr"
    )


def summary(header: "Header", directory: "RunDirectory", outcome: "Outcome") -> "Summary":
    """Return what is said at the end of a run."""
    from mars.metrics.display import Summary

    progress = outcome.progress
    count = progress.step * header.per_step
    is_complete = outcome.stopped_by is None
    return Summary(
        steps=progress.step,
        count=count,
        unit=header.unit,
        seconds=progress.seconds,
        per_second=count / progress.seconds if progress.seconds else None,
        outcome="Finished" if is_complete else f"Stopped by {outcome.stopped_by}, all is saved",
        validation_loss=progress.validation_loss,
        validation_details=_details(directory, progress.validation_loss),
        files={
            "records": str(directory.metrics),
            "config": str(directory.config),
            "checkpoints": str(directory.checkpoints),
        },
        commands=_next(directory) if is_complete else (directory.resume_command,),
    )


def _next(directory: "RunDirectory") -> tuple[str, ...]:
    """Return what can be done with a finished run."""
    from mars.training.run_directory import command

    tokenizer = _tokenizer(directory)
    if tokenizer is None:
        return ()
    return (command("sample", str(directory.path), "--prompt", _PROMPTS[tokenizer]),)


def _details(directory: "RunDirectory", loss: float | None) -> list[str]:
    """Return a validation loss in other words."""
    if loss is None:
        return []
    tokenizer = _tokenizer(directory)
    if tokenizer is None:
        return _accuracies(directory)
    details = [f"perplexity {math.exp(min(loss, 700)):.4g}"]
    if tokenizer == "bytes":
        details.append(f"{loss / math.log(2):.3f} bits per byte")
    return details


def _accuracies(directory: "RunDirectory") -> list[str]:
    """Return what the last validation on images found."""
    from mars.metrics.jsonl import read_records

    last = [record for record in read_records(directory.metrics) if record.split == "val"][-1]
    names = {"accuracy": "accuracy", "accuracy_flip": "with test-time flip"}
    found = {words: last.extra[name] for name, words in names.items() if name in last.extra}
    return [f"{words} {100 * value:.2f} %" for words, value in found.items()]


def _tokenizer(directory: "RunDirectory") -> str | None:
    """Return the name of a run's tokenizer; a run on images has none."""
    name = directory.read_manifest()["tokenizer"]
    return None if name is None else str(name)


def _show_sample(config: Run, directory: "RunDirectory", console: Console) -> None:
    """Print what a small model writes; a large one takes its time, when asked."""
    tokenizer = _tokenizer(directory)
    if tokenizer is None or config.model.layers * config.model.width > _LARGEST_SAMPLED:
        return
    from mars.commands.sample import sample

    console.print("\nWhat the model writes now:", style="bold")
    prompt = _PROMPTS[tokenizer]
    sample(SampleOptions(directory.path, prompt=prompt, tokens=_SAMPLE_TOKENS), console)

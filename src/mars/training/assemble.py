"""From a config to a trainer: the only place where the rooms meet."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any, NamedTuple

from mars.config.errors import RefusedError
from mars.config.schema import Run
from mars.metrics.display import Display, Header
from mars.metrics.jsonl import JsonlSink
from mars.metrics.silent import NoRecords
from mars.metrics.sinks import Records, Sink, Sinks
from mars.models.gpt2 import GPT2
from mars.training.build import Built, build, rate
from mars.training.hardware import describe_machine, device_label, peak_flops
from mars.training.initial import initialize_from_
from mars.training.launch import check_launch
from mars.training.problem import Tell
from mars.training.resuming import check_data, newest, processes, restore, tell_changes
from mars.training.run_directory import RunDirectory, check_resumed
from mars.training.trainer import Parts, Trainer
from mars.training.world import World


class Assembled(NamedTuple):
    """A trainer that is ready to run, and what to say about it before."""

    trainer: Trainer
    header: Header


@contextmanager
def assemble(
    config: Run,
    directory: RunDirectory,
    *,
    display: Display,
    resume: bool,
    tell: Tell,
    world: World | None = None,
) -> Iterator[Assembled]:
    """Give a trainer for a checked config; leaving the context closes its files.

    Everything is built before the run directory is made or touched, and a directory that was made
    is removed again if anything fails before training, so what cannot run leaves nothing behind.
    With ``resume``, a run that is there goes on from its newest good checkpoint. The processes of
    a ``world`` assemble together; the first of them alone writes to the directory.
    """
    world = world or World()
    check_launch(config, world.launch)
    with world.agreed():
        _check_sinks(config)
    built = build(config, tell=tell, world=world)
    # The first process is asked, before it makes what the others would find.
    is_resumed = world.told("yes" if resume and directory.exists else "no") == "yes"
    with world.agreed():
        if is_resumed:
            check_resumed(directory, config)
            check_data(directory, built.data)
            tell_changes(directory, config, built, tell=tell)
        elif world.is_first:
            files = built.problem.tokenizer_files
            directory.create(config, _manifest(config, built), tokenizer=files)
    with ExitStack() as stack:
        try:
            with world.agreed():
                if world.is_first:
                    stack.enter_context(directory.lock())
            assembled = _connect(config, directory, built, display, resume=resume, stack=stack)
        except BaseException:
            if world.is_first and not is_resumed:
                shutil.rmtree(directory.path, ignore_errors=True)
            raise
        yield assembled


def _connect(
    config: Run,
    directory: RunDirectory,
    built: Built,
    display: Display,
    *,
    resume: bool,
    stack: ExitStack,
) -> Assembled:
    """Return the trainer with its sinks open and its state restored."""
    loaded = newest(directory, built)
    for complaint in loaded.rejected if loaded else []:
        display.message(complaint)
    step = loaded.step if loaded else None
    with built.world.agreed():
        if loaded is None and isinstance(built.model, GPT2):
            initialize_from_(built.model, config.model)
        records: Records = NoRecords()
        if built.world.is_first:
            position = loaded.training["metrics_position"] if loaded else 0
            records = JsonlSink(directory.metrics, position=position)
        sinks: list[Sink] = [records]
        stack.callback(lambda: Sinks(sinks).close())
        if built.world.is_first:
            sinks += _optional_sinks(config, directory, (step or 0) if resume else None)
    trainer = Trainer(
        Parts(
            config=config,
            model=built.model,
            stepper=built.stepper,
            task=built.task,
            rate=rate(config),
            directory=directory,
            records=records,
            sinks=Sinks(sinks),
            display=display,
            world=built.world,
            ideal_seconds=_ideal_seconds(config, built),
        )
    )
    if loaded:
        with built.world.agreed():
            restore(trainer, config, built, loaded)
    return Assembled(trainer, _header(config, directory, built, step))


def _ideal_seconds(config: Run, built: Built) -> float | None:
    """Return the seconds of a step at the hardware's peak, where that is known."""
    peak = peak_flops(built.device, precision=config.training.precision)
    flops = built.problem.flops_per_count
    if peak is None or flops is None:
        return None
    return flops * built.task.count_per_step / peak / built.world.size


def _optional_sinks(config: Run, directory: RunDirectory, resumed_from: int | None) -> list[Sink]:
    sinks: list[Sink] = []
    if config.metrics.tensorboard:
        from mars.metrics.tensorboard import TensorBoardSink

        sinks.append(TensorBoardSink(directory.path / "tensorboard", resumed_from=resumed_from))
    if config.metrics.wandb != "off":
        from mars.metrics.wandb import WandbSink

        sinks.append(
            WandbSink(
                directory.path,
                project=config.metrics.wandb_project,
                name=directory.path.name,
                mode=config.metrics.wandb,
                config=asdict(config),
            )
        )
    return sinks


def _check_sinks(config: Run) -> None:
    """Refuse sinks whose packages are missing, before anything is made."""
    wanted = {
        "metrics.tensorboard": ("tensorboard", config.metrics.tensorboard),
        "metrics.wandb": ("wandb", config.metrics.wandb != "off"),
    }
    for key, (package, is_wanted) in wanted.items():
        if is_wanted and find_spec(package) is None:
            raise RefusedError(
                f"{key} needs {package}, which is not installed: "
                "pip install 'mars-optimizer[track]', or leave it out"
            )


def _manifest(config: Run, built: Built) -> dict[str, Any]:
    return {
        **describe_machine(built.device),
        "seed": config.seed,
        "parameters": built.model.parameter_count(),
        **built.problem.about,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "processes": processes(built),
        "job": built.world.launch.job,
    }


def _header(config: Run, directory: RunDirectory, built: Built, resumed_from: int | None) -> Header:
    optimizer = config.optimizer
    return Header(
        name=config.name,
        description=config.description,
        optimizer=f"{optimizer.name}, lr {optimizer.lr:g}, weight decay {optimizer.weight_decay:g}",
        parameters=built.model.parameter_count(),
        per_step=built.task.count_per_step,
        unit=built.task.unit,
        total_steps=config.training.steps,
        device=f"{_where(built)}, {config.training.precision}",
        data=config.data.path,
        output=str(directory.path),
        checkpoints=str(directory.checkpoints),
        resumed_from=resumed_from,
    )


def _where(built: Built) -> str:
    """Return what trains, for a person."""
    label = device_label(built.device)
    size = built.world.size
    return label if size == 1 else f"{size} processes, {built.shared.mode}: {label} each"

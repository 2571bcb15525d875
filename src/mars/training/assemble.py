"""From a config to a trainer: the only place where the rooms meet."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mars import checkpoint
from mars.config.errors import RefusedError
from mars.config.schema import Data, Run
from mars.data.corpus import Corpus
from mars.data.prepare import prepare_stdlib
from mars.data.sampler import Batches, Sampler, validation_windows
from mars.metrics.display import Display, Header
from mars.metrics.jsonl import JsonlSink
from mars.metrics.sinks import Sink, Sinks
from mars.models.gpt2 import GPT2
from mars.training.hardware import describe_machine, device_label, peak_flops, resolve_device
from mars.training.optimizers import build_optimizer
from mars.training.run_directory import RunDirectory, check_resumed
from mars.training.schedule import factor
from mars.training.step import Stepper, autocast
from mars.training.task import LanguageModeling
from mars.training.trainer import Parts, Trainer

Tell = Callable[[str], None]


class Assembled(NamedTuple):
    """A trainer that is ready to run, and what to say about it before."""

    trainer: Trainer
    header: Header


@dataclass(frozen=True, slots=True)
class Built:
    """What can be built without touching the run directory."""

    corpus: Corpus
    model: GPT2
    stepper: Stepper
    task: LanguageModeling
    device: torch.device


@contextmanager
def assemble(
    config: Run, directory: RunDirectory, *, display: Display, resume: bool, tell: Tell
) -> Iterator[Assembled]:
    """Give a trainer for a checked config; leaving the context closes its files.

    Everything is built before the run directory is made or touched, and a directory that was made
    is removed again if anything fails before training, so what cannot run leaves nothing behind.
    With ``resume``, a run that is there goes on from its newest good checkpoint.
    """
    built = build(config, tell=tell)
    is_resumed = resume and directory.exists
    if is_resumed:
        check_resumed(directory, config)
        check_data(directory, built.corpus)
        tell_changes(directory, built.device, tell=tell)
    else:
        files = built.corpus.tokenizer.files()
        directory.create(config, _manifest(config, built), tokenizer=files)
    with ExitStack() as stack:
        try:
            stack.enter_context(directory.lock())
            assembled = _connect(config, directory, built, display, resume=resume, stack=stack)
        except BaseException:
            if not is_resumed:
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
    loaded = checkpoint.load_newest(directory.checkpoints)
    for complaint in loaded.rejected if loaded else []:
        display.message(complaint)
    position = loaded.training["metrics_position"] if loaded else 0
    records = JsonlSink(directory.metrics, position=position)
    sinks: list[Sink] = [records]
    stack.callback(lambda: Sinks(sinks).close())
    sinks += _optional_sinks(config, directory, (loaded.step if loaded else 0) if resume else None)
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
            ideal_seconds=_ideal_seconds(config, built),
        )
    )
    if loaded:
        _restore(trainer, built.model, loaded)
    return Assembled(trainer, _header(config, directory, built, loaded.step if loaded else None))


def _restore(trainer: Trainer, model: GPT2, loaded: checkpoint.Loaded) -> None:
    with misfits_refused(loaded):
        model.load_state_dict(loaded.model)
        trainer.restore(loaded.training)


@contextmanager
def misfits_refused(loaded: checkpoint.Loaded) -> Iterator[None]:
    """Turn what goes wrong where a checkpoint is restored into a refusal that names it."""
    try:
        yield
    except (KeyError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise RefusedError(
            f"{loaded.path} is whole but does not fit this version or hardware: {reason}"
        ) from error


def open_corpus(data: Data, *, tell: Tell) -> Corpus:
    """Return the corpus of a config, preparing the embedded one if it is not there yet."""
    path = Path(data.path)
    if path.exists():
        return Corpus.open(path)
    if data.prepare == "stdlib":
        return prepare_stdlib(path, tell=tell)
    raise RefusedError(
        f"data.path = {data.path!r} does not exist; make it with mars prepare, such as "
        f"mars prepare text --input FILES --out {data.path}"
    )


def build(config: Run, *, tell: Tell) -> Built:
    """Return the parts of a run in their initial state; what cannot run here is refused."""
    _check_sinks(config)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RefusedError("mars train runs in one process; start it without torchrun")
    device = resolve_device(config.training.device)
    corpus = open_corpus(config.data, tell=tell)
    if config.model.vocab_size < corpus.manifest.vocab_size:
        raise RefusedError(
            f"model.vocab_size = {config.model.vocab_size} is too small for {config.data.path}, "
            f"which has {corpus.manifest.vocab_size} tokens"
        )
    task = _language_modeling(config, corpus, device)
    if config.training.compile:
        _check_compiler()
    torch.manual_seed(config.seed)
    model = GPT2(
        config.model,
        generator=torch.Generator().manual_seed(config.seed),
        activation_checkpointing=config.training.activation_checkpointing,
    ).to(device)
    optimizer = build_optimizer(
        config.optimizer, model, skip_nonfinite=config.training.skip_nonfinite
    )
    compiled = torch.compile(model) if config.training.compile else model
    stepper = Stepper(compiled, optimizer, task, config=config.training)
    return Built(corpus, model, stepper, task, device)


def _language_modeling(config: Run, corpus: Corpus, device: torch.device) -> LanguageModeling:
    training, context_length = config.training, config.model.context_length
    micro_batch_size = training.micro_batch_size or training.batch_size
    sampler = Sampler(corpus.train, context_length=context_length, seed=config.seed)
    batches = Batches(
        sampler,
        batch_size=training.batch_size,
        micro_batch_size=micro_batch_size,
        workers=config.data.workers,
    )
    validation = partial(
        validation_windows,
        corpus.validation,
        context_length=context_length,
        count=training.validation_sequences,
        micro_batch_size=micro_batch_size,
    )
    validation()  # refuses a split that is too short now, not at the first validation
    return LanguageModeling(
        batches,
        count_per_step=training.batch_size * context_length,
        validation=validation,
        device=device,
        autocast=partial(autocast, device, precision=training.precision),
    )


def rate(config: Run) -> Callable[[int], float]:
    """Return the factor of the peak learning rates by step, counted from 0."""
    return lambda step: factor(
        config.schedule, step=step, steps=config.training.steps, lr=config.optimizer.lr
    )


def _ideal_seconds(config: Run, built: Built) -> float | None:
    """Return the seconds of a step at the hardware's peak, where that is known."""
    peak = peak_flops(built.device, precision=config.training.precision)
    if peak is None:
        return None
    return built.model.flops_per_token() * built.task.count_per_step / peak


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


def _check_compiler() -> None:
    """Refuse ``training.compile`` where nothing can be compiled."""
    # Imported where it is used: the compiler takes as long to import as torch itself.
    from torch._dynamo.exc import BackendCompilerFailed
    from torch._inductor.exc import InductorError

    try:
        torch.compile(lambda x: x + 1)(torch.zeros(2))
    except (BackendCompilerFailed, InductorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise RefusedError(
            f"training.compile = true finds no working compiler: {reason}; set it to false"
        ) from error


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
        "tokenizer": built.corpus.tokenizer.name,
        "data": {"digest": built.corpus.digest, "train_tokens": len(built.corpus.train)},
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def check_data(directory: RunDirectory, corpus: Corpus) -> None:
    """Refuse a corpus that is not the one the run of a directory was trained on."""
    digest = directory.read_manifest().get("data", {}).get("digest")
    if digest != corpus.digest:
        raise RefusedError(
            f"{directory.path} was trained on other data: its digest is {digest}, that of "
            f"{corpus.path} is {corpus.digest}; give the same corpus as data.path"
        )


def tell_changes(directory: RunDirectory, device: torch.device, *, tell: Tell) -> None:
    """Say what of the machine is not as it was, since results may then differ in the last bits."""
    before, now = directory.read_manifest(), describe_machine(device)
    changed = [
        f"{name} (was {before.get(name)}, is {now[name]})"
        for name in ("version", "torch")
        if before.get(name) != now[name]
    ]
    was = before.get("hardware", {}).get("device")
    if was != now["hardware"]["device"]:
        changed.append(f"device (was {was}, is {now['hardware']['device']})")
    if changed:
        tell(f"not bit-identical from here on: {', '.join(changed)}")


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
        device=f"{device_label(built.device)}, {config.training.precision}",
        data=config.data.path,
        output=str(directory.path),
        checkpoints=str(directory.checkpoints),
        resumed_from=resumed_from,
    )

"""From a config to the parts of a run in their initial state, divided over its processes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from mars import MARS
from mars.config.errors import RefusedError
from mars.config.schema import Data, Run
from mars.data.corpora import PUBLISHED
from mars.data.corpus import Corpus
from mars.data.prepare import prepare_stdlib
from mars.data.sampler import Batches, Sampler, validation_windows
from mars.models.gpt2 import GPT2
from mars.training.hardware import resolve_device
from mars.training.optimizers import build_optimizer
from mars.training.parallel import Shared, share
from mars.training.problem import Dataset, Model, Problem, Tell
from mars.training.schedule import factor
from mars.training.step import Stepper, autocast
from mars.training.streams import seed_streams_
from mars.training.task import LanguageModeling, Task
from mars.training.vision import image_problem
from mars.training.world import World


@dataclass(frozen=True, slots=True)
class Built:
    """What can be built without touching the run directory."""

    problem: Problem
    shared: Shared
    stepper: Stepper
    device: torch.device
    world: World

    @property
    def model(self) -> Model:
        """The model by its own names."""
        return self.shared.model

    @property
    def task(self) -> Task:
        """What is trained on."""
        return self.problem.task

    @property
    def data(self) -> Dataset:
        """The corpus, or the images."""
        return self.problem.data

    @property
    def corpus(self) -> Corpus:
        """The corpus of a run on text."""
        assert isinstance(self.problem.data, Corpus)
        return self.problem.data


def open_corpus(data: Data, *, tell: Tell) -> Corpus:
    """Return the corpus of a config, preparing the embedded one if it is not there yet."""
    path = Path(data.path)
    if path.exists():
        return Corpus.open(path)
    if data.prepare == "stdlib":
        return prepare_stdlib(path, tell=tell)
    # The presets' folders are named after the corpora that they are trained on.
    way = path.name if path.name in PUBLISHED else "text --input FILES"
    raise RefusedError(
        f"data.path = {data.path!r} does not exist; make it with mars prepare, such as "
        f"mars prepare {way} --out {data.path}"
    )


def build(config: Run, *, tell: Tell, world: World | None = None) -> Built:
    """Return the parts of a run in their initial state; what cannot run here is refused.

    Every process of a ``world`` builds its own; without one this process is alone.
    """
    world = world or World()
    with world.agreed():
        device = world.device or resolve_device(config.training.device)
    pose = image_problem if config.vision.network else _text_problem
    problem = pose(config, device, world, tell=tell)
    with world.agreed():
        if config.training.compile:
            _check_compiler()
    seed_streams_(config.seed, step=0, world=world)
    with world.agreed():
        shared = share(config, world, device, make=problem.make)
        optimizer = build_optimizer(
            config.optimizer, shared.wrapped, skip_nonfinite=config.training.skip_nonfinite
        )
        if isinstance(optimizer, MARS):
            optimizer.track_buffers(shared.model)
        stepper = Stepper(
            shared.forward,
            optimizer,
            problem.task,
            config=config.training,
            accumulate=shared.accumulate,
        )
    return Built(problem, shared, stepper, device, world)


def _text_problem(config: Run, device: torch.device, world: World, *, tell: Tell) -> Problem:
    corpus = world.in_turn(lambda: open_corpus(config.data, tell=tell))
    with world.agreed():
        _check_vocabulary(config, corpus)
        task = _language_modeling(config, corpus, device, world)
        files = corpus.tokenizer.files()

    def make(generator: torch.Generator | None) -> GPT2:
        recompute = config.training.activation_checkpointing
        return GPT2(config.model, generator=generator, activation_checkpointing=recompute)

    return Problem(
        data=corpus,
        task=task,
        make=make,
        about={
            "tokenizer": corpus.tokenizer.name,
            "data": {"digest": corpus.digest, "train_tokens": len(corpus.train)},
        },
        tokenizer_files=files,
        flops_per_count=_flops_per_token(config),
    )


def _flops_per_token(config: Run) -> int:
    with torch.device("meta"):
        return GPT2(config.model).flops_per_token()


def _check_vocabulary(config: Run, corpus: Corpus) -> None:
    if config.model.vocab_size < corpus.manifest.vocab_size:
        raise RefusedError(
            f"model.vocab_size = {config.model.vocab_size} is too small for {config.data.path}, "
            f"which has {corpus.manifest.vocab_size} tokens"
        )


def _language_modeling(
    config: Run, corpus: Corpus, device: torch.device, world: World
) -> LanguageModeling:
    training, context_length = config.training, config.model.context_length
    micro_batch_size = training.micro_batch_size or training.batch_size // world.size
    sampler = Sampler(corpus.train, context_length=context_length, seed=config.seed)
    batches = Batches(
        sampler,
        batch_size=training.batch_size,
        micro_batch_size=micro_batch_size,
        rank=world.rank,
        world_size=world.size,
        workers=config.data.workers,
    )
    validation = partial(
        validation_windows,
        corpus.validation,
        context_length=context_length,
        count=training.validation_sequences,
        micro_batch_size=micro_batch_size,
        rank=world.rank,
        world_size=world.size,
    )
    validation()  # refuses a split that is too short now, not at the first validation
    return LanguageModeling(
        batches,
        count_per_step=training.batch_size * context_length,
        validation=validation,
        device=device,
        autocast=partial(autocast, device, precision=training.precision),
        sums=world.sums,
    )


def rate(config: Run) -> Callable[[int], float]:
    """Return the factor of the peak learning rates by step, counted from 0."""
    return lambda step: factor(
        config.schedule, step=step, steps=config.training.steps, lr=config.optimizer.lr
    )


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

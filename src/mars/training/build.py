"""From a config to the parts of a run in their initial state, divided over its processes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from mars.config.errors import RefusedError
from mars.config.schema import Data, Run
from mars.data.corpus import Corpus
from mars.data.prepare import prepare_stdlib
from mars.data.sampler import Batches, Sampler, validation_windows
from mars.models.gpt2 import GPT2
from mars.training.hardware import resolve_device
from mars.training.optimizers import build_optimizer
from mars.training.parallel import Shared, share
from mars.training.schedule import factor
from mars.training.step import Stepper, autocast
from mars.training.streams import seed_streams_
from mars.training.task import LanguageModeling
from mars.training.world import World

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Built:
    """What can be built without touching the run directory."""

    corpus: Corpus
    shared: Shared
    stepper: Stepper
    task: LanguageModeling
    device: torch.device
    world: World

    @property
    def model(self) -> GPT2:
        """The model by its own names."""
        return self.shared.model


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


def build(config: Run, *, tell: Tell, world: World | None = None) -> Built:
    """Return the parts of a run in their initial state; what cannot run here is refused.

    Every process of a ``world`` builds its own; without one this process is alone.
    """
    world = world or World()
    with world.agreed():
        device = world.device or resolve_device(config.training.device)
    corpus = world.in_turn(lambda: open_corpus(config.data, tell=tell))
    with world.agreed():
        _check_vocabulary(config, corpus)
        task = _language_modeling(config, corpus, device, world)
        if config.training.compile:
            _check_compiler()
    seed_streams_(config.seed, step=0, world=world)
    with world.agreed():
        shared = share(config, world, device)
        optimizer = build_optimizer(
            config.optimizer, shared.wrapped, skip_nonfinite=config.training.skip_nonfinite
        )
        stepper = Stepper(
            shared.forward, optimizer, task, config=config.training, accumulate=shared.accumulate
        )
    return Built(corpus, shared, stepper, task, device, world)


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

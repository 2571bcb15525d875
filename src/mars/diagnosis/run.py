"""From a run directory to its diagnosis."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mars import checkpoint
from mars.config.schema import Run
from mars.data.sampler import Sampler
from mars.diagnosis.estimators import correction_of
from mars.diagnosis.figures import StepFigures, step_figures
from mars.diagnosis.gradients import Gradients, Samples
from mars.diagnosis.kinds import indices, kinds_of
from mars.diagnosis.measure import Experiment
from mars.diagnosis.memory import check_memory
from mars.diagnosis.plan import Asked, make_plan
from mars.diagnosis.replay import (
    Replay,
    reached_step,
    read_config,
    replay,
    replayed_steps,
    sequences_a_step,
)
from mars.diagnosis.results import Diagnosis
from mars.training.build import Built
from mars.training.problem import Tell
from mars.training.run_directory import RunDirectory
from mars.training.step import autocast


@dataclass(slots=True)
class Work:
    """How much of the work is done, in sequences, and what is being done."""

    total: int
    observe: Callable[["Work"], None]
    done: int = 0
    doing: str = ""

    def tick(self, sequences: int) -> None:
        """Count sequences as done."""
        self.done += sequences
        self.observe(self)


def diagnose(
    directory: RunDirectory, asked: Asked, *, observe: Callable[[Work], None], tell: Tell
) -> Diagnosis:
    """Return bias and variance of a run's gradients; the directory is only read.

    ``observe`` is called after every gradient, ``tell`` with what a person should know.
    """
    config = read_config(directory)
    correction = correction_of(config.optimizer)
    plan = make_plan(asked, config, reached=reached_step(directory), beta1=correction.beta1)
    check_memory(config, plan, correction)
    again = replayed_steps(plan, directory) * sequences_a_step(config)
    work = Work(again + sum(map(plan.sequences, plan.steps)), observe)
    with replay(config, directory, history=plan.history, tell=tell) as repeated:
        kinds = kinds_of(repeated.built.model)
        experiment = Experiment(
            gradients=_gradients(config, repeated.built),
            correction=correction,
            plan=plan,
            seed=config.seed,
        )
        steps = [_at(step, repeated, experiment, indices(kinds), work) for step in plan.steps]
    sizes = {name: p.numel() for name, p in repeated.built.model.named_parameters()}
    return Diagnosis(
        plan=plan,
        correction=correction,
        is_own_correction=config.optimizer.name.startswith("mars-"),
        parameters={
            kind: sum(sizes[list(kinds)[place]] for place in places)
            for kind, places in indices(kinds).items()
        },
        steps=tuple(steps),
    )


def _at(
    step: int, repeated: Replay, experiment: Experiment, places: dict[str, list[int]], work: Work
) -> StepFigures:
    length = experiment.plan.window(step)
    work.doing = f"replaying the run to step {step}"
    path = repeated.path(step, length=length, tick=work.tick)
    work.doing = f"drawing gradients at step {step}"
    # The run goes on from here to the next step with the random numbers that are its own.
    state = checkpoint.capture_random_state()
    measured = experiment.measure(path, step=step, tick=work.tick)
    checkpoint.restore_random_state_(state)
    return step_figures(measured, places)


def _gradients(config: Run, built: Built) -> Gradients:
    """Return where gradients come from: a second model, on data in orders of its own."""

    def samples(seed: int) -> Samples:
        sampler = Sampler(built.corpus.train, context_length=config.model.context_length, seed=seed)
        return sampler.sequences

    training = config.training
    # A loss scale would have to be found for each float16 gradient: float32 needs none.
    precision = "float32" if training.precision == "float16" else training.precision
    return Gradients(
        model=copy.deepcopy(built.model).train(),
        loss=built.task.loss,
        samples=samples,
        part_size=training.micro_batch_size or training.batch_size,
        context=partial(autocast, built.device, precision=precision),
    )

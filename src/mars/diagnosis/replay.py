"""The path of a run, found by taking its steps again.

Training is a function of the config, so the parameters on the way to any step can be computed
from the newest checkpoint before it, or from the initial weights. The run directory is only read.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

from mars import checkpoint
from mars.checkpoint import CheckpointError, Found
from mars.config.errors import RefusedError
from mars.config.load import load_file
from mars.config.schema import Run
from mars.config.vision import require_text
from mars.diagnosis.gradients import Point, Tick
from mars.diagnosis.plan import Plan
from mars.metrics.jsonl import read_records
from mars.training.build import Built, build, rate
from mars.training.problem import Tell
from mars.training.resuming import check_data, misfits_refused, tell_changes
from mars.training.run_directory import RunDirectory
from mars.training.streams import restore_streams_


def read_config(directory: RunDirectory) -> Run:
    """Return the config of a run, without what would measure or report its replay."""
    if not directory.exists:
        raise RefusedError(f"{directory.path} is not a run directory: it has no run.toml")
    config = load_file(directory.config)
    require_text(config, what="mars diagnose")
    metrics = replace(config.metrics, measures=False, tensorboard=False, wandb="off")
    return replace(config, metrics=metrics)


def reached_step(directory: RunDirectory) -> int:
    """Return how far a run has come, by its records and checkpoints."""
    recorded = read_records(directory.metrics) if directory.metrics.exists() else []
    saved = checkpoint.newest_step(directory.checkpoints) or 0
    return max([saved, *(record.step for record in recorded)])


def sequences_a_step(config: Run) -> int:
    """Return the sequences whose gradients a step takes: in exact mode each of them twice."""
    return config.training.batch_size * (2 if config.optimizer.exact else 1)


def replayed_steps(plan: Plan, directory: RunDirectory) -> int:
    """Return how many steps a replay takes if every checkpoint is good."""
    found = checkpoint.find(directory.checkpoints)
    at = taken = 0
    for step in plan.steps:
        source = _newest(found, after=at, until=step - plan.window(step))
        taken += step - (source.step if source else at)
        at = step
    return taken


@contextmanager
def replay(config: Run, directory: RunDirectory, *, history: int, tell: Tell) -> Iterator["Replay"]:
    """Give a replay of a run from its start; leaving the context ends its threads."""
    built = build(config, tell=tell)
    with closing(built.task.batches):
        check_data(directory, built.data)
        tell_changes(directory, config, built, tell=tell)
        yield Replay(config, built, directory, history=history, tell=tell)


class Replay:
    """Takes the steps of a run once more, keeping the last points of its path."""

    def __init__(
        self, config: Run, built: Built, directory: RunDirectory, *, history: int, tell: Tell
    ) -> None:
        self.built = built
        self.step = 0
        self._rate = rate(config)
        self._seed = config.seed
        self._peaks = [group["lr"] for group in built.stepper.optimizer.param_groups]
        self._sequences = sequences_a_step(config)
        self._found = checkpoint.find(directory.checkpoints)
        self._tell = tell
        # From x_{s-L} to x_s there are L + 1 points.
        self._points: deque[Point] = deque(maxlen=history + 1)
        self._keep_point()

    def path(self, step: int, *, length: int, tick: Tick) -> list[Point]:
        """Return the parameters at a step and at ``length`` steps before it, the oldest first.

        Steps are asked for in ascending order.
        """
        self._jump(until=step - length)
        while self.step < step:
            self._advance()
            tick(self._sequences)
        # The gradients of the last step are as large as the model, and no longer needed.
        self.built.stepper.optimizer.zero_grad()
        return list(self._points)[-length - 1 :]

    def _advance(self) -> None:
        """Take a step as the trainer does."""
        factor = self._rate(self.step)
        groups = self.built.stepper.optimizer.param_groups
        for group, peak in zip(groups, self._peaks, strict=True):
            group["lr"] = peak * factor
        self.built.stepper(next(self.built.task.batches), measure=False)
        self.step += 1
        self._keep_point()

    def _jump(self, *, until: int) -> None:
        """Go to the newest good checkpoint that is not later than a step, if it is ahead."""
        while source := _newest(self._found, after=self.step, until=until):
            try:
                loaded = checkpoint.load(source.path)
            except CheckpointError as error:  # damaged, or removed by a run that goes on
                self._tell(str(error))
                self._found.remove(source)
                continue
            self._restore(loaded)
            return

    def _restore(self, loaded: checkpoint.Loaded) -> None:
        with misfits_refused(loaded):
            self.built.model.load_state_dict(loaded.model)
            self.built.stepper.load_state_dict(loaded.training["stepper"])
            self.built.task.batches.load_state_dict(loaded.training["batches"])
            restore_streams_(loaded, seed=self._seed, world=self.built.world)
        self.step = loaded.step
        self._points.clear()
        self._keep_point()

    def _keep_point(self) -> None:
        params = [p for p in self.built.model.parameters() if p.requires_grad]
        # On the host, where there is most room.
        self._points.append([p.detach().to("cpu", copy=True) for p in params])


def _newest(found: Sequence[Found], *, after: int, until: int) -> Found | None:
    """Return the last checkpoint between two steps, the first left out."""
    between = [each for each in found if after < each.step <= until]
    return between[-1] if between else None

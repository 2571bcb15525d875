"""Going on with a run: what must be as it was, what may have changed, and taking up its state."""

from collections.abc import Iterator
from contextlib import contextmanager

from mars import checkpoint
from mars.config.errors import RefusedError
from mars.config.load import load_file
from mars.config.schema import Run
from mars.training.build import Built
from mars.training.hardware import describe_machine
from mars.training.parallel import place_like
from mars.training.problem import Dataset, Tell
from mars.training.run_directory import RunDirectory
from mars.training.streams import restore_streams_
from mars.training.trainer import Trainer


def newest(directory: RunDirectory, built: Built) -> checkpoint.Loaded | None:
    """Return the newest good checkpoint; of a divided model this process's part of it."""
    if not built.shared.is_sharded:
        return checkpoint.load_newest(directory.checkpoints)
    place = place_like(built.model, built.stepper.optimizer)
    return checkpoint.load_newest(directory.checkpoints, place=place)


def restore(trainer: Trainer, config: Run, built: Built, loaded: checkpoint.Loaded) -> None:
    """Take up the state of a checkpoint."""
    with misfits_refused(loaded):
        built.model.load_state_dict(loaded.model)
        trainer.restore(loaded.training)
        restore_streams_(loaded, seed=config.seed, world=built.world)


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


def check_data(directory: RunDirectory, data: Dataset) -> None:
    """Refuse data that are not those the run of a directory was trained on."""
    digest = directory.read_manifest().get("data", {}).get("digest")
    if digest != data.digest:
        raise RefusedError(
            f"{directory.path} was trained on other data: its digest is {digest}, that of "
            f"{data.path} is {data.digest}; give the same corpus as data.path"
        )


def tell_changes(directory: RunDirectory, config: Run, built: Built, *, tell: Tell) -> None:
    """Say what is not as it was, since results may then differ in the last bits."""
    before, now = directory.read_manifest(), describe_machine(built.device)
    pairs: dict[str, tuple[object, object]]
    pairs = {name: (before.get(name), now[name]) for name in ("version", "torch")}
    pairs["device"] = (before.get("hardware", {}).get("device"), now["hardware"]["device"])
    pairs["processes"] = (before.get("processes", "1"), processes(built))
    first = load_file(directory.config).training
    pairs["micro_batch_size"] = (first.micro_batch_size, config.training.micro_batch_size)
    changed = [f"{name} (was {was}, is {is_})" for name, (was, is_) in pairs.items() if was != is_]
    if changed:
        tell(f"not bit-identical from here on: {', '.join(changed)}")


def processes(built: Built) -> str:
    """Return how many processes train, and how they share the model."""
    size = built.world.size
    return "1" if size == 1 else f"{size}, {built.shared.mode}"

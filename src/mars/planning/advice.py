"""What to try where nothing fits: the mildest change after which something does."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from mars.config.load import assign
from mars.planning.estimate import Estimate, estimate, inventory_of
from mars.planning.request import Request

# Options to add by name; a flag has no value.
Options = dict[str, str]

_MOST_GPUS = 4096


@dataclass(frozen=True, slots=True)
class Advice:
    """Options to add to the command, and what they lead to."""

    options: tuple[str, ...]
    estimate: Estimate


def advise(request: Request, estimates: list[Estimate]) -> Advice | None:
    """Return the first change that fits, or None if something fits or nothing would."""
    if any(each.fits for each in estimates):
        return None
    for options, changed in _changes(request):
        inventory = inventory_of(changed)
        for layout in changed.layouts:
            made = estimate(changed, layout, inventory)
            if made.fits:
                if request.mode not in (None, layout.mode):
                    options = {**options, "--parallel": layout.mode}
                return Advice(_words(options), made)
    return None


def _words(options: Options) -> tuple[str, ...]:
    return tuple(word for pair in options.items() for word in pair if word)


def _changes(request: Request) -> Iterator[tuple[Options, Request]]:
    """Yield requests that take less and less, with the options that make them."""
    options: Options = {}
    if request.mode is not None and request.gpus > 1 and request.mode != "fsdp2":
        yield options, (request := replace(request, mode=None, replicas=None))
    if not request.run.training.activation_checkpointing:
        options = {**options, "--activation-checkpointing": ""}
        request = _set(request, {"training.activation_checkpointing": True})
        yield options, request
    yield from _without_accumulation(options, request)
    if request.micro_batch_size > 1:
        options = {**options, "--micro-batch-size": "1"}
        request = _in_batches_of(request, 1)
        yield options, request
    gpus = 2 * request.gpus
    while gpus <= _MOST_GPUS:
        if (more := _on(request, gpus)) is not None:
            wanted = {**options, "--gpus": str(gpus)}
            yield wanted, more
            yield from _without_accumulation(wanted, more)
        gpus *= 2


def _without_accumulation(options: Options, request: Request) -> Iterator[tuple[Options, Request]]:
    """Yield a request whose GPUs take their sequences at once, if they do not.

    A sharded model then never has whole gradients.
    """
    if request.micro_batches > 1:
        share = request.micro_batch_size * request.micro_batches
        yield {**options, "--micro-batch-size": str(share)}, _in_batches_of(request, share)


def _in_batches_of(request: Request, size: int) -> Request:
    """Return a request with another micro-batch; the batch stays, unless it follows."""
    values = {"training.micro_batch_size": size}
    if request.batch_follows:
        values["training.batch_size"] = request.gpus * size
    return _set(request, values)


def _on(request: Request, gpus: int) -> Request | None:
    """Return a request on more GPUs, sharded over all, or None if its batch does not divide."""
    size, batch_size = request.micro_batch_size, request.run.training.batch_size
    if request.batch_follows:
        batch_size = gpus * size
    elif batch_size % (gpus * size):
        return None
    values = {"training.batch_size": batch_size, "training.micro_batch_size": size}
    return replace(_set(request, values), gpus=gpus, mode="fsdp2", replicas=None)


def _set(request: Request, values: Mapping[str, bool | int]) -> Request:
    return replace(request, run=assign(request.run, values))

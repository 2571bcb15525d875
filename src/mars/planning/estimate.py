"""The plan itself: memory, communication and times of a request, for one layout."""

from dataclasses import dataclass

from mars.planning.activations import activations_of
from mars.planning.communication import Traffic, Transfer, transfers
from mars.planning.inventory import Inventory, take_inventory
from mars.planning.layout import Layout
from mars.planning.memory import Held, Memory, memory_of
from mars.planning.request import Request
from mars.planning.scratch import scratch_bytes
from mars.planning.timing import Times, model_seconds, moved_seconds, newton_schulz_seconds

# The rest is for the driver's context, communication buffers and what the allocator cannot use.
USABLE_SHARE = 0.92


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a step takes on the GPU that holds the most."""

    layout: Layout
    micro_batch_size: int
    micro_batches: int
    memory: Memory
    transfers: tuple[Transfer, ...]
    times: Times
    needed_bytes: int
    """The memory a GPU must have."""
    fits: bool


def inventory_of(request: Request) -> Inventory:
    """Return the parameters of a request's model under its optimizer."""
    return take_inventory(request.run.model, request.run.optimizer)


def estimate(request: Request, layout: Layout, inventory: Inventory) -> Estimate:
    """Return what a step of a request takes in a layout."""
    run, gpu = request.run, request.gpu
    sent = transfers(
        Traffic(
            inventory=inventory,
            layout=layout,
            precision=run.training.precision,
            micro_batches=request.micro_batches,
            evaluations=request.evaluations,
            gpu=gpu,
        )
    )
    memory = _memory(request, layout, inventory)
    needed = int(memory.peak / USABLE_SHARE)
    return Estimate(
        layout=layout,
        micro_batch_size=request.micro_batch_size,
        micro_batches=request.micro_batches,
        memory=memory,
        transfers=sent,
        times=_times(request, layout, inventory, sent),
        needed_bytes=needed,
        fits=needed <= gpu.memory_bytes,
    )


def _memory(request: Request, layout: Layout, inventory: Inventory) -> Memory:
    run = request.run
    held = Held(
        inventory=inventory,
        layout=layout,
        activations=activations_of(
            run.model, run.training, micro_batch_size=request.micro_batch_size
        ),
        micro_batches=request.micro_batches,
        scratch=scratch_bytes(inventory, run.optimizer, layout),
    )
    return memory_of(held, is_exact=bool(run.optimizer.exact))


def _times(
    request: Request, layout: Layout, inventory: Inventory, sent: tuple[Transfer, ...]
) -> Times:
    run, gpu = request.run, request.gpu
    sequences = request.micro_batch_size * request.micro_batches * request.evaluations
    return Times(
        model=model_seconds(
            inventory,
            tokens=sequences * run.model.context_length,
            precision=run.training.precision,
            is_checkpointed=run.training.activation_checkpointing,
            gpu=gpu,
        ),
        optimizer_memory=moved_seconds(inventory, layout=layout, gpu=gpu),
        newton_schulz=newton_schulz_seconds(inventory, layout=layout, gpu=gpu),
        link=sum(each.seconds for each in sent),
    )

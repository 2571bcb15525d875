"""The memory of one GPU at the moments of a step where it may be largest.

Parameters and state are there all the time. Gradients come as activations go, so the peak is less
than the sum of all: it is looked for at the end of the forward pass, in the backward pass of the
loss, of the head, of every block and of the embedding, and in the optimizer's step.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mars.planning.activations import Activations
from mars.planning.inventory import Entry, Inventory
from mars.planning.layout import Layout

_FLOAT32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on one GPU, that which holds the most.

    ``gradients`` and ``activations`` are those of the moment at which there are most of each.
    """

    parameters: int
    gradients: int
    optimizer_state: int
    activations: int
    gathered: int
    """Layers of a sharded model that are whole at a time."""
    casts: int
    """Autocast's copies of weights in the precision."""
    previous_gradients: int
    """Exact mode: the gradients at the previous point."""
    optimizer_scratch: int
    peak: int
    peak_moment: str
    moments: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What is asked of the memory of a step, in bytes on one GPU."""

    inventory: Inventory
    layout: Layout
    activations: Activations
    micro_batches: int
    scratch: int

    @property
    def is_half(self) -> bool:
        """Whether layers compute in less than float32."""
        return self.activations.compute < _FLOAT32

    def local(self, entries: Iterable[Entry]) -> int:
        """Return the float32 bytes of this GPU's part of some parameters."""
        return sum(_FLOAT32 * self.layout.elements(entry.shape) for entry in entries)

    def share(self, entry: Entry, whole: int) -> int:
        """Return this GPU's part of bytes that belong to all elements of a parameter."""
        return whole * self.layout.elements(entry.shape) // entry.elements

    def cast(self, entries: Iterable[Entry]) -> int:
        """Return the bytes of whole parameters in the precision."""
        return sum(self.activations.compute * entry.elements for entry in entries)

    @property
    def gradients(self) -> int:
        """All gradients, once they are there."""
        if self.accumulates_whole:
            return _whole(self.inventory)
        return self.local(self.inventory)

    @property
    def before(self) -> int:
        """The gradients that are there before the backward pass that is looked at."""
        if not self.keeps_gradients:
            return 0
        # Without communication DDP's gradients are made outside its buckets.
        copies = 2 if self.layout.mode == "ddp" and self.micro_batches > 1 else 1
        return copies * self.gradients

    @property
    def accumulates_whole(self) -> bool:
        """Whether a sharded model keeps whole gradients between its micro-batches."""
        return self.layout.is_sharded and self.micro_batches > 1

    @property
    def keeps_gradients(self) -> bool:
        """Whether gradients are there before the backward pass that is looked at.

        DDP's buckets are never given back, and the last micro-batch finds those of the others.
        """
        return self.layout.mode == "ddp" or self.micro_batches > 1


def memory_of(held: Held, *, is_exact: bool) -> Memory:
    """Return the memory of a step."""
    inventory, acts = held.inventory, held.activations
    parameters = held.local(inventory)
    state = sum(held.share(entry, entry.state_bytes) for entry in inventory)
    visit = sum(held.share(entry, entry.visit_bytes) for entry in inventory)
    # Leaving the previous point, DDP's buckets are put back from copies.
    copies = held.gradients if is_exact and held.layout.mode == "ddp" else 0
    moments = {name: parameters + state + visit + copies + own for name, own in _moments(held)}
    peak_moment = max(moments, key=moments.__getitem__)
    sharded = held.layout.is_sharded
    return Memory(
        parameters=parameters,
        gradients=held.gradients,
        optimizer_state=state,
        activations=acts.total,
        gathered=_gathered(held) if sharded else 0,
        casts=acts.layers * _block_casts(held) + _head_cast(held),
        previous_gradients=visit + copies,
        optimizer_scratch=held.scratch,
        peak=moments[peak_moment],
        peak_moment=peak_moment,
        moments=moments,
    )


def _moments(held: Held) -> Iterator[tuple[str, int]]:
    """Yield the moments of a step with what they hold beside parameters and state."""
    acts, root = held.activations, _root(held)
    before = held.before
    blocks, head_cast = _block_casts(held), _head_cast(held)
    forward = acts.layers * blocks + head_cast
    # Beside them: logits and log-probabilities; then those and two gradients of that size.
    after_forward = acts.kept(acts.layers) + acts.head
    casts = head_cast + (0 if acts.is_checkpointed else acts.layers * blocks)
    yield (
        "forward",
        before + root + after_forward + forward + 2 * acts.log_probabilities,
    )
    yield (
        "loss backward",
        before + root + after_forward + casts + 3 * acts.log_probabilities,
    )
    yield (
        "head backward",
        before + root + acts.kept(acts.layers) + acts.head + casts + _head_backward(held),
    )
    yield "block backward", root + max(_block_moments(held))
    yield "embedding backward", root + _embedding_backward(held)
    yield "optimizer step", held.local(held.inventory) + held.scratch


def _head_backward(held: Held) -> int:
    """Return what the head's linear layer adds: gradients of logits, of its input and weight."""
    acts, weight = held.activations, _whole([_embedding(held)])
    logits = acts.log_probabilities
    if not held.is_half:
        return logits + acts.stream + weight
    half, features = weight // 2, acts.stream // 2
    # The cast of the logits' gradient; the products; the cast of the weight's gradient.
    return max(logits + logits // 2, logits // 2 + features + half, features + half + weight)


def _block_moments(held: Held) -> Iterator[int]:
    """Yield what each block's backward pass holds at its most, the last block first."""
    acts, inventory = held.activations, held.inventory
    tied = _whole([_embedding(held)])  # the head's gradient waits for the embedding's
    block = held.local(inventory.first_block)
    widest = max(entry.elements for entry in inventory.first_block)
    # GELU's gradients before and after, of which one takes the place of what GELU gave; the
    # gradient of the stream and that of the branch; the gradient of one matrix, and its cast.
    own = acts.wide + 2 * acts.stream + widest * (_FLOAT32 + acts.compute * held.is_half)
    for left in range(acts.layers, 0, -1):
        made = held.before if held.keeps_gradients else (acts.layers - left) * block
        activations = acts.kept(left) + (acts.block if acts.is_checkpointed else 0)
        casts = _block_casts(held) * (1 if acts.is_checkpointed else left)
        if held.layout.is_sharded:
            yield (
                made
                + tied
                + max(activations + own + _on_the_way(held), acts.kept(left) + _reduced(held))
            )
        else:
            yield made + tied + activations + casts + own


def _on_the_way(held: Held) -> int:
    """Return what FSDP2 holds of whole blocks at first: this one, the next, the last's gradients.

    Gradients are reduced in float32 while the block after is at work.
    """
    block = held.inventory.first_block
    return 2 * held.cast(block) + _whole(block)


def _reduced(held: Held) -> int:
    """Return what FSDP2 holds at a block's end: two blocks, and gradients before their reduction.

    By then the block's activations are gone, but for the gradient of the stream.
    """
    block = held.inventory.first_block
    return 3 * held.cast(block) + _whole(block) + held.activations.stream


def _embedding_backward(held: Held) -> int:
    """Return what is held where both gradients of the tied embedding meet."""
    weight = _whole([_embedding(held)])
    others = held.before or held.gradients
    if held.layout.is_sharded:
        others += _whole(held.inventory.outside)  # on their way
    elif not held.keeps_gradients:
        others -= weight
    return others + 2 * weight + held.activations.stream


def _whole(entries: Iterable[Entry]) -> int:
    """Return the float32 bytes of whole parameters."""
    return sum(_FLOAT32 * entry.elements for entry in entries)


def _gathered(held: Held) -> int:
    return _root(held) + 2 * held.cast(held.inventory.first_block)


def _root(held: Held) -> int:
    """Return what stays whole, in float32, from forward to backward: all outside the blocks."""
    return _whole(held.inventory.outside) if held.layout.is_sharded else 0


def _block_casts(held: Held) -> int:
    """Return autocast's copies of one block's weights; sharded ones are gathered as such."""
    if held.layout.is_sharded or not held.is_half:
        return 0
    return held.cast(entry for entry in held.inventory.first_block if len(entry.shape) > 1)


def _head_cast(held: Held) -> int:
    """Return autocast's copy of the head's weight: the embedding is gathered in float32."""
    return held.cast([_embedding(held)]) if held.is_half else 0


def _embedding(held: Held) -> Entry:
    return next(entry for entry in held.inventory if entry.name == "wte.weight")

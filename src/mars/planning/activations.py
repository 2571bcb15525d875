"""What a forward pass keeps for the backward pass, counted from `mars.models.gpt2`.

In units of one number for each token and feature, a block keeps

    the residual stream before each norm        2, float32
    what each norm gives to its linear layers   2
    queries, keys and values                    3
    what attention returns                      1
    the wide layer before and after GELU        8

sixteen in all; those without a dtype are of the precision, because linear layers keep their inputs
as autocast has cast them. Attention keeps its log-sums (a float32 a head and token) but no matrix
of weights, a norm two float32 a token. The loss keeps the log-probabilities, always float32.
"""

from dataclasses import dataclass

from mars.config.schema import Model, Training

_FLOAT32, _HALF, _INT64 = 4, 2, 8
_STREAMS, _PRODUCTS = 2, 14
_NORM_STATISTICS = 2
_MASK = 1  # a byte for each number that dropout looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """Bytes of one micro-batch; what is needed once is not in ``block``."""

    compute: int
    """Bytes a number of the precision."""
    stream: int
    """The residual stream at one place."""
    block: int
    """What one block keeps, its input included."""
    wide: int
    """The wide layer of one block, in the precision."""
    head: int
    """What the last norm and the head keep, and the tokens."""
    log_probabilities: int
    layers: int
    is_checkpointed: bool

    def kept(self, blocks: int) -> int:
        """Return what so many blocks keep until their backward pass."""
        return blocks * (self.stream if self.is_checkpointed else self.block)

    @property
    def total(self) -> int:
        """All that is kept at the end of the forward pass."""
        return self.kept(self.layers) + self.head + self.log_probabilities


def compute_bytes(precision: str) -> int:
    """Return the bytes of a number that linear layers and attention work on."""
    return _FLOAT32 if precision == "float32" else _HALF


def activations_of(model: Model, training: Training, *, micro_batch_size: int) -> Activations:
    """Return what a micro-batch of full sequences keeps."""
    tokens = micro_batch_size * model.context_length
    features = tokens * model.width
    compute = compute_bytes(training.precision)
    statistics = _FLOAT32 * _NORM_STATISTICS * tokens
    masks = _MASK * features if model.dropout else 0
    block = (
        (_STREAMS * _FLOAT32 + _PRODUCTS * compute) * features
        + _FLOAT32 * model.heads * tokens
        + 2 * (statistics + masks)
    )
    head = (_FLOAT32 + compute) * features + statistics + masks + 2 * _INT64 * tokens
    return Activations(
        compute=compute,
        stream=_FLOAT32 * features,
        block=block,
        wide=4 * compute * features,
        head=head,
        log_probabilities=_FLOAT32 * tokens * model.vocab_size,
        layers=model.layers,
        is_checkpointed=training.activation_checkpointing,
    )

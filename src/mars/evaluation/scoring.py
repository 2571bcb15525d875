"""Log-likelihoods of continuations: sorted, padded little, and the head only where it is asked."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mars.models.gpt2 import GPT2
from mars.training.step import autocast
from mars.training.world import World

Advance = Callable[[int, int], None]
"""Hears how much is done, of how much."""

# Logits held at a time. On a CPU so few that the allocator keeps their memory: larger blocks are
# given back to the system and faulted in again, which takes longer than the sums over them.
_CPU_LOGITS = 6 << 20
_GPU_LOGITS = 1 << 28


def unheard(done: int, total: int) -> None:
    """Take note of progress for nobody."""


class Pair(NamedTuple):
    """Tokens to read, and tokens whose likelihood after them is asked; neither is empty."""

    context: Sequence[int]
    continuation: Sequence[int]


class Score(NamedTuple):
    """The log-likelihood of a continuation, and whether each of its tokens is the likeliest."""

    log_likelihood: float
    is_greedy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """How a model is called: where, how precisely, how many sequences at a time, with whom."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: str = "float32"
    batch_size: int = 16
    world: World = field(default_factory=World)

    def sum_(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the CPU, replaced by its sum over all processes."""
        if self.world.size > 1:
            torch.distributed.all_reduce(tensor)
        return tensor


@dataclass(frozen=True, slots=True)
class _Row:
    """A sequence to read once, and the targets at its end that each pair asks for."""

    tokens: tuple[int, ...]
    asked: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)


@torch.no_grad()
def score(
    model: GPT2, pairs: Sequence[Pair], *, compute: Compute, advance: Advance = unheard
) -> list[Score]:
    """Return the score of each pair, in order; ``advance`` hears of sequences read.

    What does not fit the context is cut off from the left. Every process of a world calls it with
    all pairs and gets all scores; each computes every so many batches, the same as one alone does.
    """
    rows = _rows(pairs, context_length=model.config.context_length)
    batches = [
        rows[first : first + compute.batch_size]
        for first in range(0, len(rows), compute.batch_size)
    ]
    done = 0
    found = torch.zeros(2, len(pairs), dtype=torch.float64)
    with autocast(compute.device, precision=compute.precision):
        for number, batch in enumerate(batches):
            if number % compute.world.size == compute.world.rank:
                _score_(found, model, batch, device=compute.device)
            done += len(batch)
            advance(done, len(rows))
    totals, hits = compute.sum_(found).tolist()
    return [
        Score(total, int(hit) == len(pair.continuation))
        for total, hit, pair in zip(totals, hits, pairs, strict=True)
    ]


def token_scores(features: Tensor, targets: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each target and whether it is the likeliest token.

    ``features`` is (positions, width). In float32, as a loss is: half precision cannot sum over a
    vocabulary.
    """
    budget = _CPU_LOGITS if features.device.type == "cpu" else _GPU_LOGITS
    rows = max(1, budget // len(head))
    parts = []
    for some, wanted in zip(torch.split(features, rows), torch.split(targets, rows), strict=True):
        # By the operation that lm_eval's own model uses: another sum over the vocabulary would
        # differ from it by 1e-5 a token.
        every = F.log_softmax(F.linear(some, head).float(), dim=1)
        parts.append((every.gather(1, wanted[:, None])[:, 0], every.argmax(1) == wanted))
    log_probabilities, is_likeliest = zip(*parts, strict=True)
    return torch.cat(log_probabilities), torch.cat(is_likeliest)


def _score_(found: Tensor, model: GPT2, batch: Sequence[_Row], *, device: torch.device) -> None:
    """Add a batch's log-likelihoods and hits to those of the pairs that ask for them."""
    longest = max(len(row.tokens) for row in batch)
    tokens = torch.zeros(len(batch), longest, dtype=torch.int64)
    positions: list[int] = []
    targets: list[int] = []
    owners: list[int] = []
    lengths: list[int] = []
    for number, row in enumerate(batch):
        # Padding comes last: a causal model does not see it from any position that counts.
        tokens[number, : len(row.tokens)] = torch.tensor(row.tokens)
        end = number * longest + len(row.tokens)
        for pair, wanted in row.asked:
            positions += range(end - len(wanted), end)
            targets += wanted
            owners.append(pair)
            lengths.append(len(wanted))
    features = model.features(tokens.to(device)).flatten(0, 1)
    log_probabilities, is_likeliest = token_scores(
        features[torch.tensor(positions, device=device)],
        torch.tensor(targets, device=device),
        model.wte.weight,
    )
    # Each answer is summed in float32, as lm_eval's own model does: at -1000 its numbers lie 6e-5
    # apart, and a better sum would be another number.
    scores = torch.stack(
        [
            torch.stack([answer.sum() for answer in torch.split(each.cpu(), lengths)]).double()
            for each in (log_probabilities, is_likeliest)
        ]
    )
    found.index_add_(1, torch.tensor(owners), scores)


def _rows(pairs: Sequence[Pair], *, context_length: int) -> list[_Row]:
    """Return what has to be read, the longest first; what several pairs read, once.

    Answers of one token each read the same question: four choices cost one.
    """
    rows: dict[tuple[int, ...], _Row] = {}
    for number, pair in enumerate(pairs):
        for tokens, targets in _windows(pair, context_length=context_length):
            rows.setdefault(tokens, _Row(tokens)).asked.append((number, targets))
    return sorted(rows.values(), key=lambda row: (-len(row.tokens), row.tokens))


def _windows(
    pair: Pair, *, context_length: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield inputs, and the targets of their last positions, that cover a continuation.

    A continuation that is itself longer than the context is read in several parts.
    """
    tokens = (*pair.context, *pair.continuation)
    start = len(pair.context)
    while start < len(tokens):
        end = min(start + context_length, len(tokens))
        yield tokens[max(0, end - 1 - context_length) : end - 1], tokens[start:end]
        start = end

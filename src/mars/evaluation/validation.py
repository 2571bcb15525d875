"""Validation loss on any prepared corpus: the same tokens for every model that is asked."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from mars.config.errors import RefusedError
from mars.data.corpus import Corpus
from mars.data.sampler import validation_windows
from mars.data.tokenizers import Tokenizer
from mars.evaluation.scoring import Advance, Compute, token_scores, unheard
from mars.evaluation.subject import Subject
from mars.evaluation.tokenizer_files import gpt2_tokens
from mars.training.step import autocast


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationResult:
    """What a model loses on tokens of a corpus; equal digests, tokens and contexts compare."""

    corpus: str
    digest: str
    tokens: int
    """How many were predicted."""
    bytes: int
    """How many bytes of text they spell; ends of text spell none."""
    context_length: int
    loss: float
    """Mean over the tokens, in nats."""
    perplexity: float
    bits_per_byte: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How many tokens of a corpus to predict, in windows of how many; the model's by default."""

    tokens: int
    context_length: int | None = None


def check_corpus(subject: Subject, corpus: Corpus, extent: Extent) -> int:
    """Return the length of the windows; refuse a corpus that the model cannot read."""
    named, own = corpus.manifest.tokenizer, subject.tokenizer.name
    if named != own:
        raise RefusedError(
            f"{corpus.path} has the tokens of {named}, {subject.source} reads those of {own}; "
            "prepare the text with its tokenizer"
        )
    longest = subject.model.config.context_length
    length = extent.context_length or longest
    if not 1 <= length <= longest:
        raise RefusedError(
            f"--context-length must lie between 1 and the model's {longest}, got {length}"
        )
    if extent.tokens < length:
        raise RefusedError(
            f"--tokens {extent.tokens} is less than one window of {length}; ask for more"
        )
    return length


@torch.no_grad()
def validate(
    subject: Subject,
    corpus: Corpus,
    extent: Extent,
    *,
    compute: Compute,
    advance: Advance = unheard,
) -> ValidationResult:
    """Return the loss on windows that lie evenly over the validation split, as in training.

    Windows are divided over the processes of a world, and all of them get the result.
    """
    length = check_corpus(subject, corpus, extent)
    sizes = _token_bytes(subject.tokenizer)
    batches = validation_windows(
        corpus.validation,
        context_length=length,
        count=extent.tokens // length,
        micro_batch_size=compute.batch_size,
    )
    total = min(extent.tokens, len(corpus.validation) - 1) // length
    done = 0
    sums = torch.zeros(3, dtype=torch.float64)  # nats, tokens, bytes
    model, device = subject.model, compute.device
    with autocast(device, precision=compute.precision):
        for number, (inputs, targets) in enumerate(batches):
            if number % compute.world.size == compute.world.rank:
                features = model.features(inputs.to(device)).flatten(0, 1)
                wanted = targets.flatten()
                scores, _ = token_scores(features, wanted.to(device), model.wte.weight)
                nats = -float(scores.cpu().double().sum())
                sums += torch.tensor([nats, len(wanted), sizes[wanted.numpy()].sum()])
            done += len(inputs)
            advance(done, total)
    nats, tokens, spelt = compute.sum_(sums).tolist()
    return ValidationResult(
        corpus=str(corpus.path),
        digest=corpus.digest,
        tokens=int(tokens),
        bytes=int(spelt),
        context_length=length,
        loss=nats / tokens,
        perplexity=math.exp(min(nats / tokens, 700)),
        bits_per_byte=nats / math.log(2) / max(1, spelt),
    )


def _token_bytes(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Return how many bytes each token spells; the end of text spells none."""
    spelt = [1] * tokenizer.eot if tokenizer.name == "bytes" else []
    if not spelt:
        spelt = [len(token) for token in gpt2_tokens(tokenizer)]
    return np.array([*spelt, 0], dtype=np.int64)

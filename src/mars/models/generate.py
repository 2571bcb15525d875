"""Text from a model: autoregressive sampling, one token at a time.

Every token reads the whole context again: for looking at what a run has learned, not for serving.
"""

from collections.abc import Collection, Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mars.config.errors import RefusedError
from mars.models.gpt2 import GPT2


def generate(
    model: GPT2,
    tokens: Tensor,
    *,
    count: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
    stop_token: int | None = None,
    ban: Collection[int] = (),
) -> Tensor:
    """Return the prompt followed by up to ``count`` sampled tokens; see `stream`."""
    sampled = stream(
        model,
        tokens,
        count=count,
        temperature=temperature,
        top_k=top_k,
        generator=generator,
        stop_token=stop_token,
        ban=ban,
    )
    return torch.cat([tokens, tokens.new_tensor(list(sampled))])


def stream(
    model: GPT2,
    tokens: Tensor,
    *,
    count: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
    stop_token: int | None = None,
    ban: Collection[int] = (),
) -> Iterator[int]:
    """Yield up to ``count`` tokens that continue a prompt, each as soon as it is known.

    Dropout is off while a token is computed, and the model is left as it was between tokens.

    Args:
        model: what gives the logits; it sees the last ``context_length`` tokens.
        tokens: the prompt, one-dimensional and not empty.
        count: the most tokens to sample.
        temperature: what logits are divided by; 0 always takes the likeliest token.
        top_k: sample from so many of the likeliest tokens; None is from all.
        generator: the source of randomness, wherever the model is; None is torch's own.
        stop_token: ends the text; it is not yielded.
        ban: tokens never sampled, such as the rows that pad an embedding.
    """
    vocab_size = model.config.vocab_size
    _check_prompt(tokens, vocab_size=vocab_size)
    _check_options(count=count, temperature=temperature, top_k=top_k)
    banned = _checked_ban(ban, vocab_size=vocab_size)

    # A generator of its own, so that the checks above run now and not at the first token.
    def sample(context: Tensor) -> Iterator[int]:
        for _ in range(count):
            logits = _next_logits(model, context[-model.config.context_length :])
            logits[banned] = -torch.inf
            token = _pick(logits, temperature=temperature, top_k=top_k, generator=generator)
            if token == stop_token:
                return
            yield token
            context = torch.cat([context, context.new_tensor([token])])

    return sample(tokens)


def _check_prompt(tokens: Tensor, *, vocab_size: int) -> None:
    if tokens.ndim != 1 or len(tokens) == 0:
        raise RefusedError(
            f"a prompt is one sequence of at least one token, got shape {tuple(tokens.shape)}"
        )
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocab_size:
        raise RefusedError(
            f"the prompt holds tokens from {low} to {high}, the model those from 0 to "
            f"{vocab_size - 1}; encode it with the tokenizer of the run"
        )


def _check_options(*, count: int, temperature: float, top_k: int | None) -> None:
    if count < 0:
        raise RefusedError(f"count must not be negative, got {count}")
    if not 0 <= temperature < float("inf"):
        raise RefusedError(f"temperature must be finite and at least 0, got {temperature}")
    if top_k is not None and top_k < 1:
        raise RefusedError(f"top_k must be at least 1, got {top_k}; leave it out for all tokens")


def _checked_ban(ban: Collection[int], *, vocab_size: int) -> list[int]:
    banned = sorted(set(ban))
    if banned and not 0 <= banned[0] <= banned[-1] < vocab_size:
        raise RefusedError(
            f"ban must hold tokens from 0 to {vocab_size - 1}, got {banned[0]} to {banned[-1]}"
        )
    if len(banned) == vocab_size:
        raise RefusedError("ban holds every token of the model; leave at least one")
    return banned


# Gradients and dropout are switched off here and not around the loop: a suspended iterator would
# leave them off for whoever consumes it.
@torch.no_grad()
def _next_logits(model: GPT2, context: Tensor) -> Tensor:
    """Return the float32 logits after ``context``, on the CPU."""
    was_training = model.training
    model.train(False)
    try:
        last = model.features(context[None])[0, -1]
    finally:
        model.train(was_training)
    logits = F.linear(last, model.wte.weight).float().cpu()
    if not logits.isfinite().all():
        raise RefusedError("the logits of the model are not finite; choose an earlier checkpoint")
    return logits


def _pick(
    logits: Tensor, *, temperature: float, top_k: int | None, generator: torch.Generator | None
) -> int:
    if temperature == 0:
        return int(logits.argmax())
    if top_k is not None and top_k < len(logits):
        values, kept = logits.topk(top_k)
        logits = torch.full_like(logits, -torch.inf).scatter_(0, kept, values)
    # Less the largest first: dividing by a tiny temperature then gives no infinity but minus.
    probabilities = torch.softmax((logits - logits.max()) / temperature, dim=0)
    if generator is not None:
        probabilities = probabilities.to(generator.device)
    return int(torch.multinomial(probabilities, 1, generator=generator))

"""``mars sample``: text from a trained model."""

from collections.abc import Iterator

import torch
from rich.console import Console

from mars.commands.options import SampleOptions
from mars.config.errors import RefusedError
from mars.data.tokenizers import Tokenizer
from mars.evaluation.subject import open_run
from mars.metrics.display import printable
from mars.models.generate import stream
from mars.training.run_directory import RunDirectory


def sample(options: SampleOptions, console: Console) -> None:
    """Print the prompt and what the model adds, token by token."""
    if not RunDirectory(options.run).exists:
        raise RefusedError(f"{options.run} is not a run directory: it has no run.toml")
    subject = open_run(str(options.run), step=options.step, what="mars sample")
    model, tokenizer = subject.model, subject.tokenizer
    prompt = torch.from_numpy(tokenizer.encode(options.prompt or "\n").astype("int64"))
    sampled = stream(
        model,
        prompt,
        count=options.tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        generator=torch.Generator().manual_seed(options.seed),
        stop_token=tokenizer.eot,
        ban=range(tokenizer.vocab_size, model.config.vocab_size),
    )
    _write(console, options.prompt)
    _stream_text(sampled, tokenizer, console)
    _write(console, "\n")


def _stream_text(tokens: Iterator[int], tokenizer: Tokenizer, console: Console) -> None:
    """Print tokens as they come, holding back the first bytes of a character."""
    ids: list[int] = []
    shown = 0
    for token in tokens:
        ids.append(token)
        text = tokenizer.decode(ids).removesuffix("\N{REPLACEMENT CHARACTER}")
        _write(console, text[shown:])
        shown = max(shown, len(text))


def _write(console: Console, text: str) -> None:
    """Print text as it is, without what a terminal would obey."""
    console.out(printable(text, encoding=console.encoding), end="", highlight=False)

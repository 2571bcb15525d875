"""``mars sample``: text from a trained model."""

from collections.abc import Iterator

import torch
from rich.console import Console

from mars import checkpoint
from mars.checkpoint.folder import step_path
from mars.commands.options import SampleOptions
from mars.config.errors import RefusedError
from mars.config.load import load_file
from mars.config.vision import require_text
from mars.data.tokenizers import Tokenizer, make_tokenizer
from mars.metrics.display import printable
from mars.models.generate import stream
from mars.models.gpt2 import GPT2
from mars.training.run_directory import RunDirectory


def sample(options: SampleOptions, console: Console) -> None:
    """Print the prompt and what the model adds, token by token."""
    directory = RunDirectory(options.run)
    if not directory.exists:
        raise RefusedError(f"{options.run} is not a run directory: it has no run.toml")
    config = load_file(directory.config)
    require_text(config, what="mars sample")
    loaded = _checkpoint(directory, options.step)
    model = GPT2(config.model)
    model.load_state_dict(loaded.model)
    tokenizer = run_tokenizer(directory)
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


def run_tokenizer(directory: RunDirectory) -> Tokenizer:
    """Return the tokenizer of a run, from its directory alone."""
    name = directory.read_manifest()["tokenizer"]
    has_files = directory.tokenizer.is_dir() and any(directory.tokenizer.iterdir())
    return make_tokenizer(name, bpe=directory.tokenizer if has_files else None)


def _checkpoint(directory: RunDirectory, step: int | None) -> checkpoint.Loaded:
    if step is not None:
        return checkpoint.load(step_path(directory.checkpoints, step=step))
    loaded = checkpoint.load_newest(directory.checkpoints)
    if loaded is None:
        raise RefusedError(f"{directory.path} has no checkpoint yet; train on with --resume")
    return loaded


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

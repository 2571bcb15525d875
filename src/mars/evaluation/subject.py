"""What is evaluated: a run, a Hugging Face folder, or OpenAI's GPT-2 by its name."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mars import checkpoint
from mars.checkpoint.folder import step_path
from mars.config.errors import RefusedError
from mars.config.load import load_file
from mars.config.vision import require_text
from mars.data.tokenizers import Tokenizer, make_tokenizer
from mars.evaluation.hub import fetch
from mars.evaluation.source import Kind, check_source
from mars.evaluation.tokenizer_files import VOCABULARY, read_vocabulary
from mars.models.gpt2 import GPT2
from mars.models.huggingface import load_huggingface
from mars.training.run_directory import RunDirectory

Tell = Callable[[str], None]

PROVENANCE = "mars.json"
"""What an exported folder says of itself to this program: run, step, tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model in evaluation mode with its tokenizer; ``step`` is known of runs."""

    source: str
    kind: Kind
    model: GPT2
    tokenizer: Tokenizer
    step: int | None = None


def open_subject(source: str, *, step: int | None = None, tell: Tell = lambda _: None) -> Subject:
    """Return the model of a source; ``step`` chooses a checkpoint of a run, else the newest.

    In a process group every process calls it.
    """
    kind = check_source(source, step=step)
    if kind == "run":
        return open_run(source, step=step, what="evaluation", tell=tell)
    folder = Path(source) if kind == "folder" else fetch(source)
    tokenizer = _folder_tokenizer(folder)
    return Subject(source=source, kind=kind, model=load_huggingface(folder), tokenizer=tokenizer)


def open_run(source: str, *, step: int | None, what: str, tell: Tell = lambda _: None) -> Subject:
    """Return the model of a run, for ``what``; ``tell`` hears of checkpoints that are not good."""
    directory = RunDirectory(Path(source))
    config = load_file(directory.config)
    require_text(config, what=what)
    tokenizer = _run_tokenizer(directory)
    if step is not None:
        loaded = checkpoint.load(step_path(directory.checkpoints, step=step), model_only=True)
    elif newest := checkpoint.load_newest(directory.checkpoints, model_only=True):
        loaded = newest
    else:
        raise RefusedError(f"{source} has no checkpoint yet; train on with --resume")
    for complaint in loaded.rejected:
        tell(complaint)
    model = GPT2(config.model)
    model.load_state_dict(loaded.model)
    return Subject(
        source=source,
        kind="run",
        model=model.train(False),
        tokenizer=tokenizer,
        step=loaded.step,
    )


def _run_tokenizer(directory: RunDirectory) -> Tokenizer:
    name = directory.read_manifest()["tokenizer"]
    has_files = directory.tokenizer.is_dir() and any(directory.tokenizer.iterdir())
    return make_tokenizer(name, bpe=directory.tokenizer if has_files else None)


def _folder_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of a Hugging Face folder: GPT-2's, or bytes as its export says."""
    if (folder / VOCABULARY).is_file():
        return read_vocabulary(folder / VOCABULARY)
    path = folder / PROVENANCE
    try:
        named = json.loads(path.read_text())["tokenizer"] if path.is_file() else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RefusedError(f"{path} is damaged; export the run again") from error
    if named != "bytes":
        raise RefusedError(f"{folder} has no {VOCABULARY}; add GPT-2's, or export the run again")
    return make_tokenizer("bytes")

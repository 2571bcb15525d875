"""OpenAI's GPT-2 weights by name: from the hub's cache on this machine, else from the hub."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mars.config.errors import RefusedError

HUB_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")

_OWNER = "openai-community"
# Nothing that could hold code: weights as safetensors, and JSON.
_FILES = ("config.json", "vocab.json", "model.safetensors")


def fetch(name: str) -> Path:
    """Return the folder with the files of one of OpenAI's models, fetched if they are not here."""
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ModuleNotFoundError as error:
        raise RefusedError(
            f"{name} needs the extra 'eval': pip install 'mars-optimizer[eval]'"
        ) from error
    repository = f"{_OWNER}/{name}"
    try:
        with _hushed():
            try:
                paths = [
                    hf_hub_download(repository, file, local_files_only=True) for file in _FILES
                ]
            except LocalEntryNotFoundError:
                paths = [hf_hub_download(repository, file) for file in _FILES]
    except OSError as error:
        raise RefusedError(
            f"{name} is neither in the hub's cache nor can it be fetched "
            f"({type(error).__name__}); name a local folder with {', '.join(_FILES)}"
        ) from error
    return Path(paths[0]).parent


@contextmanager
def _hushed() -> Iterator[None]:
    """Keep the hub's retries from the screen: a failure is told once, in one line."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)

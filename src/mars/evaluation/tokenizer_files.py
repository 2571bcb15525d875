"""GPT-2's tokenizer in the form of Hugging Face folders: written, and read again.

They spell bytes by printable characters, so that a token is text: printable bytes by themselves,
the others by the characters from 256 on, in order.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from mars.config.errors import RefusedError
from mars.data.tokenizers import END_OF_TEXT, GPT2_FILE, Gpt2Tokenizer, Tokenizer

VOCABULARY = "vocab.json"

_PRINTABLE = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_LETTERS = {byte: chr(byte) for byte in _PRINTABLE} | {
    byte: chr(256 + place) for place, byte in enumerate(_OTHERS)
}
_BYTES = {letter: byte for byte, letter in _LETTERS.items()}


def huggingface_files(tokenizer: Tokenizer, *, context_length: int) -> dict[str, bytes]:
    """Return the files, by name, from which transformers makes a tokenizer of GPT-2's tokens."""
    tokens = gpt2_tokens(tokenizer)
    vocabulary = {_spelt(token): rank for rank, token in enumerate(tokens)}
    ranks = {token: rank for rank, token in enumerate(tokens)}
    merges = [" ".join(map(_spelt, _merged(token, ranks))) for token in tokens if len(token) > 1]
    config = {
        "tokenizer_class": "GPT2Tokenizer",
        "model_max_length": context_length,
        "add_prefix_space": False,
        **dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT),
    }
    return {
        VOCABULARY: json.dumps(vocabulary | {END_OF_TEXT: tokenizer.eot}).encode(),
        "merges.txt": "\n".join(["#version: 0.2", *merges, ""]).encode(),
        "tokenizer_config.json": json.dumps(config, indent=2).encode() + b"\n",
    }


def gpt2_tokens(tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes of each of GPT-2's tokens but the end of text, by rank."""
    lines = tokenizer.files()[GPT2_FILE].splitlines()
    return [base64.b64decode(line.split()[0]) for line in lines]


def read_vocabulary(path: Path) -> Gpt2Tokenizer:
    """Return GPT-2's tokenizer from a ``vocab.json``, or refuse one that is not GPT-2's."""
    try:
        ranks = json.loads(path.read_text(encoding="utf-8"))
        words = sorted(ranks, key=ranks.__getitem__)
        tokens = [bytes(_BYTES[letter] for letter in word) for word in words if word != END_OF_TEXT]
        return Gpt2Tokenizer(tokens)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RefusedError(
            f"{path} does not hold GPT-2's tokens ({type(error).__name__}); "
            "only GPT-2's tokenizer is supported"
        ) from error


def _spelt(token: bytes) -> str:
    return "".join(_LETTERS[byte] for byte in token)


def _merged(token: bytes, ranks: Mapping[bytes, int]) -> Sequence[bytes]:
    """Return the two tokens whose merge makes a token: where merging its bytes stops before it."""
    parts = [token[place : place + 1] for place in range(len(token))]
    while len(parts) > 2:
        joined = [first + second for first, second in pairwise(parts)]
        place = min(range(len(joined)), key=lambda each: ranks.get(joined[each], len(ranks)))
        parts[place : place + 2] = [joined[place]]
    return parts

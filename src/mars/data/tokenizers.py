"""Text to token ids and back, offline: "bytes", and "gpt2" through tiktoken.

A tokenizer never emits its end-of-text id for text, even text that spells it: that id only ends
documents, and whoever writes them adds it.
"""

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mars.config.errors import RefusedError

TokenizerName = Literal["bytes", "gpt2"]
Ids = NDArray[np.unsignedinteger[Any]]  # of 16 or 32 bits, as the vocabulary needs

END_OF_TEXT = "<|endoftext|>"
GPT2_FILE = "gpt2.tiktoken"

# Of GPT-2's tokens as tiktoken writes them: a base64 token and its rank a line, in rank order.
_GPT2_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
# GPT-2's pattern in the equivalent form with possessive quantifiers, which do not backtrack.
_GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_BLANKS = re.compile(r"[^\S\x1c-\x1f]++")  # the \s of that pattern: Python's has four more
_LONG_RUN = 1 << 16


class Tokenizer(Protocol):
    """What turns text into ids below ``vocab_size`` and back."""

    @property
    def name(self) -> str:
        """What it is called in a manifest."""

    @property
    def vocab_size(self) -> int:
        """How many ids there are, the end of text included."""

    @property
    def eot(self) -> int:
        """The id that ends a document."""

    @property
    def bytes_per_token(self) -> int:
        """How many bytes of ordinary text a token spells, at least; for estimates."""

    def encode(self, text: bytes | str) -> Ids:
        """Return the ids of a text; `UnicodeDecodeError` for bytes that cannot be encoded."""

    def decode(self, ids: ArrayLike) -> str:
        """Return the text of ids, ends of text spelt out, broken characters replaced."""

    def files(self) -> Mapping[str, bytes]:
        """Return the files, by name, from which `make_tokenizer` makes it again."""


class ByteTokenizer:
    """The bytes of a text as they are."""

    name = "bytes"
    vocab_size = 257
    eot = 256
    bytes_per_token = 1

    def encode(self, text: bytes | str) -> Ids:
        """Return the bytes of a text."""
        return np.frombuffer(_utf8(text), dtype=np.uint8).astype(np.uint16)

    def decode(self, ids: ArrayLike) -> str:
        """Return the text of ids, ends of text spelt out, broken characters replaced."""
        end_of_text = END_OF_TEXT.encode()
        spelt = (
            end_of_text if token == self.eot else bytes([token])
            for token in _checked(ids, self.vocab_size).tolist()
        )
        return b"".join(spelt).decode(errors="replace")

    def files(self) -> Mapping[str, bytes]:
        """Return nothing: bytes need no file."""
        return {}


class Gpt2Tokenizer:
    """GPT-2's byte pair encoding."""

    name = "gpt2"
    vocab_size = 50257
    eot = 50256
    bytes_per_token = 3

    def __init__(self, tokens: Sequence[bytes]) -> None:
        import tiktoken

        self._file = b"".join(
            base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)
        )
        if hashlib.sha256(self._file).hexdigest() != _GPT2_SHA256:
            raise ValueError(f"these {len(tokens)} tokens are not GPT-2's")
        self._encoding = tiktoken.Encoding(
            self.name,
            pat_str=_GPT2_PATTERN,
            mergeable_ranks={token: rank for rank, token in enumerate(tokens)},
            special_tokens={END_OF_TEXT: self.eot},
        )

    def encode(self, text: bytes | str) -> Ids:
        """Return the ids of a text; `UnicodeDecodeError` for bytes that are not UTF-8."""
        string = _utf8(text).decode()
        try:
            return self._encode(string)
        except ValueError:  # blanks in such a number that the pattern's one backtrack fails
            return np.concatenate([self._encode(part) for part in _cut_long_blanks(string)])

    def _encode(self, text: str) -> Ids:
        return self._encoding.encode_to_numpy(text, disallowed_special=()).astype(np.uint16)

    def decode(self, ids: ArrayLike) -> str:
        """Return the text of ids, ends of text spelt out, broken characters replaced."""
        return self._encoding.decode(_checked(ids, self.vocab_size).tolist())

    def files(self) -> Mapping[str, bytes]:
        """Return the tokens in tiktoken's format."""
        return {GPT2_FILE: self._file}


def make_tokenizer(name: str, *, bpe: Path | None = None) -> Tokenizer:
    """Return a tokenizer by name, GPT-2's from ``bpe`` or else from tiktoken's cache.

    Args:
        name: "bytes" or "gpt2".
        bpe: a ``gpt2.tiktoken`` or ``vocab.bpe`` file, or a folder that holds one of them.
    """
    if name == "gpt2":
        return Gpt2Tokenizer(_cached_tokens()) if bpe is None else _gpt2_from(bpe)
    if name != "bytes":
        known = " or ".join(get_args(TokenizerName))
        raise RefusedError(f"there is no tokenizer {name!r}; it is {known}")
    if bpe is not None:
        raise RefusedError(f"the tokenizer bytes has no use for {bpe}; leave it out, or take gpt2")
    return ByteTokenizer()


def _utf8(text: bytes | str) -> bytes:
    if isinstance(text, bytes):
        return text
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise RefusedError(
            f"character {error.start} of the text is half of a surrogate pair; remove it"
        ) from None


def _checked(ids: ArrayLike, vocab_size: int) -> NDArray[np.int64]:
    checked = np.asarray(ids, dtype=np.int64).reshape(-1)
    outside = checked[(checked < 0) | (checked >= vocab_size)]
    if outside.size:
        raise RefusedError(f"{outside[0]} is not a token; the vocabulary ends at {vocab_size - 1}")
    return checked


def _cut_long_blanks(text: str) -> Iterator[str]:
    """Yield parts of a text that have together the tokens of the whole.

    GPT-2's pattern takes a run of blanks but for the last one, which goes to the word that
    follows. A part that ends before that last blank ends with the same run, taken as a whole.
    """
    start = 0
    for run in _BLANKS.finditer(text):
        if len(run[0]) > _LONG_RUN and run.end() < len(text):
            yield text[start : run.end() - 1]
            start = run.end() - 1
    yield text[start:]


def _cached_tokens() -> list[bytes]:
    import tiktoken

    try:
        encoding = tiktoken.get_encoding("gpt2")
    except (OSError, ValueError) as error:
        raise RefusedError(
            "GPT-2's BPE is neither in tiktoken's cache nor can it be fetched "
            f"({type(error).__name__}); name a gpt2.tiktoken or vocab.bpe file with --bpe, "
            "or set TIKTOKEN_CACHE_DIR to a folder that tiktoken filled"
        ) from None
    return [encoding.decode_single_token_bytes(rank) for rank in range(encoding.eot_token)]


def _gpt2_from(bpe: Path) -> Gpt2Tokenizer:
    paths = [bpe / GPT2_FILE, bpe / "vocab.bpe"] if bpe.is_dir() else [bpe]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise RefusedError(f"there is no {GPT2_FILE} or vocab.bpe at {bpe}; name where one is")
    try:
        content = path.read_text()
        from_merges = path.name == "vocab.bpe"
        return Gpt2Tokenizer(_merged(content) if from_merges else _ranked(content))
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise RefusedError(
            f"{path} does not hold GPT-2's BPE ({error}); name an intact {GPT2_FILE} or vocab.bpe"
        ) from None


def _ranked(content: str) -> list[bytes]:
    """Return the tokens of a file in tiktoken's format, in its order."""
    return [base64.b64decode(line.split()[0]) for line in content.splitlines()]


def _merged(content: str) -> list[bytes]:
    """Return the tokens of a ``vocab.bpe``: the 256 bytes, then what each merge makes.

    The file spells bytes by printable characters: those that are printable by themselves, the
    others by the characters from 256 on, in order.
    """
    printable = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable}
    byte_of |= {chr(256 + place): byte for place, byte in enumerate(others)}
    merges = content.splitlines()[1:]
    return [bytes([byte]) for byte in printable + others] + [
        bytes(byte_of[character] for character in merge.replace(" ", "")) for merge in merges
    ]

"""Making corpora: the standard library's source, and text files of one's own."""

import os
import platform
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mars.config.errors import RefusedError
from mars.data.corpus import Corpus
from mars.data.documents import Document, Documents, Survey, chosen_files
from mars.data.manifest import SPLITS, Split
from mars.data.shards import SHARD_TOKENS
from mars.data.target import check_target
from mars.data.tokenizers import Ids, Tokenizer, TokenizerName, make_tokenizer
from mars.data.writer import existing_corpus, write_corpus

Tell = Callable[[str], None]

_TEXT_FRACTION = 0.01
_STDLIB_FRACTION = 0.05  # of some 700 files: enough that no single one rules the loss
_NOT_STDLIB = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_SECONDS_BETWEEN_NEWS = 5.0


def prepare_stdlib(out: str | Path, *, tell: Tell) -> Corpus:
    """Return the source of Python's standard library, without its tests, as bytes."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = _stdlib_files(root)
    readable = [path for path in files if os.access(path, os.R_OK)]
    if not readable:
        raise RefusedError(
            f"{root} holds no source of the standard library; use a Python that has it, or "
            "prepare text of your own"
        )
    return _prepare(
        Documents([(path, None) for path in readable], _STDLIB_FRACTION),
        Path(out),
        tokenizer=make_tokenizer("bytes"),
        source={"kind": "stdlib", "python": platform.python_version()},
        skipped={"unreadable_files": len(files) - len(readable)},
        tell=tell,
    )


def prepare_text(
    inputs: Sequence[Path],
    out: str | Path,
    *,
    tokenizer: TokenizerName,
    validation: Sequence[Path] = (),
    bpe: Path | None = None,
    separator: str | None = None,
    validation_fraction: float | None = None,
    shard_tokens: int = SHARD_TOKENS,
    tell: Tell,
) -> Corpus:
    r"""Return text files as a prepared corpus at ``out``; the same again if it is there already.

    Args:
        inputs: files, and folders whose files are taken in sorted order, hidden ones left out.
        out: the folder to make. Anything there but this very corpus is refused.
        tokenizer: "bytes" or "gpt2".
        validation: files and folders to validate on; those also among ``inputs`` are not trained
            on. (default: a part of the documents, chosen by their content)
        bpe: where GPT-2's BPE is, see `make_tokenizer`. (default: tiktoken's cache)
        separator: what stands between the documents of a file, such as ``"\n\n\n"``.
            (default: a file is a document)
        validation_fraction: about how many of the documents are for validation. (default: 0.01)
        shard_tokens: most tokens of a shard.
        tell: receives a line of progress now and then.
    """
    if validation and validation_fraction is not None:
        raise RefusedError("validation files and validation_fraction exclude each other; give one")
    fraction = _TEXT_FRACTION if validation_fraction is None else validation_fraction
    _check_options(separator=separator, validation_fraction=fraction, shard_tokens=shard_tokens)
    documents = Documents(
        chosen_files(inputs, validation, out=Path(out)),
        fraction,
        separator.encode() if separator else None,
    )
    return _prepare(
        documents,
        Path(out),
        tokenizer=make_tokenizer(tokenizer, bpe=bpe),
        source={
            "kind": "text",
            "inputs": [path.resolve().name for path in inputs],
            "validation": [path.resolve().name for path in validation] or fraction,
            "separator": separator,
        },
        skipped={},
        shard_tokens=shard_tokens,
        tell=tell,
    )


def _stdlib_files(root: Path) -> list[Path]:
    found = []
    for folder, below, names in os.walk(root):
        below[:] = set(below) - _NOT_STDLIB  # where the walk does not go
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    # What the build wrote names the machine it ran on.
    return sorted(path for path in found if not path.name.startswith("_sysconfigdata"))


def _check_options(*, separator: str | None, validation_fraction: float, shard_tokens: int) -> None:
    if separator == "":
        raise RefusedError("an empty separator separates nothing; leave it out")
    if not 0 < validation_fraction < 1:
        raise RefusedError(
            f"validation_fraction must lie between 0 and 1, got {validation_fraction}; to choose "
            "what is validated on, name files for validation"
        )
    if shard_tokens < 1:
        raise RefusedError(
            f"shard_tokens must be at least 1, got {shard_tokens}; {SHARD_TOKENS} is usual"
        )


def _prepare(
    documents: Documents,
    out: Path,
    *,
    tokenizer: Tokenizer,
    source: Mapping[str, Any],
    skipped: Mapping[str, int],
    shard_tokens: int = SHARD_TOKENS,
    tell: Tell,
) -> Corpus:
    survey = documents.survey()
    source = {
        **source,
        "bytes": survey.bytes,
        "sha256": survey.sha256,
        "tokenizer": tokenizer.name,
        "shard_tokens": shard_tokens,
    }
    existing = existing_corpus(out, source=source)
    if existing is not None:
        tell(f"{out} is there already, made from the same text")
        return existing
    _check_both_splits(survey, validation_fraction=documents.validation_fraction)
    check_target(out, needed_bytes=2 * survey.bytes // tokenizer.bytes_per_token)
    tell(
        f"encoding {survey.bytes / 1e6:.1f} MB in {survey.documents.total()} documents with "
        f"{tokenizer.name}"
    )
    corpus = write_corpus(
        _encoded(documents, tokenizer, total_bytes=survey.bytes, tell=tell),
        out,
        tokenizer=tokenizer,
        source=source,
        skipped={"blank_documents": survey.blank, **skipped},
        shard_tokens=shard_tokens,
    )
    tell(
        f"{out} holds {len(corpus.train):,} tokens for training and {len(corpus.validation):,} "
        "for validation"
    )
    return corpus


def _check_both_splits(survey: Survey, *, validation_fraction: float) -> None:
    for split in SPLITS:
        if survey.documents[split] == 0:
            raise RefusedError(
                f"none of {survey.documents.total()} documents is for {split} "
                f"(validation_fraction {validation_fraction}); name files for validation, cut "
                "files into documents with a separator, or change the fraction"
            )


def _encoded(
    documents: Documents, tokenizer: Tokenizer, *, total_bytes: int, tell: Tell
) -> Iterator[tuple[Split, Ids]]:
    """Yield the ids of documents that are not blank, telling of progress now and then."""
    done, told = 0, time.monotonic()
    for document in documents:
        if not document.is_blank:
            yield document.split, _ids(document, tokenizer)
        done += len(document.content)
        if time.monotonic() - told > _SECONDS_BETWEEN_NEWS:
            told = time.monotonic()
            tell(f"{done / 1e6:.1f} of {total_bytes / 1e6:.1f} MB")


def _ids(document: Document, tokenizer: Tokenizer) -> Ids:
    try:
        return tokenizer.encode(document.content)
    except UnicodeDecodeError as error:
        raise RefusedError(
            f"{document.path} is not UTF-8 at byte {document.offset + error.start}; convert it, "
            "leave it out, or use the tokenizer bytes"
        ) from None

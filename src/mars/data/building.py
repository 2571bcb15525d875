"""The loop of a preparation: encoded pieces go to shards, and how far they are to the journal."""

import contextlib
import hashlib
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from mars.config.errors import RefusedError
from mars.data.encoding import Encoded, Encoder, Encoding, Tally
from mars.data.inputs import Input
from mars.data.manifest import SPLITS, Split, SplitFiles, token_dtype
from mars.data.pieces import pieces
from mars.data.shards import SplitWriter
from mars.data.tokenizers import Tokenizer
from mars.data.unfinished import Progressed, Unfinished
from mars.data.workers import encoded_in_order
from mars.data.writer import MEASURED, write_file, write_manifest

SECONDS_BETWEEN_COMMITS = 2.0
_ENOUGH_ROWS = 10_000  # to judge the share of malformed ones before the end


@dataclass(frozen=True, slots=True)
class Plan:
    """What is read, and how it is encoded and written."""

    inputs: tuple[Input, ...]
    column: str
    separator: bytes | None
    validation_fraction: float
    max_malformed: float
    processes: int
    shard_tokens: int
    piece_bytes: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a preparation is, for display."""

    tally: Tally
    total_bytes: int  # of input files
    seconds: float  # of this process
    consumed: int  # by this process
    text_bytes: int  # encoded by this process

    @property
    def seconds_left(self) -> float | None:
        """About how long it will take, None while nothing is known."""
        if not self.consumed:
            return None
        return self.seconds / self.consumed * max(self.total_bytes - self.tally.consumed, 0)


Watch = Callable[[Progress], None]


def build(
    work: Unfinished,
    plan: Plan,
    *,
    tokenizer: Tokenizer,
    source: Mapping[str, Any],
    watch: Watch,
) -> None:
    """Make the folder of a preparation a corpus, from where it is; the journal is left in it."""
    for name, content in tokenizer.files().items():
        write_file(work.folder / name, content)
    splits, done = _write_splits(work, plan, tokenizer=tokenizer, watch=watch)
    tally = done.tally
    _check_malformed(tally, plan.max_malformed)
    measured = {
        "rows": tally.rows,
        "text_bytes": tally.text_bytes,
        "documents_sha256": done.sha256,
        "malformed_examples": list(tally.examples),
    }
    write_manifest(
        work.folder,
        splits,
        tokenizer=tokenizer,
        source={**source, MEASURED: measured},
        skipped={"blank_documents": tally.blank, **tally.malformed},
    )


def _write_splits(
    work: Unfinished, plan: Plan, *, tokenizer: Tokenizer, watch: Watch
) -> tuple[dict[Split, SplitFiles], Progressed]:
    done, before = work.start, work.start.tally
    total = sum(each.size for each in plan.inputs)
    with contextlib.ExitStack() as stack:
        writers = {
            split: stack.enter_context(_writer(work, plan, split, tokenizer)) for split in SPLITS
        }
        started = committed = time.monotonic()
        encoded = _encoded(work, plan, tokenizer)
        for piece in stack.enter_context(contextlib.closing(encoded)):
            done = _with(done, piece, writers)
            tally = done.tally
            if tally.rows >= _ENOUGH_ROWS:
                _check_malformed(tally, plan.max_malformed)
            if time.monotonic() - committed > SECONDS_BETWEEN_COMMITS:
                _commit(work, done, writers)
                committed = time.monotonic()
            consumed = tally.consumed - before.consumed
            text_bytes = tally.text_bytes - before.text_bytes
            watch(Progress(tally, total, time.monotonic() - started, consumed, text_bytes))
        _commit(work, done, writers)
        return {split: writer.finish() for split, writer in writers.items()}, done


def _writer(work: Unfinished, plan: Plan, split: Split, tokenizer: Tokenizer) -> SplitWriter:
    return SplitWriter(
        work.folder,
        split,
        shard_tokens=plan.shard_tokens,
        itemsize=token_dtype(tokenizer.vocab_size).itemsize,
        start=work.start.splits[split],
    )


def _encoded(work: Unfinished, plan: Plan, tokenizer: Tokenizer) -> Generator[Encoded, None, None]:
    """Yield the pieces that are still to be written."""
    encoding = Encoding(
        tokenizer=tokenizer.name,
        bpe=work.folder if tokenizer.files() else None,
        column=plan.column,
        separator=plan.separator,
        validation_fraction=plan.validation_fraction,
    )
    every = pieces(
        plan.inputs, column=plan.column, separator=plan.separator, piece_bytes=plan.piece_bytes
    )
    yield from encoded_in_order(
        islice(every, work.start.pieces, None),
        encoding,
        encoder=Encoder(encoding, tokenizer),
        processes=plan.processes,
    )


def _with(done: Progressed, piece: Encoded, writers: Mapping[Split, SplitWriter]) -> Progressed:
    """Write a piece and return how far that is."""
    for split, writer in writers.items():
        writer.append(piece.tokens[split], piece.lengths[split])
    chain = bytes.fromhex(done.sha256)
    for digest in piece.digests:
        chain = hashlib.sha256(chain + digest).digest()
    return replace(done, pieces=done.pieces + 1, sha256=chain.hex(), tally=done.tally + piece.tally)


def _commit(work: Unfinished, done: Progressed, writers: Mapping[Split, SplitWriter]) -> None:
    written = {split: writer.sync() for split, writer in writers.items()}
    work.commit(replace(done, splits=written))


def _check_malformed(tally: Tally, allowed: float) -> None:
    malformed = sum(tally.malformed.values())
    if malformed > allowed * tally.rows:
        raise RefusedError(
            f"{malformed:,} of {tally.rows:,} rows are malformed, more than {allowed:.2%} "
            f"({tally.examples[0]}); mend them, name the text with --column, or allow more with "
            "--max-malformed"
        )

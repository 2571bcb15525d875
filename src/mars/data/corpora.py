"""Making the corpora of the papers, from the hub or from files of the same rows.

Rows are encoded by as many processes as there are cores and written in their order. What is
written is journaled, so that a preparation that was stopped, however it was, goes on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mars.config.errors import RefusedError
from mars.data.building import Plan, Watch, build
from mars.data.corpus import Corpus
from mars.data.hub import as_inputs, downloaded, find_files
from mars.data.inputs import Input, fingerprint, local_inputs
from mars.data.parquet import groups
from mars.data.pieces import PIECE_BYTES
from mars.data.shards import SHARD_TOKENS
from mars.data.target import check_target
from mars.data.tokenizers import TokenizerName, make_tokenizer
from mars.data.unfinished import JOURNAL, going_on, requested, written_bytes
from mars.data.workers import usable_cores
from mars.data.writer import existing_corpus, publish

CorpusName = Literal["openwebtext", "fineweb-edu"]

MAX_MALFORMED = 0.01


@dataclass(frozen=True, slots=True)
class Published:
    """Where a corpus is on the hub, and the part of it that the papers validated on."""

    repository: str
    subset: str | None
    validation_fraction: float


# nanoGPT holds out 0.05 % of OpenWebText's documents. The authors validate FineWeb-Edu on a shard
# whose size they do not state; 0.1 % of sample-100BT is one of 100M tokens.
PUBLISHED: dict[CorpusName, Published] = {
    "openwebtext": Published("Skylion007/openwebtext", None, 0.0005),
    "fineweb-edu": Published("HuggingFaceFW/fineweb-edu", "sample-100BT", 0.001),
}


@dataclass(frozen=True, slots=True)
class CorpusRequest:
    """What corpus is to be made, and how."""

    name: CorpusName
    out: Path
    inputs: tuple[Path, ...] = ()  # local files in place of the hub's
    subset: str | None = None  # None: the one in `PUBLISHED`
    split: str = "train"
    streaming: bool = False  # fetch while reading, and keep nothing of it
    column: str = "text"
    separator: str | None = None  # between the documents of a text file; None: a file is one
    tokenizer: TokenizerName = "gpt2"
    bpe: Path | None = None
    validation_fraction: float | None = None  # None: the one in `PUBLISHED`
    max_malformed: float = MAX_MALFORMED  # part of the rows
    processes: int | None = None  # None: as many as there are cores to use
    shard_tokens: int = SHARD_TOKENS
    piece_bytes: int = PIECE_BYTES

    @property
    def fraction(self) -> float:
        """About how many of the documents are for validation."""
        given = self.validation_fraction
        return PUBLISHED[self.name].validation_fraction if given is None else given


Tell = Callable[[str], None]


def prepare_corpus(request: CorpusRequest, *, tell: Tell, watch: Watch) -> Corpus:
    """Return a corpus at ``request.out``; the same again if it is there already.

    Args:
        request: what to make.
        tell: receives a line for what happens once.
        watch: is called after every piece.
    """
    _check_request(request)
    tokenizer = make_tokenizer(request.tokenizer, bpe=request.bpe)
    inputs, origin = _found(request, tell)
    _check_format(request, inputs[0])
    source = _source(request, inputs, origin)
    existing = existing_corpus(request.out, source=source)
    if existing is not None:
        (request.out / JOURNAL).unlink(missing_ok=True)  # of a process killed at the very end
        tell(f"{request.out} is there already, made from the same files")
        return existing
    text_bytes = _text_bytes(inputs, column=request.column)
    needed = 2 * text_bytes // tokenizer.bytes_per_token - written_bytes(request.out)
    check_target(request.out, needed_bytes=needed)
    if not (request.inputs or request.streaming):
        tell(f"downloading {len(inputs)} files, {source['bytes'] / 1e6:,.0f} MB")
        inputs = downloaded(inputs)
    wanted = {**source, "changed": fingerprint(inputs, with_times=True)}
    wanted |= {"piece_bytes": request.piece_bytes}
    with going_on(request.out, request=wanted) as work:
        plan = _plan(request, inputs)
        tell(_opening(plan, done=work.start.tally.documents))
        build(work, plan, tokenizer=tokenizer, source=source, watch=watch)
        publish(work.folder, request.out)
        (request.out / JOURNAL).unlink(missing_ok=True)
    corpus = existing_corpus(request.out, source=source)
    assert corpus is not None
    return corpus


def _check_request(request: CorpusRequest) -> None:
    for name in ("validation_fraction", "max_malformed"):
        value = getattr(request, name)
        if value is not None and not 0 < value < 1:
            raise RefusedError(f"{name} must lie between 0 and 1, got {value}")
    for name in ("processes", "shard_tokens", "piece_bytes"):
        value = getattr(request, name)
        if value is not None and value < 1:
            raise RefusedError(f"{name} must be at least 1, got {value}")
    if request.separator == "":
        raise RefusedError("an empty separator separates nothing; leave it out")


def _check_format(request: CorpusRequest, first: Input) -> None:
    """Refuse what says nothing about files of this format."""
    if request.separator is not None and first.format != "text":
        raise RefusedError(f"a separator is for text files, {first.location} is {first.format}")
    if request.column != "text" and first.format == "text":
        raise RefusedError(f"a column is for parquet and JSONL, {first.location} is text")


def _found(request: CorpusRequest, tell: Tell) -> tuple[list[Input], Mapping[str, Any]]:
    """Return the files to read, and where they are from, for the manifest."""
    if request.inputs:
        names = [path.resolve().name for path in request.inputs]
        return local_inputs(request.inputs, out=request.out), {"inputs": names}
    published = PUBLISHED[request.name]
    subset = request.subset or published.subset
    tell(f"asking the hub for the files of {published.repository}")
    # A preparation goes on with the revision it began with.
    files = find_files(
        published.repository,
        subset=subset,
        split=request.split,
        revision=requested(request.out).get("revision"),
    )
    return as_inputs(files), {
        "repository": published.repository,
        "revision": files.revision,
        "subset": subset,
        "split": request.split,
    }


def _source(
    request: CorpusRequest, inputs: list[Input], origin: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "kind": request.name,
        **origin,
        "files": len(inputs),
        "bytes": sum(each.size for each in inputs),
        "files_sha256": fingerprint(inputs, with_times=False),
        "column": request.column,
        "separator": request.separator,
        "validation": request.fraction,
        "tokenizer": request.tokenizer,
        "shard_tokens": request.shard_tokens,
    }


def _text_bytes(inputs: list[Input], *, column: str) -> int:
    """Return about how much text there is.

    Parquet is opened, which shows whether it is whole and has the column; of files behind an
    address only the first, which stands for all.
    """
    if inputs[0].format != "parquet":
        return sum(each.text_bytes for each in inputs)
    opened = inputs[:1] if inputs[0].is_remote else inputs
    text = sum(group.text_bytes for each in opened for group in groups(each, column=column))
    return text * sum(each.size for each in inputs) // sum(each.size for each in opened)


def _plan(request: CorpusRequest, inputs: list[Input]) -> Plan:
    return Plan(
        inputs=tuple(inputs),
        column=request.column,
        separator=request.separator.encode() if request.separator else None,
        validation_fraction=request.fraction,
        max_malformed=request.max_malformed,
        processes=request.processes or usable_cores(),
        shard_tokens=request.shard_tokens,
        piece_bytes=request.piece_bytes,
    )


def _opening(plan: Plan, *, done: int) -> str:
    size = sum(each.size for each in plan.inputs) / 1e6
    going_on = f", going on after {done:,} documents" if done else ""
    return f"encoding {size:,.1f} MB of files in {plan.processes} processes{going_on}"

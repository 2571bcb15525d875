"""The same documents as parquet, JSON lines and text, plain and compressed."""

import gzip
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mars.data.corpora import CorpusRequest, prepare_corpus
from mars.data.corpus import Corpus

DATA = Path(os.environ.get("MARS_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
WIKITEXT, BPE = DATA / "wikitext-2", DATA / "gpt2-bpe"

SEPARATOR = "\x1e"
FORMATS = ("parquet", "jsonl", "jsonl.gz", "jsonl.zst", "txt", "txt.gz", "txt.zst")


def generated(megabytes: float, *, seed: int = 0) -> list[str]:
    """Return documents of random words, among them letters of several bytes."""
    rng = random.Random(seed)
    letters = "etaoinshrdlucmfwypvbgk" * 9 + "äéñßøčжд中文🙂"
    words = ["".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(5000)]
    made: list[str] = []
    size = 0
    while size < megabytes * 1e6:
        text = " ".join(rng.choices(words, k=rng.randint(20, 1200))) + rng.choice(["", ".", "\n"])
        made.append(text)
        size += len(text.encode())
    return made


def json_lines(documents: Sequence[str], *, column: str = "text") -> bytes:
    """Return the documents as JSON lines, every other one in ASCII alone."""
    return "".join(
        json.dumps({"id": place, column: text}, ensure_ascii=place % 2 == 0) + "\n"
        for place, text in enumerate(documents)
    ).encode()


def compressed(content: bytes, path: Path) -> Path:
    """Write content as the file's name says."""
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(content, mtime=0))
    elif path.suffix == ".zst":
        with pa.CompressedOutputStream(str(path), "zstd") as file:
            file.write(content)
    else:
        path.write_bytes(content)
    return path


def write_rows(
    documents: Sequence[str], folder: Path, kind: str, *, name: str = "rows", column: str = "text"
) -> Path:
    """Write documents to a file of a kind in `FORMATS` and return where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.{kind}"
    if kind == "parquet":
        table = pa.table({"id": range(len(documents)), column: list(documents)})
        pq.write_table(table, path, row_group_size=100)
        return path
    lines = kind.startswith("jsonl")
    content = json_lines(documents, column=column) if lines else SEPARATOR.join(documents).encode()
    return compressed(content, path)


def make(inputs: Path | Sequence[Path], out: Path, **options) -> Corpus:
    """Prepare local files, as bytes in one process unless options say otherwise."""
    given = (inputs,) if isinstance(inputs, Path) else tuple(inputs)
    if given and given[0].name.split(".", 1)[-1].startswith("txt"):
        options.setdefault("separator", SEPARATOR)
    tell = options.pop("tell", lambda line: None)
    watch = options.pop("watch", lambda progress: None)
    defaults = {"tokenizer": "bytes", "processes": 1, "validation_fraction": 0.2}
    request = CorpusRequest("openwebtext", out, inputs=given, **(defaults | options))
    return prepare_corpus(request, tell=tell, watch=watch)


def contents(corpus: Corpus, split: str) -> list[bytes]:
    """Return the documents of a split of a corpus of bytes."""
    ends = corpus.document_ends(split).tolist()
    tokens = getattr(corpus, split)
    return [
        bytes(tokens.read(start, end - 1).tolist())
        for start, end in zip([0, *ends], ends, strict=False)
    ]


def files_of(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}

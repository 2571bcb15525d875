"""How fast `mars prepare` encodes, against as many threads of tiktoken as it has processes.

    python benchmarks/prepare_speed.py --bpe FILE [--megabytes 100] [--rounds 3] [--processes N]

The yardstick is a process that does nothing but `encode_ordinary` on documents that lie in its
memory. A preparation reads, parses, hashes, splits, encodes, checks, writes and syncs; starting
its processes is part of its time. All run in turn, `--rounds` times, and the best of each counts:
other work on the machine only ever adds time. Three ratios, each 1 where a preparation costs no
more than the encoding in it:

alone      to one such process by itself, times the number of processes; for an idle machine
together   to as many such processes at once, which share the machine with whatever else it does
processor  of the seconds of the processor that a megabyte takes

Documents are random words, or pieces of `--text`.
"""

import argparse
import json
import multiprocessing
import os
import random
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mars.data.corpora import CorpusRequest, prepare_corpus
from mars.data.tokenizers import make_tokenizer
from mars.data.workers import usable_cores

FORMATS = ("parquet", "jsonl.zst", "txt")
SEPARATOR = "\x1e"


def documents(megabytes: float, *, text: Path | None) -> list[str]:
    """Return documents of a few kilobytes each, cut from a text or made of random words."""
    rng = random.Random(0)
    given = text.read_text() if text else " ".join(_words(rng, count=400_000))
    made: list[str] = []
    size = 0
    while size < megabytes * 1e6:
        start = rng.randrange(len(given) - 9_000)
        made.append(given[start : start + rng.randrange(100, 9_000)])
        size += len(made[-1].encode())
    return made


def _words(rng: random.Random, *, count: int) -> list[str]:
    letters = "etaoinshrdlucmfwypvbgk"
    known = ["".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(5_000)]
    return rng.choices(known, k=count)


def write(texts: list[str], folder: Path) -> dict[str, Path]:
    """Return the same documents as files of every format."""
    paths = {kind: folder / f"rows.{kind}" for kind in FORMATS}
    pq.write_table(pa.table({"text": texts}), paths["parquet"], row_group_size=1_000)
    with pa.CompressedOutputStream(str(paths["jsonl.zst"]), "zstd") as file:
        file.write("".join(json.dumps({"text": text}) + "\n" for text in texts).encode())
    paths["txt"].write_text(SEPARATOR.join(texts))
    return paths


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of the clock and of the processor, those of ended children included."""
    clock, processor = time.perf_counter(), _processor_seconds()
    run()
    return time.perf_counter() - clock, _processor_seconds() - processor


def _processor_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def encode_share(path: Path, bpe: Path | None, part: int, parts: int, gate: Any, out: Any) -> None:
    """Encode every ``parts``-th document, once all are ready; put seconds and processor seconds."""
    texts = pq.read_table(path).column("text").to_pylist()[part::parts]
    encode = make_tokenizer("gpt2", bpe=bpe)._encoding.encode_ordinary
    gate.wait()
    out.put(timed(lambda: [encode(text) for text in texts]))


def encode_alone(path: Path, bpe: Path | None, *, parts: int, started: int) -> tuple[float, float]:
    """Return the longest seconds, and all processor seconds, of processes that each do a part."""
    context = multiprocessing.get_context("spawn")
    gate, out = context.Barrier(started), context.Queue()
    processes = [
        context.Process(target=encode_share, args=(path, bpe, part, parts, gate, out))
        for part in range(started)
    ]
    for process in processes:
        process.start()
    times = [out.get() for _ in processes]
    for process in processes:
        process.join()
    return max(clock for clock, _ in times), sum(processor for _, processor in times)


def prepare(kind: str, paths: dict[str, Path], options: argparse.Namespace) -> None:
    """Prepare one of the files."""
    out = paths[kind].parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    request = CorpusRequest(
        "openwebtext",
        out,
        inputs=(paths[kind],),
        bpe=options.bpe,
        processes=options.processes,
        separator=SEPARATOR if kind == "txt" else None,
        validation_fraction=0.01,  # so that a few megabytes have some
    )
    prepare_corpus(request, tell=lambda _: None, watch=lambda _: None)


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Run everything in turn and print the ratios."""
    texts = documents(options.megabytes, text=options.text)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    paths = write(texts, folder)
    many = options.processes
    seconds: dict[str, list[tuple[float, float]]] = {}
    for _ in range(options.rounds):
        for kind in FORMATS:
            for name, started in [("alone", 1), ("together", many)]:
                took = encode_alone(paths["parquet"], options.bpe, parts=many, started=started)
                seconds.setdefault(name, []).append(took)
            took = timed(lambda kind=kind: prepare(kind, paths, options))
            seconds.setdefault(kind, []).append(took)
    best = {name: tuple(map(min, zip(*runs, strict=True))) for name, runs in seconds.items()}
    print(
        f"{megabytes:.0f} MB in {len(texts)} documents, {many} processes, {options.rounds} rounds"
    )
    print(f"load at the end {os.getloadavg()[0]:.1f} on {usable_cores()} cores")
    print(f"tiktoken alone {megabytes / many / best['alone'][0]:.1f} MB/s")
    print(f"tiktoken together {megabytes / best['together'][0]:.1f} MB/s")
    for kind in FORMATS:
        clock, processor = best[kind]
        ratios = {
            "alone": best["alone"][0] / clock,
            "together": best["together"][0] / clock,
            "processor": best["together"][1] / processor,
        }
        words = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
        print(f"{kind:10}  {megabytes / clock:5.1f} MB/s; {words}")


def main() -> None:
    """Measure with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bpe", type=Path, default=None)
    parser.add_argument("--text", type=Path, default=None)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=usable_cores())
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(options, Path(folder))


if __name__ == "__main__":
    main()

"""Evaluation speed: requests a second of `mars eval` over those of lm_eval's own model, in one run.

Usage: python benchmarks/eval_speed.py DATA [--model small|tiny] [--limit 20] [--rounds 3]

DATA is a folder with HellaSwag, PIQA, ARC-easy and SciQ as TASK/SPLIT.jsonl. Both score the same
requests with the same random weights at the same batch size: ours in this process, lm_eval's HFLM
on a folder in the form of transformers. They take turns, round by round and task by task, so that
a noisy machine is equally noisy for both.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

import torch

from mars.config.schema import Model
from mars.data.tokenizers import make_tokenizer
from mars.evaluation.harness import MarsLM, hushed
from mars.evaluation.scoring import Compute
from mars.evaluation.subject import Subject
from mars.evaluation.tasks import Asked, load_tasks
from mars.evaluation.tokenizer_files import huggingface_files
from mars.models.gpt2 import GPT2
from mars.models.huggingface import save_huggingface

TASKS = ("hellaswag", "piqa", "arc_easy", "sciq")
SHAPES = {"small": Model(), "tiny": Model(layers=3, heads=4, width=128, context_length=256)}


def requests_of(data: Path, task: str, limit: int) -> list:
    """Return the requests that lm_eval makes of a task's first examples."""
    with hushed():
        loaded = load_tasks(Asked(names=(task,), task_path=data))["tasks"][task]
        loaded.build_all_requests(limit=limit, rank=0, world_size=1)
    return loaded.instances


def models(shape: Model, *, bpe: Path | None, batch_size: int, folder: Path) -> dict:
    """Return both models by name, with the same weights."""
    from lm_eval.models.huggingface import HFLM

    tokenizer = make_tokenizer("gpt2", bpe=bpe)
    model = GPT2(shape, generator=torch.Generator().manual_seed(0)).train(False)
    files = huggingface_files(tokenizer, context_length=shape.context_length)
    save_huggingface(model, folder, files=files)
    subject = Subject(source=str(folder), kind="folder", model=model, tokenizer=tokenizer)
    theirs = HFLM(str(folder), device="cpu", dtype="float32", batch_size=batch_size)
    return {"mars": MarsLM(subject, Compute(batch_size=batch_size)), "HFLM": theirs}


def main() -> None:
    """Print requests a second of both, by task, and the ratio of their medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", choices=SHAPES, default="small")
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--bpe", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compared = models(
            SHAPES[options.model],
            bpe=options.bpe,
            batch_size=options.batch_size,
            folder=Path(folder) / "model",
        )
    requests = {task: requests_of(options.data, task, options.limit) for task in TASKS}
    seconds: dict[tuple[str, str], list[float]] = {
        (name, task): [] for name in compared for task in TASKS
    }
    for _ in range(options.rounds):
        for task in TASKS:
            for name, lm in compared.items():
                start = time.perf_counter()
                lm.loglikelihood(requests[task], disable_tqdm=True)
                seconds[name, task].append(time.perf_counter() - start)
    print(f"{options.model}, batch size {options.batch_size}, {torch.get_num_threads()} threads")
    for task in TASKS:
        medians = {name: statistics.median(seconds[name, task]) for name in compared}
        count = len(requests[task])
        rates = "  ".join(f"{name} {count / median:6.1f}/s" for name, median in medians.items())
        ratio = medians["HFLM"] / medians["mars"]
        print(f"{task:10} {count:5} requests  {rates}  ratio {ratio:.2f}")


if __name__ == "__main__":
    main()

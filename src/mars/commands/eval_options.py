"""What ``mars eval`` and ``mars export`` can be asked. Importing this does not import torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """Measure a model: tasks of lm-evaluation-harness, validation loss on a corpus."""

    source: Annotated[
        Positional[str],
        arg(
            metavar="RUN|DIR|NAME",
            help="A run directory, a Hugging Face folder, or gpt2, gpt2-medium, gpt2-large, "
            "gpt2-xl: OpenAI's weights.",
            help_behavior_hint="",
        ),
    ]
    tasks: Annotated[
        str | None,
        arg(
            metavar="A,B|mars9",
            help="Tasks by their names in lm_eval; mars9 are the paper's nine.",
            help_behavior_hint="",
        ),
    ] = None
    task_path: Annotated[
        Path | None,
        arg(
            metavar="DIR",
            help="A folder with task files of your own, or data as TASK/SPLIT.jsonl or .parquet.",
            help_behavior_hint="(default: lm_eval's tasks, data from the hub)",
        ),
    ] = None
    limit: Annotated[
        int | None,
        arg(
            metavar="N",
            help="Evaluate the first N examples of each task.",
            help_behavior_hint="(default: all)",
        ),
    ] = None
    num_fewshot: Annotated[
        int | None,
        arg(
            metavar="N",
            help="Examples shown before each question.",
            help_behavior_hint="(default: the task's own, or 0)",
        ),
    ] = None
    seed: Annotated[int, arg(metavar="N", help="Of the choice of examples shown.")] = 1234
    validation: Annotated[
        Path | None,
        arg(
            metavar="CORPUS",
            help="Validation loss on a corpus that mars prepare made.",
            help_behavior_hint="",
        ),
    ] = None
    tokens: Annotated[
        int | None,
        arg(
            metavar="N",
            help="validation: how many tokens to predict, spread over the split.",
            help_behavior_hint="(default: 1048576)",
        ),
    ] = None
    context_length: Annotated[
        int | None,
        arg(
            metavar="N",
            help="validation: tokens a window; equal windows compare models of other contexts.",
            help_behavior_hint="(default: the model's)",
        ),
    ] = None
    step: Annotated[
        int | None,
        arg(
            metavar="N",
            help="The checkpoint of this step.",
            help_behavior_hint="(default: the newest good one)",
        ),
    ] = None
    batch_size: Annotated[int, arg(metavar="N", help="Sequences at a time, in each process.")] = 16
    device: Annotated[str, arg(metavar="DEVICE", help="auto, cpu, cuda, cuda:1, mps ...")] = "auto"
    precision: Annotated[
        Literal["auto", "float32", "bfloat16"],
        arg(
            metavar="DTYPE",
            help="auto is bfloat16 where the hardware multiplies it, else float32.",
        ),
    ] = "auto"
    out: Annotated[
        Path | None,
        arg(
            metavar="FILE",
            help="Where the results go.",
            help_behavior_hint="(default: evaluation.json in the run)",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Write a run as a Hugging Face folder: weights, config, tokenizer, model card."""

    run: Annotated[
        Positional[Path], arg(metavar="RUN", help="A run directory.", help_behavior_hint="")
    ]
    out: Annotated[Path, arg(metavar="DIR", help="A folder to make.", help_behavior_hint="")]
    step: Annotated[
        int | None,
        arg(
            metavar="N",
            help="The checkpoint of this step.",
            help_behavior_hint="(default: the newest good one)",
        ),
    ] = None

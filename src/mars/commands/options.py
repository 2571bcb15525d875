"""What the commands of the laboratory can be asked. Importing this does not import torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional, UseAppendAction, arg

TokenizerName = Literal["bytes", "gpt2"]
Corpus = Literal["stdlib", "text", "openwebtext", "fineweb-edu"]
Images = Literal["digits", "cifar10", "cifar100"]


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """Train a model: from a preset or a TOML file to a run directory."""

    config: Annotated[
        Positional[str | None],
        arg(metavar="PRESET|FILE", help="Name of a preset, or a TOML file.", help_behavior_hint=""),
    ] = None
    set: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(
            metavar="KEY=VALUE",
            help="Set a key of the config, such as optimizer.lr=3e-3; may be repeated.",
            help_behavior_hint="",
        ),
    ] = ()
    out: Annotated[
        Path | None,
        arg(metavar="DIR", help="The run directory.", help_behavior_hint="(default: runs/NAME)"),
    ] = None
    resume: Annotated[
        bool,
        tyro.conf.FlagCreatePairsOff,
        arg(help="Continue the run in --out from its newest good checkpoint."),
    ] = False
    list: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="List the presets and leave.")] = (
        False
    )


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """Turn text or images into a folder to train on."""

    corpus: Annotated[
        Positional[Corpus | Images],
        arg(
            metavar="stdlib|text|openwebtext|fineweb-edu|digits|cifar10|cifar100",
            help="The Python standard library's own source, files of your own, or the corpora of "
            "the papers, from the Hugging Face hub or local files. Images: scikit-learn's digits, "
            "or CIFAR, from its own files or the hub.",
            help_behavior_hint="",
        ),
    ]
    out: Annotated[Path, arg(metavar="DIR", help="Where the corpus goes.", help_behavior_hint="")]
    input: Annotated[
        tuple[Path, ...],
        arg(
            metavar="PATH ...",
            help="text: files and folders. openwebtext, fineweb-edu: parquet, JSONL (.gz, .zst) "
            "or text to read instead of the hub. cifar10, cifar100: a folder of its python, "
            "binary or parquet files, or an archive.",
            help_behavior_hint="",
        ),
    ] = ()
    validation: Annotated[
        tuple[Path, ...],
        arg(
            metavar="PATH ...",
            help="text: files and folders to validate on.",
            help_behavior_hint="(default: documents of --input, chosen by their content)",
        ),
    ] = ()
    tokenizer: Annotated[
        TokenizerName | None,
        arg(
            metavar="bytes|gpt2",
            help="What tokens are.",
            help_behavior_hint="(default: gpt2)",
        ),
    ] = None
    bpe: Annotated[
        Path | None,
        arg(
            metavar="PATH",
            help="A local file or folder with GPT-2's merges.",
            help_behavior_hint="(default: tiktoken's cache, or a download)",
        ),
    ] = None
    separator: Annotated[
        str | None,
        arg(
            metavar="TEXT",
            help="What separates documents inside a file.",
            help_behavior_hint="(default: each file is one document)",
        ),
    ] = None
    validation_fraction: Annotated[
        float | None,
        arg(
            metavar="X",
            help="Part of the documents to validate on.",
            help_behavior_hint="(default: 0.01; openwebtext: 0.0005, fineweb-edu: 0.001)",
        ),
    ] = None
    subset: Annotated[
        str | None,
        arg(
            metavar="NAME",
            help="fineweb-edu: such as sample-10BT.",
            help_behavior_hint="(default: sample-100BT)",
        ),
    ] = None
    split: Annotated[
        str | None,
        arg(metavar="NAME", help="Of the hub's splits.", help_behavior_hint="(default: train)"),
    ] = None
    streaming: Annotated[
        bool,
        tyro.conf.FlagCreatePairsOff,
        arg(help="Fetch from the hub while reading, and keep no copy."),
    ] = False
    column: Annotated[
        str | None,
        arg(
            metavar="NAME",
            help="Where the text is in parquet and JSONL.",
            help_behavior_hint="(default: text)",
        ),
    ] = None
    processes: Annotated[
        int | None,
        arg(
            metavar="N",
            help="How many encode.",
            help_behavior_hint="(default: as many as there are cores to use)",
        ),
    ] = None
    max_malformed: Annotated[
        float | None,
        arg(
            metavar="X",
            help="Part of the rows that may be malformed; they are left out and counted.",
            help_behavior_hint="(default: 0.01)",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """Let a trained model continue a prompt."""

    run: Annotated[
        Positional[Path],
        arg(metavar="RUN", help="A run directory.", help_behavior_hint=""),
    ]
    prompt: Annotated[str, arg(metavar="TEXT", help="What to continue.")] = "\n"
    tokens: Annotated[int, arg(metavar="N", help="Most tokens to add.")] = 200
    temperature: Annotated[float, arg(metavar="X", help="0 always takes the likeliest token.")] = (
        0.8
    )
    top_k: Annotated[
        int | None,
        arg(
            metavar="N",
            help="Draw from the N likeliest tokens only.",
            help_behavior_hint="(default: from all)",
        ),
    ] = None
    seed: Annotated[int, arg(metavar="N", help="Of the drawing.")] = 0
    step: Annotated[
        int | None,
        arg(
            metavar="N",
            help="The checkpoint of this step.",
            help_behavior_hint="(default: the newest good one)",
        ),
    ] = None

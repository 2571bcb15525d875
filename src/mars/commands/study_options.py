"""What can be asked about several runs: compare, report, diagnose. Does not import torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional, UseAppendAction, arg


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Compare optimizers, each with its own search for a learning rate, over seeds."""

    config: Annotated[
        Positional[str | None],
        arg(
            metavar="PRESET|STUDY|FILE",
            help="A preset of mars train, a study of --list, or a TOML file of either kind.",
            help_behavior_hint="",
        ),
    ] = None
    optimizers: Annotated[
        str | None,
        arg(
            metavar="A,B,C",
            help="Optimizers to compare.",
            help_behavior_hint="(default: mars-adamw,mars-m,adamw,muon, or the study's)",
        ),
    ] = None
    lr: Annotated[
        tuple[str, ...],
        arg(
            metavar="auto|NAME=V,V ...",
            help="Learning rates of each optimizer; auto is the preset's own, times powers of "
            "--rate-factor.",
            help_behavior_hint="(default: auto, or the study's)",
        ),
    ] = ()
    rates: Annotated[
        int | None,
        arg(
            metavar="N",
            help="Learning rates of each optimizer under auto.",
            help_behavior_hint="(default: 3, or the study's)",
        ),
    ] = None
    rate_factor: Annotated[
        float | None,
        arg(
            metavar="X",
            help="Ratio of neighbours under auto.",
            help_behavior_hint="(default: 2, or the study's)",
        ),
    ] = None
    seeds: Annotated[
        str | None,
        arg(
            metavar="0,1,2",
            help="Seeds of initial weights and data order.",
            help_behavior_hint="(default: 0,1,2, or the study's)",
        ),
    ] = None
    search_seeds: Annotated[
        int | None,
        arg(
            metavar="N",
            help="Search learning rates on the first N seeds; the best alone runs on the rest.",
            help_behavior_hint="(default: all, or the study's)",
        ),
    ] = None
    vary: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(
            metavar="KEY=V,V",
            help="Try every value of a key with each optimizer that has it, such as "
            "gamma=0,0.025; arrays are separated by semicolons: betas=0.9,0.95;0.95,0.99. "
            "May be repeated.",
            help_behavior_hint="",
        ),
    ] = ()
    set: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(
            metavar="KEY=VALUE",
            help="Set a key of every run, such as training.steps=200; may be repeated.",
            help_behavior_hint="",
        ),
    ] = ()
    baseline: Annotated[
        str | None,
        arg(
            metavar="NAME",
            help="What the others are compared with.",
            help_behavior_hint="(default: adamw if it is there, else the first)",
        ),
    ] = None
    out: Annotated[
        Path | None,
        arg(
            metavar="DIR",
            help="Where the runs and the page go; a comparison that is there goes on.",
            help_behavior_hint="(default: runs/compare-NAME, or runs/STUDY)",
        ),
    ] = None
    jobs: Annotated[
        int | None,
        arg(
            metavar="N",
            help="Runs at a time, one thread or one GPU each.",
            help_behavior_hint="(default: as many as there are GPUs, or cores)",
        ),
    ] = None
    keep_checkpoints: Annotated[
        bool,
        tyro.conf.FlagCreatePairsOff,
        arg(help="Keep the last checkpoint of each finished run."),
    ] = False
    dry_run: Annotated[
        bool, tyro.conf.FlagCreatePairsOff, arg(help="Show what would run, and leave.")
    ] = False
    list: Annotated[
        bool,
        tyro.conf.FlagCreatePairsOff,
        arg(help="List the studies that are shipped, and leave."),
    ] = False


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Make one page of any number of runs or comparisons: verdict, tables, curves."""

    runs: Annotated[
        Positional[tuple[Path, ...]],
        arg(metavar="RUN ...", help="Run directories, or comparisons.", help_behavior_hint=""),
    ]
    out: Annotated[
        Path | None,
        arg(metavar="FILE", help="The page.", help_behavior_hint="(default: report.html)"),
    ] = None
    baseline: Annotated[
        str | None,
        arg(
            metavar="NAME",
            help="What the others are compared with.",
            help_behavior_hint="(default: the comparison's; adamw if it is there, else the first)",
        ),
    ] = None
    title: Annotated[
        str | None,
        arg(metavar="TEXT", help="Heading of the page.", help_behavior_hint="(default: the name)"),
    ] = None
    figures: Annotated[
        Path | None,
        arg(metavar="DIR", help="Write the figures as SVG and PDF too.", help_behavior_hint=""),
    ] = None
    markdown: Annotated[
        bool,
        tyro.conf.FlagCreatePairsOff,
        arg(help="Print the verdict and the table as Markdown; no page is made."),
    ] = False


@dataclass(frozen=True, slots=True)
class DiagnoseOptions:
    """Measure how much variance MARS removes from a run's gradients, mode by mode."""

    run: Annotated[
        Positional[Path], arg(metavar="RUN", help="A run directory.", help_behavior_hint="")
    ]
    at: Annotated[
        str | None,
        arg(
            metavar="STEP,STEP",
            help="Steps to look at.",
            help_behavior_hint="(default: a tenth, a half and all of the run)",
        ),
    ] = None
    streams: Annotated[int, arg(metavar="K", help="Independent streams of micro-batches.")] = 16
    history: Annotated[
        int | None,
        arg(
            metavar="N",
            help="Steps that an average looks back.",
            help_behavior_hint="(default: 2 / (1 - beta1))",
        ),
    ] = None
    micro_batch_size: Annotated[
        int | None,
        arg(
            metavar="N",
            help="Sequences of a micro-batch.",
            help_behavior_hint="(default: the run's batch)",
        ),
    ] = None
    large_batch: Annotated[
        int, arg(metavar="N", help="Sequences whose gradient counts as the true one.")
    ] = 2048

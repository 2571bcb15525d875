"""What ``mars plan`` can be asked. Importing this does not import torch."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro
from tyro.conf import UseAppendAction, arg

from mars.config.schema import OptimizerName


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Compute what training takes on a cluster: memory, traffic, times; what fits."""

    model: Annotated[
        str | None,
        arg(
            metavar="NAME|PRESET|FILE",
            help="gpt2-small, -medium, -large, -xl, gpt3-2.7b, -6.7b, -13b, or a preset or TOML "
            "file of mars train.",
            help_behavior_hint="",
        ),
    ] = None
    gpus: Annotated[int, arg(metavar="N", help="GPUs, in nodes of eight.")] = 1
    optimizer: Annotated[
        OptimizerName | None,
        arg(
            metavar="NAME",
            help="Its optimizer.",
            help_behavior_hint="(default: the preset's, or mars-adamw)",
        ),
    ] = None
    precision: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        arg(
            metavar="DTYPE",
            help="float32, bfloat16 or float16.",
            help_behavior_hint="(default: the preset's, or bfloat16)",
        ),
    ] = None
    parallel: Annotated[
        Literal["none", "ddp", "fsdp2", "hsdp"] | None,
        arg(
            metavar="MODE",
            help="none, ddp, fsdp2 or hsdp.",
            help_behavior_hint="(default: all that are possible, side by side)",
        ),
    ] = None
    replicas: Annotated[
        int | None,
        arg(
            metavar="N",
            help="hsdp: groups of GPUs that have the whole model.",
            help_behavior_hint="(default: one a node of eight)",
        ),
    ] = None
    micro_batch_size: Annotated[
        int | None,
        arg(
            metavar="N",
            help="Sequences at a time on one GPU.",
            help_behavior_hint="(default: the preset's; 1 for gpt3)",
        ),
    ] = None
    context_length: Annotated[
        int | None,
        arg(metavar="N", help="Tokens a sequence.", help_behavior_hint="(default: the model's)"),
    ] = None
    activation_checkpointing: Annotated[
        bool,
        tyro.conf.FlagCreatePairsOff,
        arg(help="Keep the input of each block only."),
    ] = False
    gpu: Annotated[
        str,
        arg(metavar="NAME", help="a100-40gb, a100-80gb, h100, h200, b200, l40s, rtx-4090, mi300x."),
    ] = "h100"
    gpu_memory: Annotated[
        str | None,
        arg(
            metavar="SIZE", help="Of one GPU, as in 80GB.", help_behavior_hint="(default: its own)"
        ),
    ] = None
    bandwidth: Annotated[
        float | None,
        arg(
            metavar="GB/S",
            help="Of a GPU's memory.",
            help_behavior_hint="(default: its own)",
        ),
    ] = None
    link: Annotated[
        float | None,
        arg(
            metavar="GB/S",
            help="What a GPU can send: to other nodes, and inside its own without --node-link.",
            help_behavior_hint="(default: 50, and its own inside a node)",
        ),
    ] = None
    node_link: Annotated[
        float | None,
        arg(
            metavar="GB/S",
            help="What a GPU can send inside its node.",
            help_behavior_hint="(default: its own)",
        ),
    ] = None
    set: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(
            metavar="KEY=VALUE",
            help="Set a key of the config, such as optimizer.exact=true; may be repeated.",
            help_behavior_hint="",
        ),
    ] = ()
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="Print every figure as JSON.")] = (
        False
    )

"""``mars plan``: what training would take on a cluster, for people or as JSON."""

import json
import math
from dataclasses import replace

from rich.console import Console

from mars.commands.plan_options import PlanOptions
from mars.config.errors import RefusedError
from mars.config.keys import Value
from mars.planning.gpus import Gpu, gpu_of, size_in_bytes
from mars.planning.request import Request, make_request
from mars.planning.shapes import NAMES


def plan(options: PlanOptions, console: Console) -> None:
    """Do what the command line asks for."""
    request = resolve(options)
    layouts = request.layouts
    # Torch is imported from here on: refusals come at once.
    from mars.commands.plan_display import Shown, as_dict, show
    from mars.planning.advice import advise
    from mars.planning.estimate import estimate, inventory_of

    inventory = inventory_of(request)
    estimates = [estimate(request, layout, inventory) for layout in layouts]
    made = Shown(request, inventory, estimates, advise(request, estimates))
    if options.json:
        console.out(json.dumps(as_dict(made), indent=1), highlight=False)
    else:
        show(made, console)


def resolve(options: PlanOptions) -> Request:
    """Return the checked request that the options make."""
    if options.model is None:
        raise RefusedError(f"--model is needed: {', '.join(NAMES)}, a preset or a TOML file")
    given: dict[str, Value] = {
        "training.precision": options.precision,
        "training.micro_batch_size": options.micro_batch_size,
        "training.activation_checkpointing": options.activation_checkpointing or None,
        "model.context_length": options.context_length,
    }
    return make_request(
        options.model,
        gpus=options.gpus,
        gpu=_gpu(options),
        mode=options.parallel,
        replicas=options.replicas,
        optimizer=options.optimizer,
        settings=options.set,
        options={key: value for key, value in given.items() if value is not None},
    )


def _gpu(options: PlanOptions) -> Gpu:
    """Return the GPU of a name, with explicit figures in place of its own."""
    gpu = gpu_of(options.gpu)
    rates = {"bandwidth": options.bandwidth, "link": options.link, "node_link": options.node_link}
    for name, rate in rates.items():
        if rate is not None and not 0 < rate < math.inf:
            option = name.replace("_", "-")
            raise RefusedError(f"--{option} must be positive and finite, got {rate:g}")
    if options.gpu_memory is not None:
        memory = size_in_bytes(options.gpu_memory, option="--gpu-memory")
        gpu = replace(gpu, memory_bytes=memory)
    if options.bandwidth is not None:
        gpu = replace(gpu, bandwidth=options.bandwidth)
    if options.link is not None:
        gpu = replace(gpu, link=options.link, node_link=options.link)
    if options.node_link is not None:
        gpu = replace(gpu, node_link=options.node_link)
    return gpu

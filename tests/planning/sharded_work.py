"""What two ranks do in the test of sharded plans: train a little, and tell what they hold."""

import json
import os
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from mars.bench.measure import held_bytes
from mars.config.schema import Model, Run
from mars.models.gpt2 import GPT2
from mars.training.optimizers import Together, build_optimizer
from mars.training.step import Stepper
from mars.training.task import LanguageModeling
from planning.steps import OPTIMIZERS, WIDE, batch, run_of

RANKS = 2
# No dimension is even: the first rank holds a row more of everything.
ODD = replace(WIDE, layers=2, heads=3, width=33, vocab_size=131, context_length=7)


@dataclass(frozen=True)
class Case:
    """One way to train in two processes."""

    mode: str
    optimizer: str
    model: Model = WIDE
    precision: str = "float32"
    micro_batches: int = 1

    @property
    def name(self) -> str:
        """What distinguishes it from the others."""
        shape = f"{self.model.width}x{self.model.context_length}"
        return f"{self.mode} {self.optimizer} {shape} {self.precision} {self.micro_batches}"

    def run(self, *, ranks: int) -> Run:
        """Return the run of so many processes."""
        optimizer = OPTIMIZERS[self.optimizer]
        # MARS's fused engine would compile; AdamW's eager form is another than a GPU's.
        optimizer = replace(optimizer, fused=optimizer.name == "adamw")
        size = 4 * ranks * self.micro_batches
        return run_of(self.model, optimizer, batch_size=size, precision=self.precision)


SIZES = [
    Case("fsdp2", name, ODD)
    for name in ("adamw", "mars-adamw", "mars-m", "bfloat16 last_grad", "exact")
]
PEAKS = [
    Case(mode, "adamw", precision=precision, micro_batches=micro_batches)
    for mode, precision, micro_batches in (
        ("ddp", "float32", 1),
        ("ddp", "bfloat16", 2),
        ("fsdp2", "float32", 1),
        ("fsdp2", "float32", 2),
        ("fsdp2", "bfloat16", 1),
    )
]
CASES = [*SIZES, *PEAKS, Case("ddp", "mars-m", replace(WIDE, context_length=8))]


def wrapped(case: Case):
    """Return a model as `mars.training.parallel` divides it, and what accumulates."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    net = GPT2(case.model, generator=torch.Generator().manual_seed(0))
    if case.mode == "ddp":
        ddp = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
        return ddp, lambda is_last: nullcontext() if is_last else ddp.no_sync()
    mesh = init_device_mesh("cpu", (RANKS,))
    half = case.precision == "bfloat16"
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if half else None,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,
    )
    for block in net.h:
        fully_shard([block.attn, block.mlp] if half else block, mesh=mesh, mp_policy=policy)
    fully_shard(net, mesh=mesh)

    def accumulate(is_last: bool):
        net.set_requires_gradient_sync(is_last)
        return nullcontext()

    return net, accumulate


def local_bytes(tensor: torch.Tensor) -> int:
    part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part.nbytes if tensor.ndim else 0


def held(case: Case) -> dict[str, int]:
    """Return what a rank holds after two steps, and the peak of a third."""
    net, accumulate = wrapped(case)
    run = case.run(ranks=1)
    optimizer = build_optimizer(run.optimizer, net)
    task = LanguageModeling(None, 1, None, torch.device("cpu"), None)
    stepper = Stepper(net, optimizer, task, config=run.training, accumulate=accumulate)
    for number in range(2):
        stepper(batch(run, seed=number), measure=False)
    parts = optimizer.parts if isinstance(optimizer, Together) else [optimizer]
    states = [value for part in parts for state in part.state.values() for value in state.values()]
    params = list(net.parameters())
    found = {
        "parameters": sum(local_bytes(param) for param in params),
        "gradients": sum(local_bytes(param.grad) for param in params),
        "optimizer_state": sum(local_bytes(s) for s in states if isinstance(s, torch.Tensor)),
    }
    standing = found["parameters"] + found["optimizer_state"]
    if case.mode == "ddp":  # its buckets stay
        standing += found["gradients"]
    optimizer.zero_grad()
    peak, _ = held_bytes(lambda: stepper(batch(run, seed=2), measure=False))
    return {**found, "peak": standing + peak}


def rank_program(rank: int, folder: str) -> None:
    """Write what a rank holds in every case."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS
    )
    found = {case.name: held(case) for case in CASES}
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()

"""Real training steps of small models, measured; what a plan predicts is held against them."""

from dataclasses import replace

import torch
from torch import Tensor

from mars.bench.measure import held_bytes
from mars.config.schema import Model, Optimizer, Run, Training
from mars.models.gpt2 import GPT2
from mars.optim.engines import eager
from mars.planning import scratch
from mars.planning.estimate import Estimate, estimate, inventory_of
from mars.planning.gpus import gpu_of
from mars.planning.layout import Layout
from mars.planning.request import Request
from mars.training.hardware import optimizer_bytes
from mars.training.optimizers import build_optimizer
from mars.training.step import Stepper
from mars.training.task import LanguageModeling


def like_a_gpu(monkeypatch) -> None:
    """Let the eager engine go through a CPU's tensors as it does on a GPU, but in small chunks."""
    monkeypatch.setattr(eager, "_has_blocks", lambda *_: False)
    monkeypatch.setattr(scratch, "_CHUNK", eager._CHUNK_ELEMENTS["cpu"])


ALONE = Layout("none", replicas=1, shards=1)
WIDE = Model(layers=3, heads=4, width=128, context_length=64, vocab_size=512)
# Few tokens: gradients and state are the most of it.
SHORT = replace(WIDE, context_length=8, layers=4)
# Nothing but logits counts.
WORDY = replace(WIDE, width=32, layers=2, vocab_size=8192)
SHAPES = {"wide": WIDE, "short": SHORT, "wordy": WORDY, "bias": replace(WIDE, bias=True)}

OPTIMIZERS = {
    "mars-adamw": Optimizer(name="mars-adamw"),
    "mars-lion": Optimizer(name="mars-lion"),
    "mars-shampoo": Optimizer(name="mars-shampoo"),
    "mars-m": Optimizer(name="mars-m"),
    "exact": Optimizer(name="mars-adamw", exact=True),
    "exact mars-m": Optimizer(name="mars-m", exact=True),
    "lean": Optimizer(name="mars-adamw", lean=True, clip="none", second_moment="gradient"),
    "lean mars-m": Optimizer(name="mars-m", lean=True, clip="none"),
    "bfloat16 last_grad": Optimizer(name="mars-adamw", last_grad_dtype="bfloat16"),
    "optimize_1d": Optimizer(name="mars-adamw", optimize_1d=True),
    "adamw": Optimizer(name="adamw"),
    "nadamw": Optimizer(name="nadamw"),
    "lion": Optimizer(name="lion"),
    "muon": Optimizer(name="muon"),
}


def run_of(model: Model = WIDE, optimizer: Optimizer | None = None, **training: object) -> Run:
    """Return a run of one micro-batch of four sequences, unless it says otherwise."""
    keys = {"batch_size": 4, "micro_batch_size": 4, **training}
    return Run(model=model, optimizer=optimizer or Optimizer(), training=Training(**keys))


def predicted(run: Run) -> Estimate:
    """Return the plan of a run on one GPU."""
    request = Request(run, 1, gpu_of("h100"), None, None)
    return estimate(request, ALONE, inventory_of(request))


def batch(run: Run, *, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Return the micro-batches of one step."""
    generator = torch.Generator().manual_seed(seed)
    size = run.training.micro_batch_size
    shape = (size, run.model.context_length)
    return [
        tuple(torch.randint(run.model.vocab_size, shape, generator=generator) for _ in range(2))
        for _ in range(run.training.batch_size // size)
    ]


class Measured:
    """A model that has taken two steps: what its optimizer holds, and the peak of a third."""

    def __init__(self, run: Run) -> None:
        model = GPT2(
            run.model,
            generator=torch.Generator().manual_seed(0),
            activation_checkpointing=run.training.activation_checkpointing,
        )
        self.optimizer = build_optimizer(run.optimizer, model)
        task = LanguageModeling(
            batches=None,
            count_per_step=1,
            validation=None,
            device=torch.device("cpu"),
            autocast=None,
        )
        stepper = Stepper(model, self.optimizer, task, config=run.training)
        for number in range(2):
            stepper(batch(run, seed=number), measure=False)
        self.state_bytes = optimizer_bytes(self.optimizer)
        parameters = sum(param.nbytes for param in model.parameters())
        # The profiler does not see memory freed that it has not seen allocated.
        self.optimizer.zero_grad()
        held, _ = held_bytes(lambda: stepper(batch(run, seed=2), measure=False))
        self.peak = parameters + self.state_bytes + held

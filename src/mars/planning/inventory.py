"""Every parameter of a model with what its optimizer keeps of it, from shapes on the meta device.

MARS says itself what it keeps (`MARS.describe`); the other optimizers take a step on tensors
without memory, and what they then hold is counted.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from mars import MARS, param_groups
from mars.config import schema
from mars.models.gpt2 import GPT2
from mars.optim.state import visit_bytes
from mars.planning.passes import moved_bytes
from mars.training.optimizers import Together, build_optimizer

_BLOCK = re.compile(r"h\.(\d+)\.")
_BASELINE_RULES = {"adamw": "adamw", "nadamw": "adamw", "lion": "lion", "muon": "muon"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One parameter; the bytes are those of the whole tensor."""

    name: str
    shape: tuple[int, ...]
    role: str
    rule: str
    state_bytes: int
    visit_bytes: int
    """What an exact step holds of its gradient at the previous point."""
    moved_bytes: int
    """What a step reads and writes."""

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def block(self) -> int | None:
        """The number of its transformer block, if it is in one."""
        match = _BLOCK.match(self.name)
        return int(match[1]) if match else None

    @property
    def is_orthogonalized(self) -> bool:
        """Whether its rule is a matrix rule."""
        return self.rule in ("mars-shampoo", "mars-m", "muon")


@dataclass(frozen=True, slots=True)
class Inventory:
    """All parameters of a model under an optimizer."""

    entries: tuple[Entry, ...]
    flops_per_token: int

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    @property
    def elements(self) -> int:
        """The number of parameters."""
        return sum(entry.elements for entry in self)

    @property
    def state_bytes(self) -> int:
        """The bytes of all state, step counts left out."""
        return sum(entry.state_bytes for entry in self)

    @property
    def outside(self) -> tuple[Entry, ...]:
        """What is in no block: embeddings and the last norm."""
        return tuple(entry for entry in self if entry.block is None)

    @property
    def first_block(self) -> tuple[Entry, ...]:
        """The parameters of one block; all blocks are alike."""
        return tuple(entry for entry in self if entry.block == 0)


def take_inventory(model: schema.Model, optimizer: schema.Optimizer) -> Inventory:
    """Return the inventory of a shape under an optimizer; what cannot be is refused."""
    with torch.device("meta"):
        net = GPT2(model)
    made = build_optimizer(optimizer, net)
    names: dict[Tensor, str] = {param: name for name, param in net.named_parameters()}
    roles = {param: str(group["role"]) for group in param_groups(net) for param in group["params"]}
    parts = made.parts if isinstance(made, Together) else [made]
    entries = [
        Entry(
            name=names[param],
            shape=tuple(param.shape),
            role=roles[param],
            rule=rule,
            state_bytes=kept,
            visit_bytes=visited,
            moved_bytes=moved_bytes(rule, optimizer) * param.numel(),
        )
        for part in parts
        for param, rule, kept, visited in _kept(part, optimizer, roles)
    ]
    order = {name: position for position, name in enumerate(names.values())}
    return Inventory(
        tuple(sorted(entries, key=lambda entry: order[entry.name])), net.flops_per_token()
    )


def _kept(
    part: Optimizer, config: schema.Optimizer, roles: dict[Tensor, str]
) -> Iterator[tuple[Tensor, str, int, int]]:
    """Yield each parameter with its rule, its bytes of state and those of an exact visit."""
    params = [(param, group) for group in part.param_groups for param in group["params"]]
    is_baseline = config.name in _BASELINE_RULES
    if isinstance(part, MARS):
        for (param, group), row in zip(params, part.describe(), strict=True):
            rule = _BASELINE_RULES[config.name] if is_baseline else row.rule
            yield param, rule, row.state_bytes, visit_bytes(param, group)
        return
    for param, _ in params:
        param.grad = torch.zeros_like(param)
    part.step()
    for param, _ in params:
        held = [value for value in part.state[param].values() if isinstance(value, Tensor)]
        beside = config.name == "muon" and roles[param] != "matrix"
        rule = "adamw" if beside else _BASELINE_RULES[config.name]
        yield param, rule, sum(value.nbytes for value in held if value.ndim), 0

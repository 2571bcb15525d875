"""Direction rules: what a step does with the momentum m_t.

Each rule returns the directions d_t of a list of tensors, and the engine then writes
x <- x - lr * (d_t + weight_decay * x). All have one call shape,

    rule(tensors, gradients, recipe) -> directions

where ``tensors.exp_avgs`` holds m_t and ``gradients`` is what the second moment is built from.
"""

from collections.abc import Callable

from torch import Tensor

from mars.optim.buckets import Tensors
from mars.optim.routing import Recipe, Rule
from mars.optim.rules.adamw import adamw_direction
from mars.optim.rules.lion import lion_direction
from mars.optim.rules.muon import muon_direction
from mars.optim.rules.shampoo import shampoo_direction

DirectionRule = Callable[[Tensors, list[Tensor], Recipe], list[Tensor]]

RULES: dict[Rule, DirectionRule] = {
    "adamw": adamw_direction,
    "lion": lion_direction,
    "shampoo": shampoo_direction,
    "muon": muon_direction,
}

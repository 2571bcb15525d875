"""The parameters of a model by kind of layer; each has exactly one kind."""

from torch import nn

from mars.models.gpt2 import GPT2
from mars.optim.groups import param_groups

ALL = "all"
# What the two halves of a GPT-2 block are called in parameter names.
_HALVES = {"attn": "attention", "mlp": "mlp"}


def kinds_of(model: nn.Module) -> dict[str, str]:
    """Return the kind of each trainable parameter by name, in the model's order.

    Kinds are the roles of `mars.param_groups`: embedding, head, vector (norms and biases) and
    matrix; the matrices of a GPT-2 are told apart as attention and mlp.
    """
    roles = {name: group["role"] for group in param_groups(model) for name in group["param_names"]}
    is_gpt2 = isinstance(model, GPT2)
    return {
        name: _half(name) if is_gpt2 and roles[name] == "matrix" else roles[name]
        for name, _ in model.named_parameters()
        if name in roles
    }


def indices(kinds: dict[str, str]) -> dict[str, list[int]]:
    """Return the places of each kind's parameters, those of all parameters first."""
    names = list(kinds.values())
    found = {ALL: list(range(len(names)))}
    for kind in sorted(set(names)):
        found[kind] = [place for place, name in enumerate(names) if name == kind]
    return found


def _half(name: str) -> str:
    return next(_HALVES[part] for part in name.split(".") if part in _HALVES)

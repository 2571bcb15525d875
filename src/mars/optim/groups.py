"""A model's parameters by role; every parameter owned exactly once.

The roles matter to the matrix rules: hidden matrices are orthogonalised, while embeddings, heads
and vectors go to AdamW. MARS-AdamW and MARS-Lion treat every role but the vectors alike.
"""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, get_args

from torch import Tensor, nn

from mars.optim.options import Group, Role, nearest

# What the last layer of a classifier or language model is called in public model code.
_HEAD_NAMES = ("lm_head", "head", "heads", "classifier", "fc", "score", "logits", "unembed")


def param_groups(
    model: nn.Module,
    *,
    roles: Mapping[str, Role] | None = None,
    matrix: Mapping[str, Any] | None = None,
    embedding: Mapping[str, Any] | None = None,
    head: Mapping[str, Any] | None = None,
    vector: Mapping[str, Any] | None = None,
) -> list[Group]:
    """Return one parameter group per role for the trainable parameters of ``model``.

    Roles are found as follows, the first match winning:

    - ``roles``: patterns on the full parameter name (``fnmatch``), the last that matches winning;
    - vector: fewer than two dimensions, or a side of 1 when flattened to a matrix;
    - embedding: a parameter of ``nn.Embedding`` or ``nn.EmbeddingBag``; a head tied to it too;
    - head: what ``model.get_output_embeddings()`` returns; else the last linear layer of modules
      with the usual name of a head; else the model's last layer, if it is linear;
    - matrix: everything else.

    Args:
        model: any module; shared parameters are listed once, under their first name. Ranks that
            hold it in DistributedDataParallel divide the work of the matrix rules.
        roles: overrides, such as ``{"*.gate.weight": "vector"}``. A pattern that matches no
            parameter is an error.
        matrix, embedding, head, vector: options of that role's group, such as
            ``matrix={"weight_decay": 0.1}``.

    Example:
        >>> model = nn.Sequential(nn.Embedding(100, 16), nn.Linear(16, 16), nn.Linear(16, 100))
        >>> optimizer = MARS(mars.param_groups(model), lr=6e-3, mars_type="mars-m")
    """
    replicas: Group = {}
    if isinstance(model, nn.parallel.DistributedDataParallel):
        replicas["process_group"] = model.process_group
        model = model.module
    by_role: dict[Role, list[tuple[str, Tensor]]] = {role: [] for role in get_args(Role)}
    for name, param, role in _roles(model, roles or {}):
        by_role[role].append((name, param))
    options = {"matrix": matrix, "embedding": embedding, "head": head, "vector": vector}
    return [
        {
            "params": [param for _, param in owned],
            "param_names": [name for name, _ in owned],
            "role": role,
            **replicas,
            **(options[role] or {}),
        }
        for role, owned in by_role.items()
        if owned
    ]


def _roles(model: nn.Module, overrides: Mapping[str, Role]) -> Iterator[tuple[str, Tensor, Role]]:
    named = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    _check_overrides(overrides, [name for name, _ in named])
    embeddings = _parameters_of(
        m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)
    )
    heads = _parameters_of(_heads(model))
    for name, param in named:
        matched = [role for pattern, role in overrides.items() if fnmatchcase(name, pattern)]
        if matched:
            yield name, param, matched[-1]
        elif _is_vector(param):
            yield name, param, "vector"
        elif id(param) in embeddings:
            yield name, param, "embedding"
        elif id(param) in heads:
            yield name, param, "head"
        else:
            yield name, param, "matrix"


def _check_overrides(overrides: Mapping[str, Role], names: list[str]) -> None:
    for pattern, role in overrides.items():
        if role not in get_args(Role):
            raise ValueError(
                f"unknown role {role!r} for {pattern!r}{nearest(role, get_args(Role))}"
            )
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(
                f"the pattern {pattern!r} in roles matches no trainable parameter"
                f"{nearest(pattern, names)}"
            )


def _is_vector(param: Tensor) -> bool:
    return param.ndim < 2 or param.shape[0] == 1 or param.numel() == param.shape[0]


def _parameters_of(modules: Iterator[nn.Module]) -> set[int]:
    return {id(param) for module in modules for param in module.parameters()}


def _heads(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that turn features into outputs."""
    declared = getattr(model, "get_output_embeddings", lambda: None)()
    if isinstance(declared, nn.Module):
        yield declared
        return
    named = [_last_linear(m) for name, m in model.named_modules() if _is_head_name(name)]
    if any(named):
        yield from (layer for layer in named if layer is not None)
        return
    layers = [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]
    if len(layers) > 1 and isinstance(layers[-1], nn.Linear):
        yield layers[-1]


def _is_head_name(name: str) -> bool:
    """Whether a module is called like a head and is not part of a repeated layer."""
    *above, last = name.split(".")
    return last in _HEAD_NAMES and not any(part.isdecimal() for part in above)


def _last_linear(module: nn.Module) -> nn.Module | None:
    """Return a head's last linear layer: what comes before it in the head is hidden."""
    layers = [m for m in module.modules() if isinstance(m, nn.Linear)]
    return layers[-1] if layers else None

"""Optimizers by name, each with groups by role.

All of them decay matrices and embeddings and leave vectors undecayed, except where MARS's own
``weight_decay_1d`` says otherwise. Embeddings and vectors run AdamW beside the matrix rules.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mars import MARS, param_groups
from mars.config import schema
from mars.config.errors import RefusedError
from mars.optim.options import Role
from mars.optim.orthogonalize import default_dtype

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_ADAMW_BETAS = (0.9, 0.95)
_LION_BETAS = (0.9, 0.99)
_MUON_BETA = 0.95


class Together:
    """Several optimizers, of different parameters, that step as one."""

    def __init__(self, parts: list[Optimizer]) -> None:
        self.parts = parts

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all parts; a change of one reaches its part."""
        return [group for part in self.parts for group in part.param_groups]

    def step(self) -> None:
        """Take a step with every part."""
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        """Clear the gradients of every part."""
        for part in self.parts:
            part.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the parts, in order."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for part, own in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(own)


AnyOptimizer = Optimizer | Together


def build_optimizer(
    config: schema.Optimizer, model: nn.Module, *, skip_nonfinite: bool = True
) -> AnyOptimizer:
    """Return the optimizer a config names, for a model that is where and as it will train.

    ``skip_nonfinite`` is for exact mode, in which the optimizer alone sees the gradients before it
    uses them; otherwise the loop looks at their norm.
    """
    if config.name in _BUILDERS:
        return _BUILDERS[config.name](config, model)
    return _mars(config, model, nonfinite="skip" if skip_nonfinite else "raise")


def _given(**options: Any) -> dict[str, Any]:
    """Return the options that have a value: the others are the optimizer's to choose."""
    return {name: value for name, value in options.items() if value is not None}


def _mars(config: schema.Optimizer, model: nn.Module, *, nonfinite: str) -> MARS:
    options = _given(
        mars_type=config.name,
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        gamma=config.gamma,
        is_approx=None if config.exact is None else not config.exact,
        optimize_1d=config.optimize_1d,
        lr_1d=config.lr_1d,
        betas_1d=config.betas_1d,
        weight_decay_1d=config.weight_decay_1d,
        max_norm=config.max_norm,
        second_moment=config.second_moment,
        lean=config.lean,
        fused=config.fused or None,
        nonfinite=nonfinite if config.exact else None,
    )
    if config.clip is not None:
        options["clip"] = None if config.clip == "none" else config.clip
    if config.last_grad_dtype is not None:
        options["last_grad_dtype"] = _DTYPES[config.last_grad_dtype]
    try:
        return MARS(param_groups(model, roles=_overrides(config, model)), **options)
    except ValueError as error:
        raise RefusedError(f"optimizer: {error}") from error


def _overrides(config: schema.Optimizer, model: nn.Module) -> dict[str, Role]:
    """Return the roles that a config gives parameters: those of convolutions, if it says so."""
    if config.convolutions != "vectors":
        return {}
    bare = getattr(model, "module", model)  # in DDP
    convolutions = (name for name, m in bare.named_modules() if isinstance(m, nn.Conv2d))
    return {f"{name}.weight": "vector" for name in convolutions}


def _decayed(
    model: nn.Module, *, weight_decay: float, roles: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Return groups of some roles; vectors are not decayed."""
    return [
        {
            "params": group["params"],
            "weight_decay": 0.0 if group["role"] == "vector" else weight_decay,
        }
        for group in param_groups(model)
        if group["role"] in roles
    ]


def _replicas(model: nn.Module) -> dict[str, Any]:
    """Return what tells MARS that processes hold the same values, for groups made without it."""
    return {k: v for k, v in param_groups(model)[0].items() if k == "process_group"}


_ALL_ROLES = ("matrix", "embedding", "head", "vector")


def _adamw(config: schema.Optimizer, model: nn.Module) -> Optimizer:
    groups = _decayed(model, weight_decay=config.weight_decay, roles=_ALL_ROLES)
    return torch.optim.AdamW(
        groups,
        lr=config.lr,
        betas=config.betas or _ADAMW_BETAS,
        fused=_can_fuse(model) and config.fused,
        **_given(eps=config.eps),
    )


def _nadamw(config: schema.Optimizer, model: nn.Module) -> Optimizer:
    groups = _decayed(model, weight_decay=config.weight_decay, roles=_ALL_ROLES)
    return torch.optim.NAdam(
        groups,
        lr=config.lr,
        betas=config.betas or _ADAMW_BETAS,
        decoupled_weight_decay=True,
        **_given(eps=config.eps),
    )


def _lion(config: schema.Optimizer, model: nn.Module) -> Optimizer:
    try:
        from pytorch_optimizer import Lion
    except ModuleNotFoundError as error:
        raise RefusedError(
            "optimizer.name = lion needs pytorch_optimizer: pip install 'mars-optimizer[train]'"
        ) from error
    groups = _decayed(model, weight_decay=config.weight_decay, roles=_ALL_ROLES)
    made: Optimizer = Lion(
        groups, lr=config.lr, betas=config.betas or _LION_BETAS, weight_decouple=True
    )
    return made


def _muon(config: schema.Optimizer, model: nn.Module) -> Together:
    """Return Muon on hidden matrices and AdamW beside it."""
    matrices = _decayed(model, weight_decay=config.weight_decay, roles=("matrix",))
    decay = config.weight_decay if config.weight_decay_1d is None else config.weight_decay_1d
    rest = _decayed(model, weight_decay=decay, roles=("embedding", "head", "vector"))
    momentum = config.betas[0] if config.betas else _MUON_BETA
    muon = _nesterov_muon(matrices, model, lr=config.lr, momentum=momentum)
    adamw = torch.optim.AdamW(
        rest,
        lr=config.lr if config.lr_1d is None else config.lr_1d,
        betas=config.betas_1d or _ADAMW_BETAS,
        fused=_can_fuse(model) and config.fused,
        **_given(eps=config.eps),
    )
    return Together([muon, adamw])


def _nesterov_muon(
    groups: list[dict[str, Any]], model: nn.Module, *, lr: float, momentum: float
) -> Optimizer:
    """Return torch's Muon, or the same algorithm in float32, or divided over processes.

    torch multiplies in bfloat16, which takes ten times as long on hardware without it, and whole
    matrices in every process. MARS-M with gamma = 1 - beta1 and without a clip is Nesterov Muon
    (docs/algorithm.md).
    """
    param, replicas = groups[0]["params"][0], _replicas(model)
    is_divided = bool(replicas) or hasattr(param, "device_mesh")
    if default_dtype(param.device) == torch.bfloat16 and not is_divided:
        return torch.optim.Muon(groups, lr=lr, momentum=momentum, adjust_lr_fn="match_rms_adamw")
    return MARS(
        [{**group, "role": "matrix", **replicas} for group in groups],
        lr=lr,
        betas=(momentum, momentum),
        gamma=1 - momentum,
        mars_type="mars-m",
        clip=None,
        lean=True,
    )


def _can_fuse(model: nn.Module) -> bool:
    """Whether torch has fused kernels for a model's parameters."""
    parameter: Tensor = next(model.parameters())
    return parameter.device.type in ("cpu", "cuda", "mps", "xpu")


_BUILDERS: dict[str, Callable[[schema.Optimizer, nn.Module], Optimizer | Together]] = {
    "adamw": _adamw,
    "nadamw": _nadamw,
    "lion": _lion,
    "muon": _muon,
}

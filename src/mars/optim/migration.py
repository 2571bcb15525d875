"""Switching a running job to MARS: what AdamW has learnt, as MARS keeps it."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import StateDict

from mars.optim.nonfinite import parameter_name
from mars.optim.optimizer import MARS
from mars.optim.options import Group
from mars.optim.routing import gamma_at, previous_of, route
from mars.optim.state import State, create_state, state_dtypes


def from_adamw(state_dict: StateDict, optimizer: MARS) -> StateDict:
    """Return an AdamW ``state_dict`` as one for ``optimizer``, whose options it keeps.

    Moments and step counts carry over. AdamW keeps no previous gradient; its bias-corrected average
    is the best guess at it, and makes the first correction that of a gradient against the average.
    In exact mode the present point stands for the previous one, so the first correction is zero.

    The groups of both must list the same parameters in the same order.

    Example:
        >>> adamw = torch.optim.AdamW(model.parameters())  # and trained
        >>> optimizer = MARS(model.parameters(), lr=6e-3)
        >>> optimizer.load_state_dict(mars.from_adamw(adamw.state_dict(), optimizer))
    """
    groups = optimizer.param_groups
    packed = optimizer.state_dict()
    sizes = [len(group["params"]) for group in state_dict["param_groups"]]
    if sizes != [len(group["params"]) for group in groups]:
        raise ValueError(
            f"the state_dict has groups of {sizes} parameters, the optimizer of "
            f"{[len(group['params']) for group in groups]}; make both from the same groups"
        )
    theirs = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    ours = chain.from_iterable(group["params"] for group in packed["param_groups"])
    state = {}
    for index, (group, saved) in enumerate(zip(groups, state_dict["param_groups"], strict=True)):
        for position, param in enumerate(group["params"]):
            known, key = state_dict["state"].get(next(theirs)), next(ours)
            if known:
                name = parameter_name(groups, index, position)
                _check(known, param, name=name)
                beta1 = saved.get("betas", (0.9,))[0]
                state[key] = _converted(known, param, group, beta1=beta1)
    return {"state": state, "param_groups": packed["param_groups"]}


def _check(known: Mapping[str, Any], param: Tensor, *, name: str) -> None:
    missing = [key for key in ("step", "exp_avg", "exp_avg_sq") if key not in known]
    if missing:
        raise ValueError(f"the state_dict has no {', '.join(missing)} for {name}: not AdamW's?")
    if known["exp_avg"].shape != param.shape:
        shape = tuple(known["exp_avg"].shape)
        raise ValueError(f"the state_dict's exp_avg for {name} has shape {shape}")


@torch.no_grad()
def _converted(known: Mapping[str, Any], param: Tensor, group: Group, *, beta1: float) -> State:
    state = create_state(param, group, keep_point=True)
    count = float(known["step"])
    average = known["exp_avg"].to(state["exp_avg"].device, state["exp_avg"].dtype)
    guess = average / (1 - beta1**count) if count else average
    state["step"].fill_(count)
    for key in state_dtypes(param, group):
        if key in known:
            state[key].copy_(known[key])
    if "max_exp_avg_sq" in state and "max_exp_avg_sq" not in known:
        state["max_exp_avg_sq"].copy_(known["exp_avg_sq"])
    way = route(param, group)
    if way.reduced and previous_of(way, group) == "folded":
        # The lean buffer holds m_t - gamma_{t+1} g_t.
        state["exp_avg"].sub_(guess, alpha=gamma_at(group, int(count) + 1))
    if "last_grad" in state:
        state["last_grad"].copy_(-guess if group["maximize"] else guess)
    if "last_param" in state:
        state["last_param"].copy_(param)
    return state

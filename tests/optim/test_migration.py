"""Switching a running AdamW job to MARS."""

import pytest
import torch
from torch import nn

import mars
from mars import MARS
from problems import LEAN, TYPES, assert_close, parameters, train


def adamw_job(steps=20, **options):
    params = parameters((6, 4), (4,), dtype=torch.float64)
    optimizer = torch.optim.AdamW(params, lr=0.01, betas=(0.9, 0.97), **options)
    train(optimizer, params, steps)
    return params, optimizer


def switched(params, adamw, **options):
    copies = [nn.Parameter(p.detach().clone()) for p in params]
    optimizer = MARS(copies, lr=0.01, **options)
    optimizer.load_state_dict(mars.from_adamw(adamw.state_dict(), optimizer))
    return copies, optimizer


@pytest.mark.parametrize("form", [{"clip": None}, LEAN], ids=["buffered", "lean"])
def test_without_a_correction_the_switch_is_not_noticed(form):
    params, adamw = adamw_job(weight_decay=0.1)
    copies, optimizer = switched(
        params, adamw, gamma=0.0, betas=(0.9, 0.97), weight_decay=0.1, optimize_1d=True, **form
    )
    train(adamw, params, 10, seed=7)
    train(optimizer, copies, 10, seed=7)
    assert_close(params, copies, 1e-13)


@pytest.mark.parametrize("mars_type", TYPES)
def test_the_lean_form_continues_like_the_buffered_one(mars_type):
    params, adamw = adamw_job()
    options = {"mars_type": mars_type, "gamma": 0.1, "optimize_1d": True, "betas": (0.9, 0.97)}
    lean, lean_optimizer = switched(params, adamw, **options, **LEAN)
    stored, optimizer = switched(params, adamw, **options, **{**LEAN, "lean": False})
    train(lean_optimizer, lean, 10, seed=7)
    train(optimizer, stored, 10, seed=7)
    assert_close(lean, stored, 1e-12)


@pytest.mark.parametrize("mars_type", TYPES)
@pytest.mark.parametrize("amsgrad", [False, True])
def test_steps_and_moments_carry_over(mars_type, amsgrad):
    params, adamw = adamw_job()
    copies, optimizer = switched(params, adamw, mars_type=mars_type, amsgrad=amsgrad)
    for old, new in zip(params, copies, strict=True):
        theirs, ours = adamw.state[old], optimizer.state[new]
        assert ours["step"] == 20
        for key in ours.keys() & {"exp_avg", "exp_avg_sq"}:
            assert torch.equal(ours[key], theirs[key])
        if "max_exp_avg_sq" in ours:
            assert torch.equal(ours["max_exp_avg_sq"], theirs["exp_avg_sq"])
    assert optimizer.param_groups[0]["lr"] == 0.01
    assert optimizer.param_groups[0]["betas"] == (0.95, 0.99)


def test_in_exact_mode_the_present_point_is_the_previous_one():
    params, adamw = adamw_job()
    copies, optimizer = switched(params, adamw, is_approx=False)
    with optimizer.previous_point():
        assert_close(copies, params, 0.0)


def test_what_is_not_adamw_is_refused():
    params, adamw = adamw_job(2)
    optimizer = MARS(params)
    sgd = torch.optim.SGD(params, momentum=0.9)
    train(sgd, params, 1)
    with pytest.raises(ValueError, match=r"no step, exp_avg, exp_avg_sq for parameter 0"):
        mars.from_adamw(sgd.state_dict(), optimizer)
    with pytest.raises(ValueError, match=r"groups of \[2\] parameters, the optimizer of \[1, 1\]"):
        mars.from_adamw(adamw.state_dict(), MARS([{"params": params[:1]}, {"params": params[1:]}]))
    with pytest.raises(ValueError, match=r"exp_avg for parameter 0 .* has shape \(6, 4\)"):
        mars.from_adamw(adamw.state_dict(), MARS(parameters((5, 4), (4,))))

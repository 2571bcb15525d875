"""A NaN or an infinity in one gradient."""

import pytest
import torch
from torch import nn

from mars import MARS
from problems import LEAN, TYPES, assert_equal, parameters, train, trained

BAD = [float("nan"), float("inf"), float("-inf")]


def spoil(params, value):
    for param in params:
        param.grad = torch.ones_like(param)
    params[-1].grad[-1] = value


def snapshot(params, optimizer):
    return [p.detach().clone() for p in params] + [
        value.clone() for state in optimizer.state.values() for value in state.values()
    ]


@pytest.mark.parametrize("mars_type", TYPES)
@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("capturable", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("form", [{}, {"clip": "global"}, LEAN], ids=["plain", "global", "lean"])
def test_skip_leaves_everything_untouched_and_counts(mars_type, value, capturable, form):
    options = {"mars_type": mars_type, "nonfinite": "skip", "capturable": capturable, **form}
    params, optimizer = trained(2, **options)
    before = snapshot(params, optimizer)
    spoil(params, value)
    optimizer.step()
    optimizer.step()
    assert_equal(snapshot(params, optimizer), before)
    assert optimizer.skipped_steps == 2
    train(optimizer, params, 1, seed=3)
    assert optimizer.skipped_steps == 2
    assert optimizer.state[params[0]]["step"] == 3


def test_the_first_step_can_be_skipped():
    params = parameters((3, 2), (2,))
    optimizer = MARS(params, nonfinite="skip", capturable=True)
    spoil(params, float("nan"))
    optimizer.step()
    assert_equal(params, parameters((3, 2), (2,)))
    train(optimizer, params, 2)
    clean, _ = trained(2, shapes=((3, 2), (2,)), capturable=True)
    assert_equal(params, clean)


@pytest.mark.parametrize("capturable", [False, True], ids=["host", "device"])
def test_after_a_skipped_first_step_exact_mode_visits_the_present_point(capturable):
    param = nn.Parameter(torch.full((3, 2), 5.0))
    options = {"is_approx": False, "lr": 0.1, "capturable": capturable}
    optimizer = MARS([param], nonfinite="skip", **options)
    seen, grads = [], iter([float("nan"), 1.0, 1.0])

    def closure():
        seen.append(float(param.detach().flatten()[0]))
        param.grad = torch.full_like(param, next(grads))
        return 0.0

    optimizer.step(closure)
    optimizer.step(closure)
    assert seen == [5.0] * 3
    clean = nn.Parameter(torch.full((3, 2), 5.0))
    clean.grad = torch.ones_like(clean)
    MARS([clean], **options).step()
    torch.testing.assert_close(param, clean)


def test_the_count_of_skipped_steps_is_saved():
    params, optimizer = trained(1, nonfinite="skip")
    spoil(params, float("nan"))
    optimizer.step()
    fresh = MARS(parameters((6, 4), (4,)))
    fresh.load_state_dict(optimizer.state_dict())
    assert fresh.skipped_steps == 1


@pytest.mark.parametrize("value", BAD)
def test_raise_names_the_parameter_and_changes_nothing(value):
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    optimizer = MARS(model.named_parameters(), nonfinite="raise")
    params = list(model.parameters())
    train(optimizer, params, 2)
    before = snapshot(params, optimizer)
    spoil(params, value)
    with pytest.raises(RuntimeError, match=r"'1\.bias' of shape \(2,\)"):
        optimizer.step()
    assert_equal(snapshot(params, optimizer), before)


def test_raise_says_which_parameter_when_it_has_no_name():
    params, optimizer = trained(1, nonfinite="raise")
    spoil(params, float("nan"))
    with pytest.raises(RuntimeError, match=r"parameter 1 of group 0 of shape \(4,\)"):
        optimizer.step()


def test_raise_names_a_parameter_of_a_group_that_asked():
    silent, asking = parameters((3, 2), (3, 2))
    optimizer = MARS([{"params": [silent]}, {"params": [asking], "nonfinite": "raise"}])
    silent.grad = torch.full((3, 2), float("nan"))
    asking.grad = silent.grad.clone()
    with pytest.raises(RuntimeError, match="parameter 0 of group 1"):
        optimizer.step()


def test_propagate_does_what_torch_optim_does():
    params, optimizer = trained(2)
    spoil(params, float("nan"))
    optimizer.step()
    assert params[0].isfinite().all()
    assert params[1].isnan().tolist() == [False, False, False, True]


def test_skip_concerns_the_groups_that_ask_for_it():
    asking, other = parameters((3, 2), (3, 2))
    optimizer = MARS([{"params": [asking], "nonfinite": "skip"}, {"params": [other]}])
    asking.grad = torch.full((3, 2), float("nan"))
    other.grad = torch.ones(3, 2)
    before = [asking.detach().clone(), other.detach().clone()]
    optimizer.step()
    assert torch.equal(asking, before[0])
    assert not torch.equal(other, before[1])
    assert optimizer.state[other]["step"] == 1


def test_empty_gradients_are_finite():
    param = nn.Parameter(torch.zeros(0, 3))
    param.grad = torch.zeros(0, 3)
    for policy in ("skip", "raise"):
        MARS([param], nonfinite=policy).step()

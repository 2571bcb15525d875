"""What the constructor accepts and how it refuses."""

import inspect

import pytest
import torch
from torch import nn

from mars import MARS
from problems import LEAN, assert_equal, parameters, train, trained

SIGNATURE = """
params, lr=0.003, betas=(0.95, 0.99), eps=1e-08, weight_decay=0.0, amsgrad=False, gamma=0.025,
is_approx=True, mars_type='mars-adamw', optimize_1d=False, lr_1d=0.003, betas_1d=(0.9, 0.95),
weight_decay_1d=0.1, *, clip='tensor', max_norm=1.0, second_moment='corrected', lean=False,
last_grad_dtype=None, nonfinite='propagate', maximize=False, foreach=None, fused=None,
capturable=False, differentiable=False
"""


def test_the_signature_is_the_promised_one():
    signature = inspect.signature(MARS)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    shown = str(signature.replace(parameters=bare, return_annotation=signature.empty))
    assert shown == f"({' '.join(SIGNATURE.split())})"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, r"lr must be finite and not negative, got -1.0"),
        ({"lr": float("nan")}, r"lr must be finite"),
        ({"lr": "fast"}, r"lr must be a number, got 'fast' of type str"),
        ({"lr": torch.ones(2)}, r"lr as a tensor must have one element, got 2"),
        ({"lr_1d": -0.1}, r"lr_1d must be finite"),
        ({"eps": -1e-8}, r"eps must be finite"),
        ({"weight_decay": -0.1}, r"weight_decay must"),
        ({"weight_decay_1d": float("inf")}, r"weight_decay_1d must"),
        ({"betas": (0.9, 1.0)}, r"betas must lie in \[0, 1\), got \(0.9, 1.0\)"),
        ({"betas": 0.9}, r"betas must be a pair of numbers, got 0.9"),
        ({"betas_1d": (0.9, 0.99, 0.999)}, r"betas_1d must be a pair"),
        ({"gamma": 1.7}, r"gamma must lie in \[0, 1\], got 1.7; 0 turns the correction off"),
        ({"gamma": "0.025"}, r"gamma must be a number or a callable.*type str"),
        ({"mars_type": "mars-adam"}, r"unknown mars_type 'mars-adam'; did you mean 'mars-adamw'"),
        ({"clip": "tensors"}, r"unknown clip 'tensors'; did you mean 'tensor'"),
        ({"clip": "none"}, r"unknown clip 'none'; did you mean None\?"),
        ({"clip": 1.0}, r"unknown clip 1.0; choose from 'tensor', 'global', None"),
        ({"second_moment": "raw"}, r"unknown second_moment 'raw'"),
        ({"nonfinite": "ignore"}, r"unknown nonfinite 'ignore'"),
        ({"max_norm": 0.0}, r"max_norm must be positive, got 0; clip=None turns"),
        ({"last_grad_dtype": torch.float16}, r"last_grad_dtype must be None or one of torch.bfl"),
        ({"max_norm": float("inf")}, r"max_norm must be finite.*clip=None turns"),
        ({"max_norm": "1"}, r"max_norm must be a number, got '1'"),
        ({"amsgrad": "no"}, r"amsgrad must be True or False, got 'no'"),
        ({"foreach": "yes"}, r"foreach must be True, False or None"),
        ({"last_grad_dtype": "bfloat16"}, r"last_grad_dtype must be None or one of"),
        ({"lean": True}, r"lean=True needs clip=None, got clip='tensor'"),
        ({"lean": True, "clip": None}, r"lean=True needs second_moment='gradient'"),
        ({**LEAN, "last_grad_dtype": torch.bfloat16}, r"leave last_grad_dtype=None"),
        ({"foreach": True, "fused": True}, r"exclude each other"),
        ({"capturable": True, "gamma": lambda _: 0.1}, r"capturable=True cannot call gamma"),
    ],
)
def test_bad_options_are_refused_by_name(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        MARS(parameters((3, 2)), **options)


@pytest.mark.parametrize("mars_type", ["mars-lion", "mars-shampoo", "mars-m"])
def test_lean_asks_for_a_second_moment_only_where_there_is_one(mars_type):
    MARS(parameters((3, 2)), mars_type=mars_type, lean=True, clip=None)


def test_a_bad_group_leaves_the_optimizer_as_it_was():
    _, optimizer = trained(1)
    (extra,) = parameters((2, 2), seed=5)
    for bad in ({"lr": -1.0}, {"role": "matrices"}, {"weigth_decay": 0.1}, {"gamma_": 0.1}):
        with pytest.raises(ValueError, match=r"lr|role|weight_decay|gamma"):
            optimizer.add_param_group({"params": [extra], **bad})
    assert len(optimizer.param_groups) == 1


def test_misspelt_group_entries_are_refused_and_foreign_ones_kept():
    params = parameters((3, 2))
    with pytest.raises(ValueError, match=r"'weigth_decay'; did you mean 'weight_decay'"):
        MARS([{"params": params, "weigth_decay": 0.1}])
    optimizer = MARS([{"params": params, "name": "decoder"}])
    assert optimizer.param_groups[0]["name"] == "decoder"


def test_the_callers_group_is_not_written_to():
    group = {"params": parameters((3, 2)), "lr": 0.1}
    MARS([group])
    assert set(group) == {"params", "lr"}


@pytest.mark.parametrize(
    ("param", "options", "message"),
    [
        (torch.zeros(3), {"role": "matrix"}, r"role='matrix' needs two dimensions.*\(3,\)"),
        (torch.zeros(2, 2, dtype=torch.complex64), {"last_grad_dtype": torch.bfloat16}, "complex"),
        (torch.zeros(2, 2).to(torch.float8_e4m3fn), {}, "dtype torch.float8_e4m3fn"),
    ],
)
def test_parameters_that_cannot_be_treated_as_told_are_refused(param, options, message):
    with pytest.raises(ValueError, match=message):
        MARS([{"params": [nn.Parameter(param)], **options}])


def test_a_partitioned_parameter_is_refused():
    (param,) = parameters((2, 2))
    param.ds_id = 0
    with pytest.raises(ValueError, match=r"ZeRO-3.*fully_shard"):
        MARS([param])


def test_a_sparse_gradient_is_refused_before_anything_changes():
    model = nn.ModuleDict({"dense": nn.Linear(2, 2), "table": nn.Embedding(4, 2, sparse=True)})
    optimizer = MARS(model.named_parameters())
    loss = model["table"](torch.tensor([1])).sum() + model["dense"](torch.ones(1, 2)).sum()
    loss.backward()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match=r"'table.weight'.*sparse"):
        optimizer.step()
    assert_equal(list(model.parameters()), before)
    assert not optimizer.state


def test_a_schedule_that_leaves_the_range_is_refused_before_anything_changes():
    params = parameters((3, 2))
    optimizer = MARS(params, gamma=lambda step: 0.5 * step)
    params[0].grad = torch.ones(3, 2)
    optimizer.step()
    optimizer.step()
    before = params[0].detach().clone()
    with pytest.raises(ValueError, match=r"gamma must lie in \[0, 1\], got 1.5"):
        optimizer.step()
    assert torch.equal(params[0], before)
    assert optimizer.state[params[0]]["step"] == 2


def test_a_gamma_schedule_is_called_with_the_step_from_one():
    seen = []
    params = parameters((3, 2), (4, 4))
    optimizer = MARS(params, gamma=lambda step: seen.append(step) or 0.025)
    for _ in range(3):
        params[0].grad = torch.ones(3, 2)
        optimizer.step()
    assert seen == [1, 2, 3]


@pytest.mark.parametrize(
    "change",
    [
        {"amsgrad": True},
        {"optimize_1d": True},
        {"mars_type": "mars-lion"},
        {"lean": True, "clip": None, "second_moment": "gradient"},
        {"is_approx": False},
        {"betas": (1.0, 0.9)},
        {"clip": "tensrs"},
        {"lr": -1.0},
    ],
    ids=str,
)
def test_an_assigned_option_that_cannot_be_honoured_is_refused_before_anything_changes(change):
    first, second = parameters((3, 2), (2,)), parameters((3, 2), (2,), seed=4)
    optimizer = MARS([{"params": first}, {"params": second}])
    train(optimizer, first + second, 2)
    tensors = [*first, *second]
    tensors += [value for state in optimizer.state.values() for value in state.values()]
    before = [t.detach().clone() for t in tensors]
    optimizer.param_groups[1].update(change)
    with pytest.raises((ValueError, TypeError)):
        optimizer.step()
    assert_equal([t.detach() for t in tensors], before)


def test_groups_that_share_a_norm_share_a_policy():
    first, second = parameters((3, 2), (3, 2))
    with pytest.raises(ValueError, match="nonfinite must be the same"):
        MARS([{"params": [first]}, {"params": [second], "nonfinite": "skip"}], clip="global")


def test_differentiable_is_set_for_all_groups():
    first, second = parameters((3, 2), (3, 2))
    with pytest.raises(ValueError, match="differentiable is set for all groups"):
        MARS([{"params": [first]}, {"params": [second], "differentiable": True}])


def test_a_group_must_be_a_dict():
    _, optimizer = trained(1)
    with pytest.raises(TypeError, match="must be a dict, got list"):
        optimizer.add_param_group(parameters((2, 2)))


def test_lazy_parameters_are_accepted_and_routed_when_they_have_a_shape():
    layer = nn.LazyLinear(3)
    optimizer = MARS(layer.parameters())
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert {row.rule for row in optimizer.describe()} == {"mars-adamw", "adamw"}


def test_a_lazy_conjugate_is_refused():
    param = nn.Parameter(torch.ones(2, 2, dtype=torch.complex64).conj())
    with pytest.raises(ValueError, match="resolve_conj"):
        MARS([param])

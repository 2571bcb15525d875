"""What is possible passes, and the optimizers' options are held to the optimizer's own rules."""

from itertools import product
from typing import get_args

import pytest
import torch

from mars import MARS
from mars.config.check import _RANGES, OPTIONS, check
from mars.config.errors import RefusedError
from mars.config.keys import KEYS
from mars.config.load import override
from mars.config.schema import Optimizer, OptimizerName, Run

LEAN = ("lean=true", "clip=none", "second_moment=gradient")


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("steps=1",),
        ("warmup_steps=5", "steps=5"),
        ("min_lr=0.003",),
        ("gamma=0",),
        ("gamma=1",),
        ("betas=0,0.999",),
        ("grad_clip=0",),
        ("decay_fraction=1",),
        ("kind=multistep", "milestones=0.1"),
        ("kind=cosine", "milestones=[]"),
        ("micro_batch_size=480",),
        ("micro_batch_size=1",),
        ("workers=0",),
        ("lr_1d=0",),
        ("eps=0",),
        ("keep=1",),
        ("wandb_project=", "wandb=off"),
        ("name=...",),
        ("name=größe 1.0",),
        ("device=cpu",),
        ("device=cuda:0",),
        ("device=cuda:15",),
        ("device=mps",),
        LEAN,
        (*LEAN, "optimizer.name=mars-m", "optimize_1d=true"),
        ("optimizer.name=mars-lion", "lean=true", "clip=none"),
        ("optimizer.name=mars-m", "second_moment=gradient", "optimize_1d=true"),
        ("exact=true", "last_grad_dtype=bfloat16"),
        ("optimizer.name=muon", "betas=0.9,0.9", "lr_1d=0.1", "betas_1d=0.9,0.9", "eps=1e-6"),
        ("optimizer.name=lion", "betas=0.9,0.99", "fused=true"),
    ],
    ids=" ".join,
)
def test_the_edges_of_what_is_possible_pass(settings):

    assert check(override(Run(), settings)) is None


def test_every_number_has_a_range():
    numbers = {name for name, key in KEYS.items() if key.kind in (int, float, tuple)}
    ranged = [name for _, _, names in _RANGES for name in names]
    assert sorted(ranged) == sorted(numbers)


@pytest.mark.parametrize("name", [name for name in KEYS if KEYS[name].kind in (float, tuple)])
def test_no_number_may_be_nan(name):
    text = "nan" if KEYS[name].kind is float else "nan,nan"
    with pytest.raises(RefusedError, match=rf"{name} must be .*nan"):
        check(override(Run(), [f"{name}={text}"]))


def test_every_optimizer_has_its_table_of_options():
    section = {key.last_part for key in KEYS.values() if key.name.startswith("optimizer.")}
    assert list(OPTIONS) == list(get_args(OptimizerName))
    assert all({"name", "lr", "weight_decay", "fused"} <= OPTIONS[name] for name in OPTIONS)
    assert set().union(*OPTIONS.values()) == section


EXAMPLES = {
    "betas": "0.8,0.9",
    "eps": "1e-6",
    "lr_1d": "1e-3",
    "betas_1d": "0.8,0.9",
    "weight_decay_1d": "0.2",
    "gamma": "0.1",
    "exact": "true",
    "optimize_1d": "true",
    "clip": "global",
    "max_norm": "2",
    "last_grad_dtype": "bfloat16",
    "lean": "false",
}


@pytest.mark.parametrize(("name", "option"), list(product(OPTIONS, EXAMPLES)))
def test_an_option_is_refused_exactly_where_the_optimizer_lacks_it(name, option):
    run = override(Run(), [f"optimizer.name={name}", f"optimizer.{option}={EXAMPLES[option]}"])
    if option in OPTIONS[name]:
        check(run)
        return
    with pytest.raises(RefusedError, match=f"optimizer.{option} = .* has no meaning for {name};"):
        check(run)


def mars_accepts(optimizer: Optimizer) -> bool:
    """Whether MARS itself takes the options."""
    given = {
        "lean": bool(optimizer.lean),
        "is_approx": not optimizer.exact,
        "optimize_1d": bool(optimizer.optimize_1d),
        "clip": None if optimizer.clip == "none" else optimizer.clip or "tensor",
        "second_moment": optimizer.second_moment or "corrected",
        "last_grad_dtype": optimizer.last_grad_dtype and torch.bfloat16,
    }
    param = torch.nn.Parameter(torch.ones(2, 2))
    try:
        MARS([param], mars_type=optimizer.name, **given)
    except ValueError:
        return False
    return True


def is_refused(optimizer: Optimizer) -> bool:
    try:
        check(Run(optimizer=optimizer))
    except RefusedError:
        return True
    return False


@pytest.mark.parametrize("name", ["mars-adamw", "mars-lion", "mars-shampoo", "mars-m"])
def test_combinations_are_refused_exactly_where_the_optimizer_refuses_them(name):
    grid = {
        "lean": (None, True),
        "exact": (None, True),
        "optimize_1d": (None, True),
        "clip": (None, "none", "global"),
        "last_grad_dtype": (None, "bfloat16"),
        "second_moment": (None, "gradient"),
    }
    for values in product(*grid.values()):
        optimizer = Optimizer(name=name, **dict(zip(grid, values, strict=True)))
        has_second_moment = name == "mars-adamw" or (name != "mars-lion" and optimizer.optimize_1d)
        # MARS cannot tell this option's default from the same value given; a config can.
        is_idle = optimizer.second_moment is not None and not has_second_moment
        assert is_refused(optimizer) == (is_idle or not mars_accepts(optimizer)), optimizer

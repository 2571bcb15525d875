"""Optimizers by name: the right rule for every parameter, decay where it belongs."""

from dataclasses import replace
from typing import get_args

import pytest
import torch

from mars import MARS
from mars.config.errors import RefusedError
from mars.config.schema import Model, Optimizer, OptimizerName
from mars.models.gpt2 import GPT2
from mars.training.optimizers import Together, build_optimizer

NAMES = get_args(OptimizerName)
SHAPE = Model(layers=2, heads=2, width=16, context_length=8, vocab_size=32)


def model(seed: int = 0) -> GPT2:
    return GPT2(SHAPE, generator=torch.Generator().manual_seed(seed))


def steps(optimizer, net: GPT2, count: int) -> None:
    tokens = torch.arange(24).reshape(3, 8)
    for _ in range(count):
        optimizer.zero_grad()
        net(tokens, (tokens + 1) % 32).backward()
        optimizer.step()


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_owned_once(name):
    net = model()
    optimizer = build_optimizer(Optimizer(name=name, fused=False), net)
    owned = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(owned) == len({id(p) for p in owned}) == len(list(net.parameters()))


@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer_lowers_the_loss(name):
    net = model()
    lr = 3e-3 if name in ("lion", "mars-lion") else 1e-2
    tokens = torch.arange(24).reshape(3, 8)
    before = net(tokens, (tokens + 1) % 32).item()
    steps(build_optimizer(Optimizer(name=name, lr=lr, fused=False), net), net, 40)
    assert net(tokens, (tokens + 1) % 32).item() < before - 0.5


@pytest.mark.parametrize("name", NAMES)
def test_a_state_round_trip_continues_bit_for_bit(name):
    config = Optimizer(name=name, fused=False)
    whole, first = model(), model()
    steps(build_optimizer(config, whole), whole, 4)
    stopped = build_optimizer(config, first)
    steps(stopped, first, 2)
    second = model()
    second.load_state_dict(first.state_dict())
    resumed = build_optimizer(config, second)
    resumed.load_state_dict(stopped.state_dict())
    steps(resumed, second, 2)
    for a, b in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["adamw", "nadamw", "lion", "muon"])
def test_baselines_decay_all_but_vectors(name):
    optimizer = build_optimizer(Optimizer(name=name, weight_decay=0.1), model())
    for group in optimizer.param_groups:
        for p in group["params"]:
            assert group["weight_decay"] == (0.1 if p.ndim > 1 else 0.0)


@pytest.mark.parametrize("fused", [False, True])
def test_adamw_is_that_of_torch_with_decay_groups(fused):
    ours, theirs = model(), model()
    config = Optimizer(name="adamw", lr=1e-2, weight_decay=0.1, betas=(0.9, 0.95), fused=fused)
    steps(build_optimizer(config, ours), ours, 5)
    decayed = [p for p in theirs.parameters() if p.ndim > 1]
    rest = [p for p in theirs.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    steps(torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), fused=fused), theirs, 5)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


def test_muon_is_that_of_torch_up_to_its_bfloat16():
    ours, theirs = model(), model()
    start = [p.detach().clone() for p in ours.parameters()]
    config = Optimizer(name="muon", lr=1e-2, weight_decay=0.1, lr_1d=3e-3)
    built = build_optimizer(config, ours)
    assert isinstance(built, Together)
    steps(built, ours, 3)
    matrices = [p for n, p in theirs.named_parameters() if p.ndim == 2 and n.startswith("h.")]
    embeddings = [theirs.wte.weight, theirs.wpe.weight]
    vectors = [p for p in theirs.parameters() if p.ndim == 1]
    muon = torch.optim.Muon(
        matrices, lr=1e-2, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(
        [{"params": embeddings, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=3e-3,
        betas=(0.9, 0.95),
        fused=True,
    )
    steps(Together([muon, adamw]), theirs, 3)
    moved = sum((a - b).norm().item() ** 2 for a, b in zip(ours.parameters(), start, strict=True))
    apart = sum(
        (a - b).norm().item() ** 2
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)
    )
    # bfloat16 has three digits, and Newton-Schulz loses some of them on matrices this small.
    assert (apart / moved) ** 0.5 < 0.05


def test_options_reach_the_optimizer():
    config = Optimizer(
        name="mars-adamw",
        lr=1e-3,
        gamma=0.1,
        betas=(0.8, 0.9),
        clip="none",
        second_moment="gradient",
        optimize_1d=True,
        last_grad_dtype="bfloat16",
        exact=False,
        fused=False,
    )
    made = build_optimizer(config, model())
    assert isinstance(made, MARS)
    found = {key: made.defaults[key] for key in ("lr", "gamma", "betas", "clip", "second_moment")}
    assert found == {
        **{"lr": 1e-3, "gamma": 0.1, "betas": (0.8, 0.9)},
        **{"clip": None, "second_moment": "gradient"},
    }
    assert made.defaults["last_grad_dtype"] == torch.bfloat16
    assert made.defaults["is_approx"]
    assert made.defaults["optimize_1d"]
    untouched = build_optimizer(replace(config, gamma=None, betas=None, clip=None), model())
    assert untouched.defaults["gamma"] == 0.025
    assert untouched.defaults["clip"] == "tensor"


def test_what_the_optimizer_refuses_is_refused_in_one_line():
    with pytest.raises(RefusedError, match=r"optimizer: .*lean") as refusal:
        build_optimizer(Optimizer(lean=True, fused=False), model())
    assert "\n" not in str(refusal.value)

"""The authors' trajectories, step for step."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mars import MARS
from mars.optim.rules import muon, shampoo

CASES = json.loads((Path(__file__).parent / "official_trajectories.json").read_text())
APPROX = [case for case in CASES if case["mode"] == "approx"]
ELEMENTWISE = [c for c in APPROX if c["algorithm"] in ("mars-adamw", "mars-lion")]
ORTHOGONAL = [c for c in APPROX if c not in ELEMENTWISE]


def name(case: dict) -> str:
    return case["name"]


def options(case: dict) -> dict:
    given = dict(case["kwargs"])
    if "wd" not in given:
        return {**given, "betas": tuple(given["betas"]), "mars_type": case["algorithm"]}
    return {
        "mars_type": "mars-m",
        "lr": given["lr"],
        "lr_1d": given["lr"],
        "betas": (given["momentum"], 0.99),
        "gamma": given["gamma"],
        "weight_decay": given["wd"],
        "weight_decay_1d": given["wd"],
    }


def shaped(case: dict, flat: list[list[float]]) -> list[Tensor]:
    return [torch.tensor(x).view(s) for x, s in zip(flat, case["shapes"], strict=True)]


def run(case: dict) -> list[list[Tensor]]:
    """Return the parameters after each step."""
    params = [nn.Parameter(x) for x in shaped(case, case["x0"])]
    optimizer = MARS(params, **options(case))
    curvature = shaped(case, case["curvature"])
    trajectory = []
    for targets in case["targets"]:
        for p, h, target in zip(params, curvature, shaped(case, targets), strict=True):
            p.grad = h * (p.detach() - target)
        optimizer.step()
        trajectory.append([p.detach().clone() for p in params])
    return trajectory


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def test_every_approx_case_is_covered():
    assert len(ELEMENTWISE) == 9
    assert len(ORTHOGONAL) == 7


@pytest.mark.parametrize("case", ELEMENTWISE, ids=name)
def test_elementwise_rules_follow_the_authors(case):
    for ours, theirs in zip(run(case), case["trajectory"], strict=True):
        # 1e-6: float32 rounding over eight steps of parameters of order 1.
        assert (flat(ours) - flat(shaped(case, theirs))).abs().max() <= 1e-6


@pytest.mark.parametrize("case", ORTHOGONAL, ids=name)
def test_matrix_rules_follow_the_authors(case):
    theirs = flat(shaped(case, case["trajectory"][-1]))
    update = theirs - flat(shaped(case, case["x0"]))
    # 2e-2: theirs ran Newton-Schulz in bfloat16, whose rounding it amplifies.
    assert (flat(run(case)[-1]) - theirs).norm() <= 2e-2 * update.norm()


@pytest.mark.parametrize("case", ORTHOGONAL, ids=name)
def test_matrix_rules_differ_from_the_authors_by_bfloat16_alone(case, monkeypatch):
    """With Newton-Schulz rounded as theirs, what is left is the rounding of float32."""
    rounded = bf16_of_mars_m if case["algorithm"] != "mars-shampoo" else bf16_of_shampoo

    def orthogonalize(matrices, *, scale, dtype):
        del dtype
        return [rounded(m).float() * scale for m in matrices]

    monkeypatch.setattr(shampoo, "orthogonalize", orthogonalize)
    monkeypatch.setattr(muon, "orthogonalize", orthogonalize)
    start = flat(shaped(case, case["x0"]))
    for ours, trajectory in zip(run(case), case["trajectory"], strict=True):
        theirs = flat(shaped(case, trajectory))
        assert (flat(ours) - theirs).norm() <= 5e-5 * (theirs - start).norm()


def bf16_of_mars_m(matrix: Tensor) -> Tensor:
    """Newton-Schulz with every operation rounded to bfloat16, the norm included."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.bfloat16().T if tall else matrix.bfloat16()
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def bf16_of_shampoo(momentum: Tensor) -> Tensor:
    """The same with the products in another order and the norm in float32."""
    a, b, c = 3.4445, -4.7750, 2.0315
    matrix = momentum / (1 - 0.95)
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.bfloat16() / (matrix.norm() + 1e-8)
    x = x.T if tall else x
    for _ in range(5):
        gram = x @ x.T
        product = gram @ x
        x = a * x + b * product + c * gram @ product
    return x.T if tall else x

"""The authors' trajectories, step for step."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mars import MARS
from mars.optim.rules import muon, shampoo

CASES = json.loads((Path(__file__).parent / "official_trajectories.json").read_text())
EXACT_WAYS = ("closure", "previous_point", "current_first", "protocol")
# Every case, and every way of running it: approx has one, exact mode has several.
RUNS = [
    (case, way)
    for case in CASES
    for way in (("approx",) if case["mode"] == "approx" else EXACT_WAYS)
]
ELEMENTWISE = [run for run in RUNS if run[0]["algorithm"] in ("mars-adamw", "mars-lion")]
ORTHOGONAL = [run for run in RUNS if run not in ELEMENTWISE]


def name(value: object) -> str:
    return value if isinstance(value, str) else value["name"]


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


def run(case: dict, way: str, **more: object) -> list[list[Tensor]]:
    """Return the parameters after each step, taken in one of the possible ways."""
    params = [nn.Parameter(x) for x in shaped(case, case["x0"])]
    optimizer = MARS(params, is_approx=case["mode"] == "approx", **options(case), **more)
    curvature = shaped(case, case["curvature"])
    trajectory = []

    def evaluate(step: int) -> None:
        targets = shaped(case, case["targets"][step])
        for p, h, target in zip(params, curvature, targets, strict=True):
            p.grad = h * (p.detach() - target)

    for step in range(case["steps"]):
        if way == "approx":
            evaluate(step)
            optimizer.step()
        elif way == "closure":
            optimizer.step(lambda step=step: evaluate(step))
        elif way == "previous_point":
            with optimizer.previous_point():
                evaluate(step)
            evaluate(step)
            optimizer.step()
        elif way == "current_first":
            evaluate(step)
            with optimizer.previous_point():
                evaluate(step)
            optimizer.step()
        elif way == "protocol":
            if step + 1 < case["steps"]:
                evaluate(step + 1)
                optimizer.update_previous_grad()
                optimizer.zero_grad()
            evaluate(step)
            optimizer.step(bs=1)
            optimizer.update_last_grad()
        trajectory.append([p.detach().clone() for p in params])
    return trajectory


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def test_every_case_is_covered():
    assert len(CASES) == 30
    assert len(ELEMENTWISE) == 9 + 8 * len(EXACT_WAYS)
    assert len(ORTHOGONAL) == 7 + 6 * len(EXACT_WAYS)


@pytest.mark.parametrize(("case", "way"), ELEMENTWISE, ids=name)
def test_elementwise_rules_follow_the_authors(case, way):
    for ours, theirs in zip(run(case, way), case["trajectory"], strict=True):
        # 1e-6: float32 rounding over eight steps of parameters of order 1.
        assert (flat(ours) - flat(shaped(case, theirs))).abs().max() <= 1e-6


@pytest.mark.parametrize(("case", "way"), ORTHOGONAL, ids=name)
def test_matrix_rules_follow_the_authors(case, way):
    theirs = flat(shaped(case, case["trajectory"][-1]))
    update = theirs - flat(shaped(case, case["x0"]))
    # 2e-2: theirs ran Newton-Schulz in bfloat16, whose rounding it amplifies.
    assert (flat(run(case, way)[-1]) - theirs).norm() <= 2e-2 * update.norm()


@pytest.mark.parametrize(("case", "way"), ORTHOGONAL, ids=name)
def test_matrix_rules_differ_from_the_authors_by_bfloat16_alone(case, way, monkeypatch):
    """With Newton-Schulz rounded as theirs, what is left is the rounding of float32."""
    rounded = bf16_of_mars_m if case["algorithm"] != "mars-shampoo" else bf16_of_shampoo

    def orthogonalize(matrices, *, scale, dtype):
        del dtype
        return [rounded(m).float() * scale for m in matrices]

    monkeypatch.setattr(shampoo, "orthogonalize", orthogonalize)
    monkeypatch.setattr(muon, "orthogonalize", orthogonalize)
    start = flat(shaped(case, case["x0"]))
    for ours, trajectory in zip(run(case, way), case["trajectory"], strict=True):
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

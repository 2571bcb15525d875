"""MARS on several ranks computes what it computes on one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from distributed.processes import run
from distributed.small_gpt import Mode, build, train

STEPS = 20
TYPES = ("mars-adamw", "mars-lion", "mars-shampoo", "mars-m")
LEAN = {"lean": True, "clip": None, "second_moment": "gradient"}

# A limit that clips about half of the tensors: a norm of a part would scale them differently.
OPTIONS: dict[str, dict[str, Any]] = {
    **{t: {"mars_type": t, "max_norm": 0.1} for t in TYPES},
    **{f"{t} exact": {"mars_type": t, "max_norm": 0.1, "is_approx": False} for t in TYPES},
    **{f"{t} lean": {"mars_type": t, **LEAN} for t in TYPES},
}
# Not for every mode: a part of a matrix is a part of a matrix.
MORE: dict[str, dict[str, Any]] = {
    "global clip": {"clip": "global", "max_norm": 0.3},
    "global clip of matrices": {"mars_type": "mars-m", "clip": "global", "max_norm": 0.3},
    "all corrected": {"optimize_1d": True, "max_norm": 0.1, "amsgrad": True},
    "one at a time": {"mars_type": "mars-shampoo", "foreach": False, "max_norm": 0.1},
    "guarded": {"nonfinite": "skip", "max_norm": 0.1},
    "strict": {"nonfinite": "raise", "max_norm": 0.1},
}
MODES: dict[int, tuple[Mode, ...]] = {2: ("ddp", "fsdp2"), 4: ("ddp", "fsdp2", "hsdp")}
CASES: dict[int, list[tuple[Mode, str]]] = {
    ranks: [
        *((mode, name) for mode in modes for name in OPTIONS),
        *((modes[-1], name) for name in MORE),
    ]
    for ranks, modes in MODES.items()
}

# Float32 on both sides; ranks add gradients in another order. Newton-Schulz starts from a matrix
# of nearly equal singular values near zero, where it multiplies differences.
TOLERANCE = {"mars-shampoo": 1e-5, "mars-m": 1e-5}


def _trained(mode: Mode, name: str, *, rank: int = 0, ranks: int = 1) -> dict[str, Any]:
    trained = build(mode, **(OPTIONS | MORE)[name])
    train(trained, range(STEPS), rank=rank, ranks=ranks)
    return {"losses": trained.losses, "params": trained.whole()}


def _every_case(rank: int, ranks: int, _: Path) -> dict[str, dict[str, Any]]:
    return {
        f"{mode} {name}": _trained(mode, name, rank=rank, ranks=ranks)
        for mode, name in CASES[ranks]
    }


Found = Callable[[int], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> Found:
    """What each rank found, by world size; the processes run when a test first asks."""
    known: dict[int, list[dict[str, Any]]] = {}

    def of(ranks: int) -> list[dict[str, Any]]:
        if ranks not in known:
            known[ranks] = run(_every_case, tmp_path_factory.mktemp("ranks"), ranks=ranks)
        return known[ranks]

    return of


@pytest.fixture(scope="module")
def alone() -> Callable[[str], dict[str, Any]]:
    """What one process finds."""
    known: dict[str, dict[str, Any]] = {}

    def of(name: str) -> dict[str, Any]:
        if name not in known:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            known[name] = _trained("alone", name)
            torch.set_num_threads(threads)
        return known[name]

    return of


@pytest.mark.parametrize(
    ("ranks", "mode", "name"), [(ranks, *case) for ranks, own in CASES.items() for case in own]
)
def test_ranks_compute_what_one_process_computes(ranks, mode, name, found, alone):
    tolerance = TOLERANCE.get((OPTIONS | MORE)[name].get("mars_type", "mars-adamw"), 1e-6)
    expected = alone(name)
    for result in found(ranks):
        ours = result[f"{mode} {name}"]
        assert ours["losses"] == pytest.approx(expected["losses"], rel=1e-6)
        for key, param in expected["params"].items():
            off = torch.linalg.vector_norm(ours["params"][key] - param)
            assert off <= tolerance * torch.linalg.vector_norm(param), key


@pytest.mark.parametrize(("ranks", "mode"), [(r, m) for r, modes in MODES.items() for m in modes])
def test_ranks_hold_equal_parameters(ranks, mode, found):
    first, *others = [
        {name: result[f"{mode} {name}"]["params"] for name in OPTIONS} for result in found(ranks)
    ]
    for other in others:
        for name, params in first.items():
            for key, param in params.items():
                assert torch.equal(other[name][key], param), (name, key)


def test_the_cases_train(alone):
    for name in OPTIONS | MORE:
        losses = alone(name)["losses"]
        assert losses[-1] < losses[0] - 0.1, name
        assert (
            not torch.equal(
                alone(name)["params"]["down"], alone("mars-adamw lean")["params"]["down"]
            )
            or name == "mars-adamw lean"
        )


def test_unused_and_frozen_parameters_stay(alone, found):
    untouched = build("alone").whole()
    for result in [alone("mars-m"), *(r["fsdp2 mars-m"] for r in found(4))]:
        for name in ("unused", "frozen"):
            assert torch.equal(result["params"][name], untouched[name])

"""State saved by torch.distributed.checkpoint on two ranks goes on on any number of them."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor

from distributed.processes import run
from distributed.small_gpt import Mode, build, train

BEFORE, AFTER = range(6), range(6, 12)
OPTIONS: dict[str, dict[str, Any]] = {
    "mars-adamw": {"max_norm": 0.1},
    "mars-lion lean": {"mars_type": "mars-lion", "lean": True, "clip": None},
    "mars-m": {"mars_type": "mars-m", "max_norm": 0.1},
    "mars-shampoo exact": {"mars_type": "mars-shampoo", "is_approx": False, "max_norm": 0.1},
}


def _saved(rank: int, ranks: int, place: Path) -> dict[str, Any]:
    """Train, save, and train on."""
    facts: dict[str, Any] = {}
    for name, options in OPTIONS.items():
        trained = build("fsdp2", **options)
        train(trained, BEFORE, rank=rank, ranks=ranks)
        model, optimizer = get_state_dict(trained.model, trained.optimizer)
        _quietly(
            dcp.save, {"model": model, "optimizer": optimizer}, checkpoint_id=place.parent / name
        )
        train(trained, AFTER, rank=rank, ranks=ranks)
        facts[name] = {
            "losses": trained.losses[len(BEFORE) :],
            "params": trained.whole(),
            "keys": [f"{fqn}.{key}" for fqn, s in optimizer["state"].items() for key in s],
            "sharded": all(
                isinstance(value, DTensor)
                for state in optimizer["state"].values()
                for key, value in state.items()
                if key != "step"
            ),
        }
    return facts


def _continued(rank: int, ranks: int, place: Path) -> dict[str, Any]:
    """Load what two ranks saved and train on."""
    return {
        name: _loaded(place.parent / name, "fsdp2", options, rank=rank, ranks=ranks)
        for name, options in OPTIONS.items()
    }


def _loaded(
    checkpoint: Path, mode: Mode, options: dict[str, Any], *, rank: int = 0, ranks: int = 1
) -> dict[str, Any]:
    trained = build(mode, **options)
    model, optimizer = get_state_dict(trained.model, trained.optimizer)
    _quietly(dcp.load, {"model": model, "optimizer": optimizer}, checkpoint_id=checkpoint)
    set_state_dict(
        trained.model, trained.optimizer, model_state_dict=model, optim_state_dict=optimizer
    )
    train(trained, AFTER, rank=rank, ranks=ranks)
    return {"losses": trained.losses, "params": trained.whole()}


def _quietly(act: Any, *arguments: Any, **named: Any) -> None:
    """Call torch, which warns that there is one process or how its own code has changed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        act(*arguments, **named)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("saved")
    return folder, run(_saved, folder, ranks=2)


@pytest.mark.parametrize("ranks", [0, 1, 2, 4])
def test_two_ranks_save_and_any_number_go_on(ranks, saved):
    folder, expected = saved
    results = (
        run(_continued, folder, ranks=ranks)
        if ranks
        else [{name: _loaded(folder / name, "alone", o) for name, o in OPTIONS.items()}]
    )
    for rank, result in enumerate(results):
        for name, ours in result.items():
            if ranks == 2:  # the world that saved it
                assert ours["losses"] == expected[rank][name]["losses"], name
            assert ours["losses"] == pytest.approx(expected[0][name]["losses"], rel=1e-6), name
            for key, param in expected[0][name]["params"].items():
                off = torch.linalg.vector_norm(ours["params"][key] - param)
                exact = ranks == 2
                assert off <= (0 if exact else 1e-5) * torch.linalg.vector_norm(param), (name, key)


def test_state_is_sharded_and_has_the_same_keys_on_every_rank(saved):
    _, (first, second) = saved
    for name in OPTIONS:
        assert first[name]["sharded"]
        assert first[name]["keys"] == second[name]["keys"]
        assert any(key.startswith("unused.") for key in first[name]["keys"])

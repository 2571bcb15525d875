"""Every preset describes something that can be built."""

from typing import get_args

import pytest
import torch

from mars.config import presets
from mars.config.check import check
from mars.config.errors import RefusedError
from mars.config.schema import Data, OptimizerName
from mars.models.gpt2 import GPT2
from mars.training.build import open_corpus
from mars.training.optimizers import build_optimizer
from mars.training.schedule import factor

TEXT = [name for name in presets.names() if presets.preset(name).vision.network is None]
# Of the paper's sizes, with a vocabulary of 50304: blocks, embeddings and norms.
SIZES = {"small": (12, 768), "medium": (24, 1024), "large": (36, 1280), "xl": (48, 1600)}


@pytest.mark.parametrize("name", TEXT)
def test_a_preset_builds_on_the_meta_device(name):
    run = presets.preset(name)
    check(run)
    with torch.device("meta"):
        model = GPT2(run.model)
    optimizer = build_optimizer(run.optimizer, model)
    owned = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    assert owned == model.parameter_count()
    last = run.training.steps
    end = factor(run.schedule, step=last, steps=last, lr=run.optimizer.lr) * run.optimizer.lr
    assert end == pytest.approx(run.schedule.min_lr, abs=1e-12)


@pytest.mark.parametrize("size", SIZES)
def test_the_sizes_are_those_of_the_paper(size):
    layers, width = SIZES[size]
    for name in presets.names():
        if name.startswith(f"gpt2-{size}-"):
            with torch.device("meta"):
                count = GPT2(presets.preset(name).model).parameter_count()
            matrices = 12 * layers * width**2
            embeddings = (50304 + 1024) * width
            assert count == matrices + embeddings + (2 * layers + 1) * width


def test_every_optimizer_has_every_family():
    names = set(presets.names())
    for optimizer in get_args(OptimizerName):
        assert {f"quickstart-{optimizer}", f"wikitext2-{optimizer}"} <= names
        for size in SIZES:
            for corpus in ("openwebtext", "fineweb-edu"):
                assert f"gpt2-{size}-{corpus}-{optimizer}" in names


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("data/fineweb-edu", "mars prepare fineweb-edu --out data/fineweb-edu"),
        ("data/openwebtext", "mars prepare openwebtext --out data/openwebtext"),
        ("data/mine", "mars prepare text --input FILES --out data/mine"),
    ],
)
def test_an_absent_corpus_comes_with_the_command_that_makes_it(path, command):
    with pytest.raises(RefusedError, match=f"such as {command}$"):
        open_corpus(Data(path=path), tell=print)

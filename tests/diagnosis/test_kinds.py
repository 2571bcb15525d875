"""Every parameter has exactly one kind."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from mars.config.schema import Model
from mars.diagnosis.kinds import indices, kinds_of
from mars.models.gpt2 import GPT2


@given(st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_the_kinds_of_a_gpt2_share_out_its_parameters(layers, heads, bias):
    config = Model(
        layers=layers, heads=heads, width=4 * heads, context_length=8, vocab_size=11, bias=bias
    )
    model = GPT2(config)
    kinds = kinds_of(model)
    assert list(kinds) == [name for name, _ in model.named_parameters()]
    places = indices(kinds)
    assert list(places) == ["all", "attention", "embedding", "mlp", "vector"]
    parts = [place for kind, own in places.items() if kind != "all" for place in own]
    assert sorted(parts) == places["all"] == list(range(len(kinds)))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("wte.weight", "embedding"),
        ("wpe.weight", "embedding"),
        ("h.0.attn.c_attn.weight", "attention"),
        ("h.1.attn.c_proj.weight", "attention"),
        ("h.0.mlp.c_fc.weight", "mlp"),
        ("h.1.mlp.c_proj.weight", "mlp"),
        ("h.1.mlp.c_proj.bias", "vector"),
        ("h.0.attn.c_attn.bias", "vector"),
        ("h.0.ln_1.weight", "vector"),
        ("ln_f.bias", "vector"),
    ],
)
def test_the_parts_of_a_gpt2_have_the_kind_of_their_name(name, kind):
    model = GPT2(Model(layers=2, heads=2, width=8, context_length=8, vocab_size=11, bias=True))
    assert kinds_of(model)[name] == kind


def test_another_model_has_the_roles_of_its_parameters():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 5))
    assert list(kinds_of(model).values()) == [
        *("embedding", "matrix", "vector", "vector", "vector", "head", "vector")
    ]


def test_what_is_frozen_has_no_kind():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].weight.requires_grad_(False)
    assert list(kinds_of(model)) == ["0.bias", "1.weight", "1.bias"]
    with torch.no_grad():
        assert indices(kinds_of(model))["all"] == [0, 1, 2]

"""Roles of a model's parameters, and the routing table."""

import pytest
import torch
from torch import nn

import mars
from mars import MARS
from problems import parameters


class Decoder(nn.Module):
    """A small language model with the parts that real ones have."""

    def __init__(self, tied: bool = False):
        super().__init__()
        self.wte = nn.Embedding(11, 8)
        self.pos = nn.Parameter(torch.randn(1, 5, 8))
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.norm = nn.LayerNorm(8)
        self.mlp = nn.Linear(8, 8)
        self.gain = nn.Parameter(torch.ones(()))
        self.lm_head = nn.Linear(8, 11, bias=False)
        if tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, tokens):
        x = self.wte(tokens) + self.pos
        x = self.norm(self.conv(x.mT).mT)
        return self.lm_head(self.mlp(x) * self.gain)


def names(groups):
    return {group["role"]: group["param_names"] for group in groups}


def test_roles_of_a_language_model():
    assert names(mars.param_groups(Decoder())) == {
        "matrix": ["conv.weight", "mlp.weight"],
        "embedding": ["wte.weight"],
        "head": ["lm_head.weight"],
        "vector": ["pos", "gain", "conv.bias", "norm.weight", "norm.bias", "mlp.bias"],
    }


@pytest.mark.parametrize("tied", [False, True])
def test_every_trainable_parameter_is_owned_exactly_once(tied):
    model = Decoder(tied)
    model.mlp.bias.requires_grad_(False)
    owned = [p for group in mars.param_groups(model) for p in group["params"]]
    assert len(owned) == len({id(p) for p in owned})
    assert {id(p) for p in owned} == {id(p) for p in model.parameters() if p.requires_grad}


def test_a_head_tied_to_an_embedding_is_an_embedding():
    groups = names(mars.param_groups(Decoder(tied=True)))
    assert groups["embedding"] == ["wte.weight"]
    assert "head" not in groups


@pytest.mark.parametrize(
    ("model", "head"),
    [
        (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), ["2.weight"]),
        (nn.ModuleDict({"conv": nn.Conv2d(3, 4, 3), "fc": nn.Linear(4, 2)}), ["fc.weight"]),
        (
            nn.ModuleDict({"classifier": nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))}),
            ["classifier.1.weight"],
        ),
        (
            nn.Sequential(nn.ModuleDict({"heads": nn.ModuleList([nn.Linear(4, 4)])}), Decoder()),
            ["1.lm_head.weight"],
        ),
        (nn.Linear(4, 4), None),
        (nn.TransformerEncoderLayer(8, 2), None),
    ],
    ids=["mlp", "classifier", "deep classifier", "attention heads", "one layer", "no head"],
)
def test_heads_are_found(model, head):
    assert names(mars.param_groups(model)).get("head") == head


def test_a_declared_output_layer_is_the_head():
    model = Decoder()
    model.get_output_embeddings = lambda: model.mlp
    groups = names(mars.param_groups(model))
    assert groups["head"] == ["mlp.weight"]
    assert "lm_head.weight" in groups["matrix"]


def test_roles_can_be_overridden_by_pattern():
    groups = mars.param_groups(Decoder(), roles={"*.weight": "matrix", "wte.*": "vector"})
    found = names(groups)
    assert "lm_head.weight" in found["matrix"]
    assert "wte.weight" in found["vector"]


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"lm_heads.weight": "vector"}, r"'lm_heads.weight'.*did you mean 'lm_head.weight'"),
        ({"wte.weight": "embeding"}, r"unknown role 'embeding'.*did you mean 'embedding'"),
    ],
)
def test_an_override_that_cannot_be_honoured_is_refused(roles, message):
    with pytest.raises(ValueError, match=message):
        mars.param_groups(Decoder(), roles=roles)


def test_options_of_a_role_reach_its_group():
    optimizer = MARS(
        mars.param_groups(Decoder(), matrix={"weight_decay": 0.3}, embedding={"lr_1d": 0.7}),
        mars_type="mars-m",
    )
    rows = {row.tensor: row for row in optimizer.describe()}
    assert rows["mlp.weight"].decay == 0.3
    assert rows["wte.weight"].lr == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("mars_type", "rules"),
    [
        ("mars-adamw", {"mars-adamw", "adamw"}),
        ("mars-lion", {"mars-lion", "adamw"}),
        ("mars-shampoo", {"mars-shampoo", "adamw"}),
        ("mars-m", {"mars-m", "adamw"}),
    ],
)
def test_embeddings_and_heads_go_to_adamw_under_the_matrix_rules(mars_type, rules):
    model = Decoder()
    optimizer = MARS(mars.param_groups(model), mars_type=mars_type, lr_1d=1e-3)
    by_role = {row.role: row for row in optimizer.describe()}
    own = mars_type if mars_type in ("mars-adamw", "mars-lion") else "adamw"
    assert by_role["matrix"].rule == mars_type
    assert by_role["embedding"].rule == by_role["head"].rule == own
    assert by_role["vector"].rule == "adamw"
    assert {row.rule for row in optimizer.describe()} == rules


@pytest.mark.parametrize("mars_type", ["mars-adamw", "mars-lion", "mars-shampoo", "mars-m"])
def test_the_table_says_what_a_step_does(mars_type):
    model = Decoder()
    optimizer = MARS(mars.param_groups(model), mars_type=mars_type, optimize_1d=True)
    model(torch.zeros(2, 5, dtype=torch.long)).square().mean().backward()
    optimizer.step()
    sizes = dict(model.named_parameters())
    for row in optimizer.describe():
        state = optimizer.state[sizes[row.tensor]]
        assert row.state_bytes == sum(v.nbytes for k, v in state.items() if k != "step")
        assert ("exp_avg_sq" in state) == (row.rule == "mars-adamw")
        assert row.rule.startswith("mars-")


def test_the_table_prints():
    optimizer = MARS(parameters((2, 3), (), (4,)), lr=0.25, weight_decay=0.5)
    assert str(optimizer.describe()).splitlines() == [
        "tensor  shape   role    rule        engine     lr  decay  state bytes",
        "0.0     2x3     matrix  mars-adamw  eager    0.25    0.5           72",
        "0.1     scalar  vector  adamw       eager   0.003    0.1            8",
        "0.2     4       vector  adamw       eager   0.003    0.1           32",
        "3 tensors, 112 bytes of state",
    ]
    assert len(optimizer.describe()) == 3

"""GPT-2: its shape, its initial weights and what its forward pass computes."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import mars
from mars.config.errors import RefusedError
from mars.config.schema import Model
from mars.models.gpt2 import GPT2

TINY = Model(layers=2, heads=2, width=16, context_length=12, vocab_size=29)
XL = Model(layers=48, heads=25, width=1600)


def build(config: Model = TINY, *, seed: int = 0, **options) -> GPT2:
    return GPT2(config, generator=torch.Generator().manual_seed(seed), **options)


def batch(config: Model = TINY, *, seed: int = 0, size: int = 3) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    shape = (size, config.context_length + 1)
    tokens = torch.randint(config.vocab_size, shape, generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def on_meta(config: Model) -> GPT2:
    with torch.device("meta"):
        return GPT2(config)


def formula(config: Model) -> int:
    """Count parameters from the shape alone."""
    width, biases = config.width, 1 if config.bias else 0
    matrices = 12 * width * width
    vectors = 2 * width + biases * (2 * width + 3 * width + width + 4 * width + width)
    embeddings = (config.vocab_size + config.context_length) * width
    return embeddings + config.layers * (matrices + vectors) + width * (1 + biases)


def sharper(model: GPT2) -> GPT2:
    """Enlarge the weights, so that attention is far from uniform and every term shows."""
    with torch.no_grad():
        for param in model.parameters():
            if param.ndim > 1:
                param.mul_(20)
    return model


# Size


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (Model(), 124_373_760),
        (Model(bias=True, vocab_size=50257), 124_439_808),  # OpenAI's small
        (replace(XL, bias=True, vocab_size=50257), 1_557_611_200),  # OpenAI's XL
        (Model(layers=24, heads=16, width=1024, bias=True, vocab_size=50257), 354_823_168),
    ],
    ids=["paper-small", "gpt2", "gpt2-xl", "gpt2-medium"],
)
def test_parameter_count_of_the_published_sizes(config, count):
    assert on_meta(config).parameter_count() == formula(config) == count


@settings(max_examples=25)
@given(
    layers=st.integers(1, 3),
    heads=st.integers(1, 4),
    head_width=st.integers(1, 5),
    context_length=st.integers(1, 9),
    vocab_size=st.integers(1, 40),
    bias=st.booleans(),
)
def test_any_shape_has_the_counted_parameters_and_the_right_logits(head_width, heads, **shape):
    config = Model(width=heads * head_width, heads=heads, **shape)
    model = build(config)
    inputs, _ = batch(config, size=2)
    assert model.parameter_count() == formula(config)
    assert model(inputs).shape == (2, config.context_length, config.vocab_size)


def test_flops_are_those_of_palm():
    config = Model()
    multiplying = formula(config) - config.context_length * config.width
    assert on_meta(config).flops_per_token() == 6 * multiplying + 12 * 12 * 768 * 1024


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"heads": 3}, "heads"),
        ({"layers": 0}, "layers"),
        ({"width": -16}, "width"),
        ({"context_length": 0}, "context_length"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": -0.1}, "dropout"),
    ],
)
def test_impossible_shapes_are_refused_by_name(change, named):
    with pytest.raises(RefusedError, match=rf"model\.{named}.*{next(iter(change.values()))}"):
        GPT2(replace(TINY, **change))


def test_more_tokens_than_the_context_are_refused():
    with pytest.raises(ValueError, match="13 tokens exceed the context of 12"):
        build()(torch.zeros(1, 13, dtype=torch.long))


# Roles


@pytest.mark.parametrize("bias", [False, True])
def test_every_parameter_has_its_role(bias):
    model = on_meta(replace(TINY, bias=bias))
    names = {group["role"]: set(group["param_names"]) for group in mars.param_groups(model)}
    linear = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    assert names["matrix"] == {f"h.{i}.{part}.weight" for i in range(2) for part in linear}
    assert names["embedding"] == {"wte.weight", "wpe.weight"}
    norms = {f"h.{i}.ln_{j}.weight" for i in range(2) for j in (1, 2)} | {"ln_f.weight"}
    biases = {name for name in model.state_dict() if name.endswith(".bias")}
    assert len(biases) == (13 if bias else 0)
    assert names["vector"] == norms | biases
    assert set(names) == {"matrix", "embedding", "vector"}


# Initial weights


def test_initial_weights_have_the_recipes_spread():
    model = build(Model(layers=8, heads=2, width=128, vocab_size=512, bias=True))
    for name, param in model.named_parameters():
        if param.ndim == 1:
            assert param.unique().tolist() == [0.0 if name.endswith("bias") else 1.0]
            continue
        std = 0.02 / math.sqrt(2 * 8) if name.endswith("c_proj.weight") else 0.02
        # Five standard errors of a standard deviation and of a mean.
        assert param.std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * param.numel()))
        assert abs(param.mean().item()) < 5 * std / math.sqrt(param.numel())


def test_initial_loss_is_that_of_a_uniform_guess():
    config = Model(layers=2, heads=2, width=64, context_length=64, vocab_size=256)
    loss = build(config)(*batch(config, size=4))
    assert loss.item() == pytest.approx(math.log(256), abs=0.05)


def test_initial_weights_depend_on_the_seed_alone():
    first, again, other = build(seed=1), build(seed=1), build(seed=2)
    torch.manual_seed(5)
    default = GPT2(TINY).initialize_(torch.Generator().manual_seed(1))
    for name, param in first.state_dict().items():
        assert torch.equal(param, again.state_dict()[name])
        assert torch.equal(param, default.state_dict()[name])
    assert not torch.equal(first.wte.weight, other.wte.weight)
    assert not torch.equal(first.h[0].mlp.c_fc.weight, first.h[1].mlp.c_fc.weight)


def test_a_model_from_meta_has_the_same_weights():
    model = on_meta(TINY)
    assert all(param.is_meta for param in model.parameters())
    model.to_empty(device="cpu").initialize_(torch.Generator().manual_seed(3))
    for name, param in build(seed=3).state_dict().items():
        assert torch.equal(param, model.state_dict()[name])


def test_initial_weights_of_half_precision_are_those_of_float32_rounded():
    model = on_meta(TINY).to(torch.bfloat16).to_empty(device="cpu")
    model.initialize_(torch.Generator().manual_seed(3))
    for name, param in build(seed=3).state_dict().items():
        assert torch.equal(param.bfloat16(), model.state_dict()[name])


@pytest.fixture
def second_rank_of_two():
    """A process that believes to be rank 1 of 2; nothing it sends arrives."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield init_device_mesh("cpu", (2,))
    torch.distributed.destroy_process_group()


def test_a_sharded_model_holds_its_part_of_the_same_weights(second_rank_of_two):
    model = build(seed=9)
    for module in model.modules():
        for name, param in list(module.named_parameters(recurse=False)):
            sharded = distribute_tensor(
                param.detach(), second_rank_of_two, [Shard(0)], src_data_rank=None
            )
            module.register_parameter(name, torch.nn.Parameter(sharded))
    model.initialize_(torch.Generator().manual_seed(3))
    for name, whole in build(seed=3).state_dict().items():
        param = model.state_dict()[name]
        assert isinstance(param, DTensor)
        assert torch.equal(param.to_local(), whole.chunk(2)[1])


# Forward


def attention_by_hand(x: torch.Tensor, attn, *, divisor: float) -> torch.Tensor:
    batch_size, length, width = x.shape
    parts = attn.c_attn(x).view(batch_size, length, 3, attn.heads, -1).permute(2, 0, 3, 1, 4)
    query, key, value = parts
    logits = query @ key.mT / math.sqrt(query.shape[-1]) / divisor
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    mixed = logits.masked_fill(future, -torch.inf).softmax(-1) @ value
    return attn.c_proj(mixed.transpose(1, 2).reshape(batch_size, length, width))


@pytest.mark.parametrize("scaled", [True, False])
def test_attention_logits_are_divided_by_the_layers_number(scaled):
    config = replace(TINY, layers=3, scale_attention_by_layer=scaled)
    model = sharper(build(config)).double()
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    for number, block in enumerate(model.h, start=1):
        expected = attention_by_hand(x, block.attn, divisor=number if scaled else 1)
        torch.testing.assert_close(block.attn(x), expected)


def test_scaling_changes_every_layer_but_the_first():
    x = torch.randn(1, 7, 16)
    plain, scaled = (
        sharper(build(replace(TINY, scale_attention_by_layer=s))) for s in (False, True)
    )
    assert torch.equal(plain.h[0].attn(x), scaled.h[0].attn(x))
    assert not torch.allclose(plain.h[1].attn(x), scaled.h[1].attn(x), atol=1e-3)


@given(position=st.integers(1, 11), token=st.integers(0, 28))
@settings(max_examples=20)
def test_a_later_token_leaves_earlier_logits_equal(position, token):
    model = sharper(build())
    inputs, _ = batch()
    inputs[:, position] = 0
    changed = inputs.clone()
    changed[:, position] = token
    before, after = model(inputs), model(changed)
    assert torch.equal(before[:, :position], after[:, :position])
    assert token == 0 or not torch.allclose(before[:, position:], after[:, position:])


def test_a_shorter_sequence_gives_the_first_logits():
    model = sharper(build())
    inputs, _ = batch()
    torch.testing.assert_close(model(inputs[:, :5]), model(inputs)[:, :5])


def test_loss_is_the_mean_cross_entropy_of_the_logits():
    model = sharper(build())
    inputs, targets = batch()
    chosen = model(inputs).log_softmax(-1).gather(-1, targets[..., None])
    torch.testing.assert_close(model(inputs, targets), -chosen.mean())


def test_the_head_is_the_embedding():
    model = build()
    inputs, targets = batch()
    assert "lm_head.weight" not in model.state_dict()
    assert model.get_output_embeddings() is model.wte
    expected = model.features(inputs) @ model.wte.weight.mT
    torch.testing.assert_close(model(inputs), expected)
    model(inputs, targets).backward()
    unseen = set(range(29)) - set(inputs.flatten().tolist())
    assert unseen
    # Rows of tokens that do not occur get a gradient through the head only.
    assert model.wte.weight.grad[list(unseen)].abs().sum(1).min() > 0


def test_dropout_acts_in_training_alone():
    model = build(replace(TINY, dropout=0.5))
    inputs, _ = batch()
    plain = build()
    plain.load_state_dict(model.state_dict())
    assert not torch.equal(model(inputs), model(inputs))
    assert torch.equal(model.eval()(inputs), plain(inputs))


# Ways to run it


def gradients(model: GPT2, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: param.grad for name, param in model.named_parameters()}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_activation_checkpointing_leaves_gradients_equal(dropout):
    config = replace(TINY, dropout=dropout)
    model = sharper(build(config, activation_checkpointing=True))
    saved: list[int] = []
    found = []
    for checkpointed in (True, False):
        model.activation_checkpointing = checkpointed
        torch.manual_seed(0)
        saved.append(0)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: (saved.__setitem__(-1, saved[-1] + t.numel()), t)[1], lambda t: t
        ):
            loss = model(*batch(config))
        found.append(gradients(model, loss))
    for name, grad in found[0].items():
        assert torch.equal(grad, found[1][name]), name
    assert saved[0] < saved[1]


def test_compiled_as_one_graph_gives_equal_logits_and_gradients():
    model = sharper(build())
    inputs, targets = batch()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(inputs), model(inputs))
    expected = gradients(model, model(inputs, targets))
    for name, grad in gradients(model, compiled(inputs, targets)).items():
        torch.testing.assert_close(grad, expected[name])


def test_checkpointed_model_compiles_as_one_graph():
    model = sharper(build(activation_checkpointing=True))
    expected = gradients(model, model(*batch()))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for name, grad in gradients(model, compiled(*batch())).items():
        torch.testing.assert_close(grad, expected[name])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_a_float32_loss_near_that_of_float32(dtype):
    model = build()
    inputs, targets = batch()
    with torch.autocast("cpu", dtype=dtype):
        assert model(inputs).dtype == dtype
        loss = model(inputs, targets)
    assert loss.dtype == torch.float32
    # Logits are below 0.1 in size: their rounding at 8 bits moves a loss by less than 1e-3.
    assert loss.item() == pytest.approx(model(inputs, targets).item(), abs=1e-3)
    assert all(grad.isfinite().all() for grad in gradients(model, loss).values())


def test_a_double_model_has_a_double_loss():
    assert build().double()(*batch()).dtype == torch.float64


def test_a_few_steps_of_mars_learn_a_batch_by_heart():
    model = build()
    optimizer = mars.MARS(mars.param_groups(model), lr=1e-2)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = model(*batch())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]

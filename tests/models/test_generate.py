"""Sampling: what is drawn, from what, and when it stops."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mars.config.errors import RefusedError
from mars.config.schema import Model
from mars.models.generate import generate, stream
from mars.models.gpt2 import GPT2

SHAPE = Model(layers=2, heads=2, width=16, context_length=8, vocab_size=23)
PROMPT = torch.tensor([3, 1, 4])


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def model() -> GPT2:
    """A model whose next token depends on those before, without a near tie."""
    made = GPT2(SHAPE, generator=seeded(0)).eval()
    with torch.no_grad():
        for param in made.parameters():
            if param.ndim > 1:
                param.mul_(20)
    return made


def greedy_loop(model: GPT2, tokens: list[int], count: int) -> list[int]:
    for _ in range(count):
        logits = model(torch.tensor([tokens[-SHAPE.context_length :]]))
        tokens = [*tokens, int(logits[0, -1].argmax())]
    return tokens


@settings(max_examples=20)
@given(prompt=st.lists(st.integers(0, 22), min_size=1, max_size=12), count=st.integers(0, 12))
def test_temperature_zero_is_the_argmax_loop_beyond_the_context_too(model, prompt, count):
    text = generate(model, torch.tensor(prompt), count=count, temperature=0.0)
    assert text.tolist() == greedy_loop(model, prompt, count)


def test_one_candidate_is_greedy(model):
    greedy = generate(model, PROMPT, count=20, temperature=0.0)
    assert len(set(greedy.tolist())) > 3  # a text that repeats itself would show little
    single = generate(model, PROMPT, count=20, temperature=1.7, top_k=1)
    assert torch.equal(single, greedy)
    cold = generate(model, PROMPT, count=20, temperature=1e-30)
    assert torch.equal(cold, greedy)


def test_the_seed_decides_the_text(model):
    first, again, other = (
        generate(model, PROMPT, count=30, temperature=2.0, generator=seeded(s)) for s in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_stream_yields_what_generate_returns(model):
    text = generate(model, PROMPT, count=9, generator=seeded(1))
    streamed = list(stream(model, PROMPT, count=9, generator=seeded(1)))
    assert text.tolist() == [*PROMPT.tolist(), *streamed]
    assert len(streamed) == 9


def test_frequencies_are_the_softmax_at_the_temperature(model):
    generator = seeded(0)
    draws = [
        next(stream(model, PROMPT, count=1, temperature=0.5, generator=generator))
        for _ in range(600)
    ]
    expected = (model(PROMPT[None])[0, -1] / 0.5).softmax(0).detach()
    frequencies = torch.tensor(draws).bincount(minlength=23) / len(draws)
    error = (expected * (1 - expected) / len(draws)).sqrt()
    assert torch.all((frequencies - expected).abs() < 4 * error + 1 / len(draws))
    assert float((frequencies - 1 / 23).abs().max()) > 0.1  # far from uniform


def test_top_k_samples_from_the_likeliest_alone(model):
    likeliest = set(model(PROMPT[None])[0, -1].topk(3).indices.tolist())
    generator = seeded(0)
    drawn = {
        next(stream(model, PROMPT, count=1, temperature=50.0, top_k=3, generator=generator))
        for _ in range(60)
    }
    assert drawn == likeliest


def test_top_k_above_the_vocabulary_is_all(model):
    texts = [generate(model, PROMPT, count=9, top_k=k, generator=seeded(0)) for k in (None, 99)]
    assert torch.equal(*texts)


def test_banned_tokens_never_occur(model):
    ban = range(1, 22)
    text = generate(model, PROMPT, count=40, temperature=5.0, ban=ban, generator=seeded(0))
    assert set(text[3:].tolist()) == {0, 22}


def test_the_stop_token_ends_the_text_and_is_left_out(model):
    greedy = generate(model, PROMPT, count=20, temperature=0.0).tolist()
    stop = greedy[8]
    end = greedy.index(stop, 3)
    text = generate(model, PROMPT, count=20, temperature=0.0, stop_token=stop)
    assert text.tolist() == greedy[:end]


def test_sampling_leaves_modes_between_tokens_alone():
    noisy = GPT2(replace(SHAPE, dropout=0.9), generator=seeded(0))
    texts = []
    for _ in range(2):
        tokens = stream(noisy, PROMPT, count=5, temperature=0.0)
        texts.append([next(tokens)])
        assert noisy.training
        assert torch.is_grad_enabled()
        texts[-1] += tokens
    assert texts[0] == texts[1]  # dropout was off
    assert all(module.training for module in noisy.modules())


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        (torch.zeros(0, dtype=torch.long), {}, r"at least one token, got shape \(0,\)"),
        (PROMPT[None], {}, r"one sequence .* got shape \(1, 3\)"),
        (torch.tensor([3, 23]), {}, "tokens from 3 to 23, the model those from 0 to 22"),
        (torch.tensor([-1]), {}, "tokens from -1 to -1"),
        (PROMPT, {"count": -1}, "count must not be negative, got -1"),
        (PROMPT, {"temperature": -0.5}, "temperature .* got -0.5"),
        (PROMPT, {"temperature": float("nan")}, "temperature .* got nan"),
        (PROMPT, {"top_k": 0}, "top_k must be at least 1, got 0"),
        (PROMPT, {"ban": [23]}, "ban must hold tokens from 0 to 22"),
        (PROMPT, {"ban": range(23)}, "ban holds every token"),
    ],
)
def test_bad_requests_are_refused_at_the_call(model, tokens, options, message):
    with pytest.raises(RefusedError, match=message):
        stream(model, tokens, **{"count": 1, **options})


def test_a_diverged_model_is_refused():
    broken = GPT2(SHAPE, generator=seeded(0))
    with torch.no_grad():
        broken.ln_f.weight[0] = torch.nan
    with pytest.raises(RefusedError, match="not finite"):
        generate(broken, PROMPT, count=1, temperature=0.0)

"""Scores of continuations: equal to the definition, whatever is batched, shared, cut or divided."""

import random
from dataclasses import replace

import pytest
import torch

from evaluation.trained import TINY, byte_model
from mars.evaluation import scoring
from mars.evaluation.scoring import Compute, Pair, Score, score, token_scores
from mars.training.launch import Launch
from mars.training.world import World

MODEL = byte_model()


def random_pairs(count: int, *, seed: int = 0, longest: int = 12) -> list[Pair]:
    draw = random.Random(seed)
    return [
        Pair(
            [draw.randrange(257) for _ in range(draw.randint(1, longest))],
            [draw.randrange(257) for _ in range(draw.randint(1, longest))],
        )
        for _ in range(count)
    ]


def defined(pair: Pair) -> Score:
    """Return the score by its definition, one token after the other, in float64."""
    model = byte_model().double()
    total, is_greedy = 0.0, True
    seen = list(pair.context)
    for token in pair.continuation:
        with torch.no_grad():
            read = torch.tensor([seen[-TINY.context_length :]])
            logits = model(read)[0, -1].log_softmax(0)
        total += float(logits[token])
        is_greedy &= int(logits.argmax()) == token
        seen.append(token)
    return Score(total, is_greedy)


def assert_same(found: list[Score], expected: list[Score], *, tolerance: float = 2e-4) -> None:
    # Sums of up to a dozen logs of about 10, in float32.
    assert [each.is_greedy for each in found] == [each.is_greedy for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.log_likelihood == pytest.approx(other.log_likelihood, abs=tolerance)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_scores_equal_their_definition(batch_size):
    pairs = random_pairs(20)
    found = score(MODEL, pairs, compute=Compute(batch_size=batch_size))
    assert_same(found, [defined(pair) for pair in pairs])


def test_an_answer_is_summed_in_float32_as_lm_eval_sums_it(monkeypatch):
    pairs = random_pairs(20, seed=5)
    every: list[torch.Tensor] = []

    def recorded(*arguments):
        found, hits = token_scores(*arguments)
        every.append(found)
        return found, hits

    monkeypatch.setattr(scoring, "token_scores", recorded)
    found = [score(MODEL, [pair], compute=Compute())[0].log_likelihood for pair in pairs]
    assert found == [float(own.sum()) for own in every]
    assert found != [float(own.double().sum()) for own in every]


def test_the_order_of_requests_is_kept():
    pairs = random_pairs(30, seed=1)
    straight = score(MODEL, pairs, compute=Compute(batch_size=4))
    backwards = score(MODEL, pairs[::-1], compute=Compute(batch_size=4))
    assert backwards[::-1] == straight


def test_the_likeliest_continuation_is_greedy_and_no_other():
    with torch.no_grad():
        first = int(MODEL(torch.tensor([[5, 6]]))[0, -1].argmax())
        second = int(MODEL(torch.tensor([[5, 6, first]]))[0, -1].argmax())
    pairs = [Pair([5, 6], [first, second]), Pair([5, 6], [first, (second + 1) % 257])]
    assert [each.is_greedy for each in score(MODEL, pairs, compute=Compute())] == [True, False]


def test_choices_of_one_token_read_their_question_once(monkeypatch):
    read = []
    features = MODEL.features
    monkeypatch.setattr(MODEL, "features", lambda tokens: read.append(tokens) or features(tokens))
    pairs = [Pair([1, 2, 3], [choice]) for choice in (10, 20, 30, 40)]
    found = score(MODEL, pairs, compute=Compute(batch_size=16))
    assert [tuple(tokens.shape) for tokens in read] == [(1, 3)]
    assert_same(found, [defined(pair) for pair in pairs])


def test_equal_requests_have_equal_scores():
    pair = Pair([9, 8, 7], [6, 5])
    once, again = score(MODEL, [pair, pair], compute=Compute())
    assert once == again
    assert_same([once], [defined(pair)])


def test_the_head_sees_continuations_alone(monkeypatch):
    seen = []

    def counted(features, targets, head):
        seen.append(len(features))
        return token_scores(features, targets, head)

    monkeypatch.setattr(scoring, "token_scores", counted)
    pairs = [Pair(range(1, 20), [1, 2]), Pair(range(30, 45), [3, 4, 5])]
    score(MODEL, pairs, compute=Compute())
    assert seen == [5]


def test_a_long_context_is_cut_from_the_left():
    tokens = [draw % 257 for draw in range(3, 3 + 7 * 60, 7)]
    long = Pair(tokens, [1, 2, 3])
    # Inputs are all but the last token: so much of the context is still read.
    kept = TINY.context_length - 2
    assert score(MODEL, [long], compute=Compute()) == score(
        MODEL, [Pair(tokens[-kept:], [1, 2, 3])], compute=Compute()
    )
    shorter = score(MODEL, [Pair(tokens[-kept + 1 :], [1, 2, 3])], compute=Compute())
    assert shorter != score(MODEL, [long], compute=Compute())


def test_a_continuation_longer_than_the_context_is_predicted_token_by_token_once():
    length = TINY.context_length
    context, continuation = [7], [draw * 11 % 257 for draw in range(2 * length + 5)]
    parts = [
        Pair(context + continuation[:start], continuation[start : start + length])
        for start in range(0, len(continuation), length)
    ]
    found = score(MODEL, [Pair(context, continuation)], compute=Compute())[0]
    expected = score(MODEL, parts, compute=Compute())
    assert found.log_likelihood == pytest.approx(
        sum(each.log_likelihood for each in expected), rel=1e-6
    )
    assert len(parts) == 3


@pytest.mark.parametrize("size", [2, 3])
def test_processes_divide_the_batches_and_sum_to_the_scores_of_one(size, monkeypatch):
    pairs = random_pairs(25, seed=2)
    shares = []
    monkeypatch.setattr(Compute, "sum_", lambda self, tensor: shares.append(tensor) or tensor)
    score(MODEL, pairs, compute=Compute(batch_size=4))
    alone = shares.pop()
    for rank in range(size):
        world = World(Launch(rank=rank, size=size))
        score(MODEL, pairs, compute=Compute(batch_size=4, world=world))
    assert all((share[0] == 0).any() and (share[0] != 0).any() for share in shares)
    assert torch.equal(torch.stack(shares).sum(0), alone)


def test_progress_ends_at_the_whole():
    heard = []
    pairs = random_pairs(10, seed=3)
    score(MODEL, pairs, compute=Compute(batch_size=3), advance=lambda *each: heard.append(each))
    assert heard == [(3, 10), (6, 10), (9, 10), (10, 10)]


def test_no_requests_have_no_scores():
    assert score(MODEL, [], compute=Compute()) == []


def test_the_head_is_worked_through_in_parts(monkeypatch):
    features = torch.randn(50, 16, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(50)
    with torch.no_grad():
        whole = token_scores(features, targets, MODEL.wte.weight)
        monkeypatch.setattr(scoring, "_CPU_LOGITS", 7 * 257)
        parts = token_scores(features, targets, MODEL.wte.weight)
        expected = (features @ MODEL.wte.weight.T).log_softmax(1).gather(1, targets[:, None])
    torch.testing.assert_close(parts[0], whole[0])
    torch.testing.assert_close(whole[0], expected[:, 0])
    assert torch.equal(parts[1], whole[1])


def test_bfloat16_is_near_and_sums_in_float32():
    pairs = random_pairs(5, seed=4)
    near = score(MODEL, pairs, compute=Compute(precision="bfloat16"))
    exact = score(MODEL, pairs, compute=Compute())
    assert near != exact
    for one, other in zip(near, exact, strict=True):
        assert one.log_likelihood == pytest.approx(other.log_likelihood, rel=0.05)


def test_an_untied_width_is_no_matter():
    wide = byte_model(replace(TINY, width=32, context_length=12))
    pairs = random_pairs(6, seed=5, longest=5)
    found = score(wide, pairs, compute=Compute(batch_size=2))
    single = [score(wide, [pair], compute=Compute())[0] for pair in pairs]
    assert_same(found, single, tolerance=1e-4)

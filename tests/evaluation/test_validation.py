"""Validation on any corpus: what training would have measured, on tokens that can be compared."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from evaluation.trained import TINY, byte_subject
from mars.config.errors import RefusedError
from mars.data.corpus import Corpus
from mars.evaluation.scoring import Compute
from mars.evaluation.subject import open_subject
from mars.evaluation.validation import Extent, validate
from mars.metrics.jsonl import read_records
from mars.training.launch import Launch
from mars.training.world import World
from training.runs import make_corpus, run, write_config


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return Corpus.open(make_corpus(tmp_path_factory.mktemp("bytes")))


def extent(tokens: int, context_length: int | None = None) -> Extent:
    return Extent(tokens=tokens, context_length=context_length)


def test_a_run_has_the_loss_that_training_recorded(tmp_path):
    made = make_corpus(tmp_path)
    run(write_config(tmp_path, made), tmp_path / "run")
    last = [
        each for each in read_records(tmp_path / "run" / "metrics.jsonl") if each.split == "val"
    ]
    subject = open_subject(str(tmp_path / "run"))
    found = validate(subject, Corpus.open(made), extent(8 * 16), compute=Compute(batch_size=3))
    assert found.tokens == 8 * 16
    assert found.loss == pytest.approx(last[-1].loss, rel=1e-6)
    assert subject.step == last[-1].step == 12


def test_the_english_run_has_the_loss_that_training_recorded(english):
    subject = open_subject(str(english))
    records = [each for each in read_records(english / "metrics.jsonl") if each.split == "val"]
    corpus = Corpus.open(english.parent / "corpus")
    found = validate(subject, corpus, extent(16 * 96), compute=Compute())
    assert found.loss == pytest.approx(records[-1].loss, rel=1e-5)
    # Windows of the first and of the last tokens are among the 16: bytes by decoding them.
    starts = np.arange(16) * ((len(corpus.validation) - 1) // 96) // 16 * 96
    targets = corpus.validation.windows(starts + 1, length=96)
    assert targets.max() < 50256
    encoding = subject.tokenizer._encoding
    spelt = sum(len(encoding.decode_bytes(row.tolist())) for row in targets)
    assert found.bytes == spelt
    expected = found.loss * found.tokens / math.log(2) / spelt
    assert found.bits_per_byte == pytest.approx(expected)


def test_loss_perplexity_and_bits_are_one_number_in_three_forms(corpus):
    found = validate(byte_subject(), corpus, extent(10**9), compute=Compute())
    assert found.perplexity == pytest.approx(math.exp(found.loss))
    # Ends of text spell nothing.
    ends = int((corpus.validation.read(1, found.tokens + 1) == 256).sum())
    assert found.tokens - found.bytes == ends > 0
    assert found.bits_per_byte == pytest.approx(
        found.loss / math.log(2) * found.tokens / found.bytes
    )


def test_the_loss_is_that_of_the_model(corpus):
    subject = byte_subject()
    found = validate(subject, corpus, extent(24), compute=Compute())
    tokens = torch.from_numpy(corpus.validation.read(0, 25).astype("int64"))
    with torch.no_grad():
        expected = subject.model(tokens[None, :-1], tokens[None, 1:])
    assert found.loss == pytest.approx(float(expected), rel=1e-6)


def test_equal_windows_compare_models_of_other_contexts(corpus):
    longer = byte_subject(replace(TINY, context_length=48))
    results = [
        validate(each, corpus, extent(480, 12), compute=Compute())
        for each in (byte_subject(), longer)
    ]
    assert [each.tokens for each in results] == [480, 480]
    assert [each.context_length for each in results] == [12, 12]
    assert results[0].bytes == results[1].bytes
    assert results[0].digest == results[1].digest == corpus.digest


@pytest.mark.parametrize("batch_size", [1, 5])
def test_batches_do_not_change_the_loss(batch_size, corpus):
    subject = byte_subject()
    whole = validate(subject, corpus, extent(240), compute=Compute(batch_size=16))
    found = validate(subject, corpus, extent(240), compute=Compute(batch_size=batch_size))
    assert found.loss == pytest.approx(whole.loss, rel=1e-6)
    assert (found.tokens, found.bytes) == (whole.tokens, whole.bytes)


def test_processes_divide_the_windows(corpus, monkeypatch):
    shares = []
    monkeypatch.setattr(Compute, "sum_", lambda self, tensor: shares.append(tensor) or tensor)
    subject = byte_subject()
    alone = validate(subject, corpus, extent(240), compute=Compute(batch_size=3))
    shares.clear()
    for rank in range(2):
        world = World(Launch(rank=rank, size=2))
        validate(subject, corpus, extent(240), compute=Compute(batch_size=3, world=world))
    nats, tokens, spelt = sum(shares).tolist()
    assert (tokens, spelt) == (alone.tokens, alone.bytes)
    assert nats / tokens == pytest.approx(alone.loss, rel=1e-12)
    assert min(float(share[1]) for share in shares) > 0


def test_more_tokens_than_there_are_is_all_of_them(corpus):
    heard = []
    found = validate(
        byte_subject(),
        corpus,
        extent(10**9),
        compute=Compute(),
        advance=lambda *each: heard.append(each),
    )
    assert found.tokens == (len(corpus.validation) - 1) // 24 * 24
    assert heard[-1] == (found.tokens // 24, found.tokens // 24)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (extent(10), "--tokens 10 is less than one window of 24"),
        (extent(240, 25), "--context-length must lie between 1 and the model's 24, got 25"),
    ],
)
def test_impossible_extents_are_refused(asked, words, corpus):
    with pytest.raises(RefusedError, match=words):
        validate(byte_subject(), corpus, asked, compute=Compute())


def test_a_corpus_of_other_tokens_is_refused(english, tmp_path):
    other = Corpus.open(make_corpus(tmp_path / "made"))
    with pytest.raises(RefusedError, match=r"has the tokens of bytes, .* reads those of gpt2"):
        validate(open_subject(str(english)), other, extent(96), compute=Compute())

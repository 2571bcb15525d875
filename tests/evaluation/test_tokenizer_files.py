"""GPT-2's tokenizer as a Hugging Face folder has it: the same tokens, there and back."""

import json
from pathlib import Path

import pytest

from evaluation.trained import DATA, need_data
from mars.config.errors import RefusedError
from mars.data.tokenizers import Tokenizer, make_tokenizer
from mars.evaluation.tokenizer_files import gpt2_tokens, huggingface_files, read_vocabulary


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    need_data()
    return make_tokenizer("gpt2", bpe=DATA / "gpt2-bpe")


@pytest.fixture(scope="module")
def folder(gpt2, tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("tokenizer")
    for name, content in huggingface_files(gpt2, context_length=77).items():
        (made / name).write_bytes(content)
    return made


def test_transformers_reads_the_same_tokens(gpt2, folder):
    from transformers import AutoTokenizer

    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    theirs = AutoTokenizer.from_pretrained(folder)
    text = (DATA / "wikitext-2" / "valid.txt").read_text()[:100_000] + " \t\n☃ naïve 1984　é"
    assert theirs(text, verbose=False)["input_ids"] == gpt2.encode(text).tolist()
    assert theirs.eos_token_id == theirs.bos_token_id == gpt2.eot
    assert theirs.model_max_length == 77
    assert len(theirs) == gpt2.vocab_size


def test_merges_are_those_of_gpt2(gpt2, folder):
    merges = (folder / "merges.txt").read_text().splitlines()
    assert merges[:4] == ["#version: 0.2", "Ġ t", "Ġ a", "h e"]
    assert len(merges) == 1 + 50_000
    # As openly published, the same file makes the same tokenizer.
    (folder / "vocab.bpe").write_text((folder / "merges.txt").read_text())
    assert make_tokenizer("gpt2", bpe=folder / "vocab.bpe").files() == gpt2.files()


def test_a_vocabulary_is_read_again(gpt2, folder):
    assert read_vocabulary(folder / "vocab.json").files() == gpt2.files()


def test_tokens_are_bytes_by_rank(gpt2):
    tokens = gpt2_tokens(gpt2)
    assert len(tokens) == 50256
    assert tokens[995] == b" world"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"a": 0, "☃☃": 1}', '{"a": "x", "b": 1}'])
def test_another_vocabulary_is_refused(content, tmp_path):
    path = tmp_path / "vocab.json"
    path.write_text(content)
    with pytest.raises(RefusedError, match=r"vocab\.json does not hold GPT-2's tokens"):
        read_vocabulary(path)


def test_a_vocabulary_with_two_tokens_swapped_is_refused(folder, tmp_path):
    vocabulary = json.loads((folder / "vocab.json").read_text())
    vocabulary["the"], vocabulary["Ġthe"] = vocabulary["Ġthe"], vocabulary["the"]
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    with pytest.raises(RefusedError, match="does not hold GPT-2's tokens"):
        read_vocabulary(tmp_path / "vocab.json")

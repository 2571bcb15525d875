"""Tokenizers: any text survives, offline, and no text is an end of text."""

import base64
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import tiktoken
from hypothesis import example, given
from hypothesis import strategies as st

from mars.config.errors import RefusedError
from mars.data.tokenizers import END_OF_TEXT, ByteTokenizer, Gpt2Tokenizer, make_tokenizer

DATA = Path(os.environ.get("MARS_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
BPE = DATA / "gpt2-bpe"
CACHE = BPE / "tiktoken_cache"
VOCAB_BPE = CACHE / "6d1cbeee0f20b3d9449abfede4726ed8212e3aee"
needs_bpe = pytest.mark.skipif(not BPE.is_dir(), reason=f"no GPT-2 BPE at {BPE}")

# What the pattern treats in a special way: contractions, blanks of every kind, digits, marks.
TEXTS = st.one_of(
    st.text(),
    st.text(alphabet=" \t\n\r\x0b\x1c\x1f\x85\xa0\u2028\u3000\u200b'sdmtlrve09aé!戦🙂"),
)


@pytest.fixture(scope="module")
def gpt2():
    return make_tokenizer("gpt2", bpe=BPE)


@pytest.fixture
def no_network(monkeypatch):
    """Tiktoken has forgotten what it loaded, and cannot fetch it again."""
    monkeypatch.delitem(tiktoken.registry.ENCODINGS, "gpt2", raising=False)

    def unreachable(path: str) -> bytes:
        raise ConnectionError(path)

    monkeypatch.setattr("tiktoken.load.read_file", unreachable)


# Both tokenizers.


@given(text=TEXTS)
@example(text="")
@example(text=END_OF_TEXT)
def test_bytes_round_trip_any_text(text):
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert bytes(ids.tolist()) == text.encode()
    assert np.array_equal(tokenizer.encode(text.encode()), ids)


@needs_bpe
@given(text=TEXTS)
@example(text="")
@example(text=END_OF_TEXT)
def test_gpt2_round_trips_any_text(gpt2, text):
    ids = gpt2.encode(text)
    assert gpt2.decode(ids) == text
    assert gpt2.eot not in ids
    assert np.array_equal(gpt2.encode(text.encode()), ids)


@given(content=st.binary())
def test_bytes_encode_what_is_not_text(content):
    assert bytes(ByteTokenizer().encode(content).tolist()) == content


def test_bytes_spell_out_the_end_of_text():
    tokenizer = ByteTokenizer()
    assert (tokenizer.vocab_size, tokenizer.eot) == (257, 256)
    ids = [256, *tokenizer.encode("a"), 256, 256, *tokenizer.encode("é"), 256]
    assert tokenizer.decode(ids) == f"{END_OF_TEXT}a{END_OF_TEXT}{END_OF_TEXT}é{END_OF_TEXT}"


def test_a_broken_character_is_replaced():
    assert ByteTokenizer().decode([0xC3]) == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(("ids", "named"), [([0, 257], "257"), ([-1], "-1")])
def test_an_id_outside_the_vocabulary_is_named(ids, named):
    with pytest.raises(RefusedError, match=f"^{named} is not a token; .*256"):
        ByteTokenizer().decode(ids)


def test_half_of_a_surrogate_pair_is_named():
    with pytest.raises(RefusedError, match=r"character 2 .* surrogate"):
        ByteTokenizer().encode("ab\ud800")


def test_an_unknown_tokenizer_is_refused():
    with pytest.raises(RefusedError, match="'words'; it is bytes or gpt2"):
        make_tokenizer("words")


def test_bytes_refuse_a_bpe():
    with pytest.raises(RefusedError, match="bytes has no use for"):
        make_tokenizer("bytes", bpe=Path("gpt2.tiktoken"))


# GPT-2.


@needs_bpe
def test_gpt2_has_its_known_ids(gpt2):
    assert (gpt2.vocab_size, gpt2.eot) == (50257, 50256)
    assert gpt2.encode("hello world").tolist() == [31373, 995]
    assert gpt2.encode(END_OF_TEXT).tolist() == [27, 91, 437, 1659, 5239, 91, 29]
    assert gpt2.decode([31373, 995, 50256]) == f"hello world{END_OF_TEXT}"
    with pytest.raises(RefusedError, match=r"50303 is not a token; .* 50256"):
        gpt2.decode([50303])


@needs_bpe
def test_gpt2_names_the_byte_that_is_not_utf8(gpt2):
    with pytest.raises(UnicodeDecodeError) as caught:
        gpt2.encode(b"ab\xff")
    assert caught.value.start == 2


@needs_bpe
@pytest.mark.parametrize("end", ["", "x", "\x1c", "\n"])
def test_a_million_blanks_are_encoded_as_fewer_are(gpt2, end):
    """The tokens of a run are those of a shorter run, more often."""
    assert gpt2.decode(gpt2.encode("a" + " " * 1_000_000 + end)) == "a" + " " * 1_000_000 + end
    few, many = (gpt2.encode("a" + " " * n + end).tolist() for n in (1_000, 1_000_000))
    space = gpt2.encode(" ").tolist()
    assert many == few[:2] + space * 999_000 + few[2:]


@needs_bpe
@given(words=st.lists(st.text(alphabet="ab '\x1c9"), min_size=1, max_size=4))
def test_cutting_long_blanks_changes_no_token(gpt2, words):
    import mars.data.tokenizers as module

    text = "\n \u3000".join(words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LONG_RUN", 1)
        parts = list(module._cut_long_blanks(text))
    assert "".join(parts) == text
    assert [i for part in parts for i in gpt2.encode(part)] == gpt2.encode(text).tolist()


def test_blanks_are_those_of_unicode():
    """Python's own notion has the four information separators too, which the pattern lacks."""
    from mars.data.tokenizers import _BLANKS

    blanks = {c for c in map(chr, range(sys.maxunicode + 1)) if _BLANKS.fullmatch(c)}
    listed = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"
    assert blanks == {*listed, *map(chr, range(0x2000, 0x200B))}


@needs_bpe
@pytest.mark.usefixtures("no_network")
def test_every_source_of_the_bpe_gives_the_same_tokenizer(gpt2, tmp_path, monkeypatch):
    (tmp_path / "vocab.bpe").write_bytes(VOCAB_BPE.read_bytes())
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(CACHE))
    places = [tmp_path, tmp_path / "vocab.bpe", BPE / "gpt2.tiktoken", None]
    for place in places:
        assert make_tokenizer("gpt2", bpe=place).files() == gpt2.files()


@needs_bpe
def test_a_tokenizer_is_made_again_from_its_files(gpt2, tmp_path):
    for name, content in gpt2.files().items():
        (tmp_path / name).write_bytes(content)
    assert make_tokenizer("gpt2", bpe=tmp_path).encode("hello").tolist() == [31373]


@pytest.mark.usefixtures("no_network")
def test_without_file_and_network_the_way_out_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with pytest.raises(RefusedError, match=r"--bpe, or set TIKTOKEN_CACHE_DIR") as caught:
        make_tokenizer("gpt2")
    assert "\n" not in str(caught.value)


def test_a_place_without_bpe_is_named(tmp_path):
    for place in (tmp_path, tmp_path / "absent.tiktoken"):
        with pytest.raises(RefusedError, match=f"no gpt2.tiktoken or vocab.bpe at {place}"):
            make_tokenizer("gpt2", bpe=place)


@pytest.mark.parametrize("name", ["gpt2.tiktoken", "vocab.bpe"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"\n\n", b"#version: 0.2\n\xc4\xa0 t\n"])
def test_a_file_that_is_not_gpt2_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RefusedError, match=f"{tmp_path / name} does not hold GPT-2's BPE"):
        make_tokenizer("gpt2", bpe=tmp_path)


@needs_bpe
def test_two_swapped_merges_are_not_gpt2(gpt2):
    lines = gpt2.files()["gpt2.tiktoken"].splitlines()
    tokens = [base64.b64decode(line.split()[0]) for line in lines]
    assert Gpt2Tokenizer(tokens).files() == gpt2.files()
    tokens[300], tokens[301] = tokens[301], tokens[300]
    with pytest.raises(ValueError, match="50256 tokens are not GPT-2's"):
        Gpt2Tokenizer(tokens)

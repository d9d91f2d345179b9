"""Short texts get the ids of the whole tokenizer from the vocabulary's tables."""

from __future__ import annotations

import json

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sglk.errors import ArtifactError
from sglk.runtime.short_texts import ShortTexts
from sglk.runtime.tokenizer import GenerationConfig, Tokenizer
from sglk.targets.artifact.vocabulary import VocabularyTables, make_vocabulary
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

fuzz = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
WORDS = [
    "hello",
    " world",
    "<s>",
    "<|im_start|>",
    "<MARK>",
    "<mark>",
    "<S>",
    "\n",
    "  ",
    "ﬁ",
    "你好",
    "🙂",
]
letters = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
texts = st.lists(st.one_of(st.sampled_from(WORDS), letters), max_size=8).map("".join)


def tables_of(whole: tokenizers.Tokenizer) -> VocabularyTables:
    data = make_vocabulary(whole.to_str().encode())
    assert data is not None
    return VocabularyTables(memoryview(data))


@pytest.fixture(scope="module")
def shouting() -> tokenizers.Tokenizer:
    """Whole words first, NFKC and lower case, added tokens of every kind outside the vocabulary."""
    alphabet = {name: at for at, name in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w")]
    vocab = alphabet | {"".join(pair): 300 + at for at, pair in enumerate(merges)} | {"world": 400}
    made = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    pattern = Regex(r"\p{N}|[^\s\p{N}]+|\s+")
    cut = pre_tokenizers.Split(pattern, behavior="isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([cut, level])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>", "</s>"])
    made.add_tokens(
        [
            AddedToken("<mark>", normalized=True),
            AddedToken("<|im_start|>", lstrip=True, rstrip=True, normalized=False),
            AddedToken("你", single_word=True, normalized=False),
        ]
    )
    return made


@fuzz
@given(text=texts)
@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "shouting"])
def test_ids_are_those_of_the_whole_tokenizer(
    request: pytest.FixtureRequest, kind: str, text: str
) -> None:
    whole: tokenizers.Tokenizer = request.getfixturevalue(kind)
    found = ShortTexts(tables_of(whole)).encode(text)
    assert found is None or found == whole.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "shouting"])
@pytest.mark.parametrize("text", ["hello world", "Hello <s>你 好 <MARK>🙂", " <|im_start|> x\n"])
def test_common_texts_are_answered_from_the_tables(
    request: pytest.FixtureRequest, kind: str, text: str
) -> None:
    whole: tokenizers.Tokenizer = request.getfixturevalue(kind)
    found = ShortTexts(tables_of(whole)).encode(text)
    assert found == whole.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "shouting"])
def test_names_and_special_tokens_are_those_of_the_whole_tokenizer(
    request: pytest.FixtureRequest, kind: str
) -> None:
    whole: tokenizers.Tokenizer = request.getfixturevalue(kind)
    quick = Tokenizer(_unread, GenerationConfig(), tables_of(whole))
    plain = Tokenizer(whole, GenerationConfig())
    known = max(whole.get_vocab().values()) + 1
    assert [quick.name(at) for at in range(-1, known + 2)] == [
        "" if at < 0 else plain.name(at) for at in range(-1, known + 2)
    ]
    assert quick.special_ids == plain.special_ids
    assert quick.decoder_steps == plain.decoder_steps
    ids = whole.encode("hello 🙂 world").ids
    assert quick.decode(ids) == plain.decode(ids)


@pytest.mark.parametrize("text", ["<S>", "a</S> b", "Hello <|IM_START|>"])
def test_an_added_token_that_another_form_of_a_text_holds_is_none(
    shouting: tokenizers.Tokenizer, text: str
) -> None:
    """Lower case, these are words, and the model takes the words it knows whole."""
    found = ShortTexts(tables_of(shouting)).encode(text)
    assert found == shouting.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("text", ["a你b", "你", "a 你 b"])
def test_an_added_character_is_none_of_the_model(text: str) -> None:
    vocab = {"<unk>": 0, "a": 1, "b": 2, "\u2581": 3}
    vocab |= {f"<0x{byte:02X}>": 4 + byte for byte in range(256)}
    model = models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>")
    whole = tokenizers.Tokenizer(model)
    whole.add_tokens([AddedToken("你", single_word=True, normalized=False)])
    found = ShortTexts(tables_of(whole)).encode(text)
    assert found == whole.encode(text, add_special_tokens=False).ids


def test_a_text_with_characters_that_the_model_drops_is_left_to_the_whole() -> None:
    """Nothing stands between a and b then, so they merge."""
    model = models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")])
    whole = tokenizers.Tokenizer(model)
    assert whole.encode("a-b").ids == [2]
    shorts = ShortTexts(tables_of(whole))
    assert shorts.encode("a-b") is None and shorts.encode("ab") == [2]


def _unread() -> tokenizers.Tokenizer:
    raise AssertionError("the whole tokenizer was read for a short text")


def test_the_whole_tokenizer_is_read_when_there_is_more(byte_level: tokenizers.Tokenizer) -> None:
    reads = []

    def whole() -> tokenizers.Tokenizer:
        reads.append(1)
        return byte_level

    tokenizer = Tokenizer(whole, GenerationConfig(), tables_of(byte_level))
    assert tokenizer.encode("hello", context=99) == byte_level.encode("hello").ids
    assert not reads
    long = "hello world " * 400
    assert tokenizer.encode(long, context=9999) == byte_level.encode(long).ids
    tokenizer.encode("hello", context=99)
    assert reads == [1]


def test_a_server_has_the_whole_tokenizer_read_at_once(byte_level: tokenizers.Tokenizer) -> None:
    reads = []

    def whole() -> tokenizers.Tokenizer:
        reads.append(1)
        return byte_level

    Tokenizer(whole, GenerationConfig(), tables_of(byte_level)).read()
    assert reads == [1]


@pytest.mark.parametrize("change", [{"dropout": 0.1}, {"end_of_word_suffix": "</w>"}])
def test_other_kinds_have_no_tables(
    byte_level: tokenizers.Tokenizer, word_piece: tokenizers.Tokenizer, change: dict[str, object]
) -> None:
    content = json.loads(byte_level.to_str())
    content["model"] |= change
    assert make_vocabulary(json.dumps(content).encode()) is None
    assert make_vocabulary(word_piece.to_str().encode()) is None


@pytest.mark.parametrize("data", [b"", b"\xff" * 16, (2).to_bytes(8, "little") + b"{}" + b"\0" * 6])
def test_damaged_tables_are_refused(data: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"vocabulary\.bin: expected"):
        VocabularyTables(memoryview(data))

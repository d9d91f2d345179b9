"""Pieces of text: whole characters, nothing lost, nothing twice, stop strings cut exactly."""

from __future__ import annotations

import itertools

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sglk.runtime.text import AnswerText, StopMatcher, Vocabulary, WindowDetokenizer
from sglk.runtime.tokenizer import GenerationConfig, Tokenizer

fuzz = settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
texts = st.text(
    st.one_of(
        st.sampled_from("ab 你好世界안녕🙂👩‍👧é\n\t�"),
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    ),
    max_size=40,
)


def vocabulary_of(backend: tokenizers.Tokenizer) -> Vocabulary:
    return Vocabulary(Tokenizer(backend, GenerationConfig()))


def pieces(vocabulary: Vocabulary, ids: list[int], skip: bool = True) -> list[str]:
    detokenizer = vocabulary.detokenizer(skip)
    return [*map(detokenizer.push, ids), detokenizer.flush()]


def byte_ids(backend: tokenizers.Tokenizer, data: bytes) -> list[int]:
    found = [backend.token_to_id(f"<0x{byte:02X}>") for byte in data]
    return [id for id in found if id is not None]


@fuzz
@given(text=texts)
def test_byte_level_pieces_join_to_the_text(byte_level: tokenizers.Tokenizer, text: str) -> None:
    got = pieces(vocabulary_of(byte_level), byte_level.encode(text).ids)
    assert "".join(got) == text
    assert "�" in text or not any("�" in piece for piece in got)


@fuzz
@given(text=texts)
def test_byte_fallback_pieces_join_to_the_text(
    byte_fallback: tokenizers.Tokenizer, text: str
) -> None:
    ids = byte_fallback.encode(text, add_special_tokens=False).ids
    got = pieces(vocabulary_of(byte_fallback), ids)
    assert "".join(got) == byte_fallback.decode(ids)
    assert "�" in text or not any("�" in piece for piece in got)


@fuzz
@given(data=st.data(), skip=st.booleans())
def test_any_ids_give_what_the_tokenizer_decodes(
    byte_level: tokenizers.Tokenizer, data: st.DataObject, skip: bool
) -> None:
    """Malformed UTF-8 included: a model may emit anything."""
    size = byte_level.get_vocab_size()
    ids = data.draw(st.lists(st.integers(0, size - 1), max_size=30))
    got = "".join(pieces(vocabulary_of(byte_level), ids, skip))
    assert got == byte_level.decode(ids, skip_special_tokens=skip)


def test_a_character_is_shown_when_its_last_byte_comes(byte_fallback: tokenizers.Tokenizer) -> None:
    ids = byte_ids(byte_fallback, "你好".encode())
    assert pieces(vocabulary_of(byte_fallback), ids) == ["", "", "你", "", "", "好", ""]


def test_a_malformed_byte_does_not_spoil_its_neighbours(
    byte_fallback: tokenizers.Tokenizer,
) -> None:
    data = "你".encode() + b"\xff" + "好".encode()
    ids = byte_ids(byte_fallback, data)
    assert "".join(pieces(vocabulary_of(byte_fallback), ids)) == "你�好"


def test_an_unfinished_character_is_marked_at_the_end(byte_level: tokenizers.Tokenizer) -> None:
    ids = byte_level.encode("ab🙂").ids[:-1]
    assert "".join(pieces(vocabulary_of(byte_level), ids)) == byte_level.decode(ids)


def test_an_id_without_a_token_adds_nothing(byte_level: tokenizers.Tokenizer) -> None:
    assert pieces(vocabulary_of(byte_level), [10**6]) == ["", ""]


@fuzz
@given(ids=st.lists(st.integers(0, 9), max_size=20))
def test_other_decoders_work_through_a_window(
    word_piece: tokenizers.Tokenizer, ids: list[int]
) -> None:
    vocabulary = vocabulary_of(word_piece)
    assert isinstance(vocabulary.detokenizer(), WindowDetokenizer)
    assert "".join(pieces(vocabulary, ids)) == word_piece.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("fixture", ["byte_level", "byte_fallback"])
def test_the_window_agrees_with_the_bytes(fixture: str, request: pytest.FixtureRequest) -> None:
    backend = request.getfixturevalue(fixture)
    text = "hello 你好 🙂 world 안녕"
    window = WindowDetokenizer(backend, frozenset())
    ids = backend.encode(text, add_special_tokens=False).ids
    assert "".join([*map(window.push, ids), window.flush()]) == text


def test_the_window_does_not_hold_malformed_text_for_ever(byte_level: tokenizers.Tokenizer) -> None:
    window = WindowDetokenizer(byte_level, frozenset())
    bad = byte_level.token_to_id("ÿ")
    assert bad is not None
    shown = "".join(window.push(bad) for _ in range(100))
    assert len(shown) > 50
    assert shown + window.flush() == "�" * 100


def reference_stop(text: str, stops: list[str]) -> str:
    """Letter by letter: the first stop string to be complete ends the text."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)]
    return text


@fuzz
@given(
    chunks=st.lists(st.text("abc", max_size=4), max_size=10),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_do_not_depend_on_where_tokens_end(
    chunks: list[str], stops: list[str]
) -> None:
    matcher = StopMatcher(stops)
    shown = [matcher.push(chunk) for chunk in chunks]
    text, expected = "".join(chunks), reference_stop("".join(chunks), stops)
    assert matcher.stopped == (expected != text)
    for partial in itertools.accumulate(shown):
        assert expected.startswith(partial), "text past a stop string was shown"
    assert "".join(shown) + ("" if matcher.stopped else matcher.flush()) == expected


def test_answer_text_releases_what_was_held_back(byte_level: tokenizers.Tokenizer) -> None:
    answer = AnswerText(vocabulary_of(byte_level).detokenizer(), ["world!"])
    shown = [answer.push(id) for id in byte_level.encode("hello world").ids]
    assert "".join(shown) == "hello "
    assert answer.finish() == "world"


def test_answer_text_stops_inside_a_token(byte_level: tokenizers.Tokenizer) -> None:
    answer = AnswerText(vocabulary_of(byte_level).detokenizer(), ["o w"])
    shown = "".join(answer.push(id) for id in byte_level.encode("hello world").ids)
    assert (shown + answer.finish(), answer.stopped) == ("hell", True)

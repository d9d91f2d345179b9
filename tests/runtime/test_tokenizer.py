"""Prompts to ids: BOS policy, limits, and sentences for what is no prompt."""

from __future__ import annotations

import time

import pytest
import tokenizers
from sglk.errors import ArtifactError, RequestError
from sglk.runtime.tokenizer import GenerationConfig, Tokenizer


def made(backend: tokenizers.Tokenizer, add_bos: bool = True) -> Tokenizer:
    config = GenerationConfig(eos_token_ids=(1,), bos_token_id=0, add_bos=add_bos)
    return Tokenizer(backend, config)


def test_bos_is_added_once(byte_level: tokenizers.Tokenizer) -> None:
    tokenizer = made(byte_level)
    plain = byte_level.encode("hello").ids
    assert tokenizer.encode("hello", context=99) == [0, *plain]
    assert tokenizer.encode("<s>hello", context=99) == [0, *plain]
    assert tokenizer.encode("hello", context=99, add_bos=False) == plain
    assert made(byte_level, add_bos=False).encode("hello", context=99) == plain


def test_decode_is_what_streaming_gives(byte_level: tokenizers.Tokenizer) -> None:
    tokenizer = made(byte_level)
    ids = tokenizer.encode("hello 你好", context=99)
    assert tokenizer.decode(ids) == "hello 你好"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>hello 你好"


def test_special_tokens_are_named_for_templates(byte_level: tokenizers.Tokenizer) -> None:
    assert made(byte_level).special_tokens.bos_token == "<s>"
    assert made(byte_level).special_tokens.eos_token == "</s>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one character"),
        ("ab\ud800", "lone surrogate at character 2"),
        (b"ab", "expected text, got bytes"),
    ],
)
def test_what_is_no_prompt_is_refused(
    byte_level: tokenizers.Tokenizer, text: str, message: str
) -> None:
    with pytest.raises(RequestError, match=f"prompt: .*{message}"):
        made(byte_level).encode(text, context=99)


@pytest.mark.parametrize("letters", ["x", "hello world ", "好"])
def test_ten_megabytes_are_refused_at_once(byte_level: tokenizers.Tokenizer, letters: str) -> None:
    text = letters * (10_000_000 // len(letters))
    start = time.perf_counter()
    with pytest.raises(RequestError, match="fits the context of 2000 tokens, got"):
        made(byte_level).encode(text, context=2000)
    assert time.perf_counter() - start < 0.5


def test_many_characters_in_few_tokens_are_accepted(byte_level: tokenizers.Tokenizer) -> None:
    """A text that only looks long is not refused by its length."""
    text = "<|im_start|>" * 30
    assert len(made(byte_level, add_bos=False).encode(text, context=32)) == 30


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "expected JSON"),
        (b"[]", "expected an object, got list"),
        (b'{"eos_token_ids": 2}', "eos_token_ids as a list of ids, got 2"),
        (b'{"bos_token_id": -1}', "bos_token_id as an id or null, got -1"),
        (b'{"defaults": [1]}', "defaults as an object"),
    ],
)
def test_a_broken_generation_config_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ArtifactError, match=f"generation.json: .*{message}"):
        GenerationConfig.parse(data)


def test_a_broken_tokenizer_is_refused() -> None:
    with pytest.raises(ArtifactError, match=r"tokenizer.json: expected a tokenizer"):
        Tokenizer.parse(b"{}", GenerationConfig())

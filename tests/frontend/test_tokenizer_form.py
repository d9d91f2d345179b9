"""The form of a tokenizer.json that is stored: another spelling of the same tokenizer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sglk.frontend.tokenizer_form import quick_form
from tokenizers import Tokenizer, models

TOKENS = ["a", "b", "ab", "\u0120", "\u0120a", '"', "\\n", "ab\u0120a", "#version", "#versiona"]
VOCAB = {token: number for number, token in enumerate(TOKENS)}


def _json(merges: list[Any], **model: Any) -> bytes:
    tokenizer = Tokenizer(models.BPE(vocab=VOCAB, merges=[]))
    content = json.loads(tokenizer.to_str())
    content["model"] |= {"merges": merges, **model}
    return json.dumps(content, indent=1).encode()


def test_merges_become_texts_and_the_tokenizer_stays_the_same() -> None:
    text = _json([["a", "b"], ["\u0120", "a"], ["ab", "\u0120a"]])
    quick = quick_form(text)
    assert json.loads(quick)["model"]["merges"] == ["a b", "\u0120 a", "ab \u0120a"]
    before, after = Tokenizer.from_buffer(text), Tokenizer.from_buffer(quick)
    assert after.to_str() == before.to_str()
    assert after.encode("ab\u0120aab").tokens == ["ab\u0120a", "ab"]
    assert quick_form(quick) == quick


@pytest.mark.parametrize(
    "merges",
    [
        [["a", "b"], ["a b", "c"]],  # would be three parts
        [["a", ""]],
        [["#version", "a"]],  # would be a heading
    ],
)
def test_merges_that_texts_would_change_stay_as_they_are(merges: list[list[str]]) -> None:
    text = _json(merges)
    assert quick_form(text) is text


@pytest.mark.parametrize("kind", ["Unigram", "WordPiece"])
def test_other_models_stay_as_they_are(kind: str) -> None:
    text = json.dumps({"model": {"type": kind}}).encode()
    assert quick_form(text) is text

"""An artifact has the tables of a vocabulary where they say what the tokenizer says."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from sglk.frontend.tokenizer_files import TokenizerFiles, generation_facts
from sglk.tokenizer_members import tokenizer_members
from tokenizers import AddedToken, models, normalizers


def content(num_added: int) -> dict[str, Any]:
    model = models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")], unk_token="a")
    made = tokenizers.Tokenizer(model)
    made.add_tokens([f"<{number}>" for number in range(num_added)])
    found: dict[str, Any] = json.loads(made.to_str())
    return found


def has_tables(found: dict[str, Any]) -> bool:
    files = TokenizerFiles(json.dumps(found).encode(), None, generation_facts([], None, False, {}))
    members = tokenizer_members(files)
    assert "tokenizer.json" in members
    return "vocabulary.bin" in members


def test_tables_are_made_of_byte_pair_encoding() -> None:
    assert has_tables(content(100))


@pytest.mark.parametrize("number", [0, 99])
def test_ids_that_the_library_gives_anew_are_in_no_table(number: int) -> None:
    """It numbers added tokens in order, whatever the file says."""
    found = content(100)
    found["added_tokens"][number]["id"] = 500
    assert not has_tables(found)


@pytest.mark.parametrize(("other", "made"), [("<M>", False), ("<n>", True)])
def test_added_tokens_that_normalizing_makes_one_are_in_no_table(other: str, made: bool) -> None:
    model = models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")], unk_token="a")
    whole = tokenizers.Tokenizer(model)
    whole.normalizer = normalizers.Lowercase()
    whole.add_tokens([AddedToken(name, normalized=True) for name in ("<m>", other)])
    assert has_tables(json.loads(whole.to_str())) is made


def test_a_file_may_say_nothing_of_added_tokens() -> None:
    found = content(0)
    del found["added_tokens"]
    assert has_tables(found)

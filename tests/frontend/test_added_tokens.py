"""Tokens added in files beside tokenizer.json: the ids that transformers gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sglk.errors import FrontendError
from sglk.frontend.tokenizer_files import tokenizer_from_folder
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

BYTES = list(bytes_to_unicode().values())  # type: ignore[no-untyped-call]
TEXTS = ("plain", "<a>tool<b>x<think> y", "a<b >", "<s>again<a><a>")


def entry(text: str, **flags: bool) -> dict[str, Any]:
    plain = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    return {"content": text, **plain, "special": False} | flags


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """256 bytes and <s>; what else there is stands in other files."""
    tokenizer = Tokenizer(models.BPE(vocab={b: i for i, b in enumerate(BYTES)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>")])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def settle(folder: Path, added: dict[str, Any], **more: Any) -> None:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": added, **more}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def ours(folder: Path) -> Tokenizer:
    files = tokenizer_from_folder(folder)
    assert files is not None
    return Tokenizer.from_buffer(files.tokenizer_json)


def test_they_get_the_ids_that_transformers_gives(folder: Path) -> None:
    added = {
        "256": entry("<s>", special=True),
        "257": entry("<a>", special=True),
        "258": entry("<b>"),
        "259": entry("<think>", lstrip=True, rstrip=True),
    }
    settle(folder, added, eos_token="<a>")
    theirs: Any = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer = ours(folder)
    for text in TEXTS:
        assert tokenizer.encode(text, add_special_tokens=False).ids == theirs.encode(text)
    files = tokenizer_from_folder(folder)
    assert files is not None and files.generation["eos_token_ids"] == [257]


def test_added_tokens_json_counts_too(folder: Path) -> None:
    (folder / "added_tokens.json").write_text(json.dumps({"<b>": 258, "<a>": 257}))
    assert ours(folder).encode("<b><a>").ids == [258, 257]


def test_a_complete_tokenizer_stays_as_it_is(folder: Path) -> None:
    settle(folder, {"256": entry("<s>", special=True)})
    files = tokenizer_from_folder(folder)
    assert files is not None
    assert files.tokenizer_json == (folder / "tokenizer.json").read_bytes()


def test_ids_with_gaps_are_refused(folder: Path) -> None:
    settle(folder, {"300": entry("<a>")})
    with pytest.raises(FrontendError, match="added token '<a>' to have the id 300, got 257"):
        tokenizer_from_folder(folder)

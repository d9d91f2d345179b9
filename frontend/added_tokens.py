"""Tokens added to a vocabulary in files beside tokenizer.json.

Some folders have them in ``added_tokens_decoder`` of tokenizer_config.json, by id, or in
added_tokens.json, by text, and a tokenizer.json from before they were added. transformers adds what
is missing when it loads a tokenizer; so the tokenizer.json of an artifact has all of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..errors import FrontendError

_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False}


def with_added_tokens(
    text: bytes, tokenizer: Tokenizer, settings: Mapping[str, Any], extra: Mapping[str, Any]
) -> bytes:
    """``text`` with the tokens of tokenizer_config.json and added_tokens.json that it lacks."""
    missing = {
        i: token for i, token in _stated(settings, extra).items() if _lacks(tokenizer, token)
    }
    if not missing:
        return text
    content = json.loads(text)
    entries = [*(content.get("added_tokens") or []), *missing.values()]
    content["added_tokens"] = sorted(entries, key=lambda entry: int(entry["id"]))
    return json.dumps(content, ensure_ascii=False).encode()


def check_ids(
    tokenizer: Tokenizer, settings: Mapping[str, Any], extra: Mapping[str, Any], where: Path
) -> None:
    """Refuse added tokens that came out with other ids than the files give them."""
    for number, token in _stated(settings, extra).items():
        found = tokenizer.token_to_id(token["content"])
        if found != number:
            raise FrontendError(
                f"{where}: expected the added token {token['content']!r} to have the id {number}, "
                f"got {found} (save the tokenizer again with save_pretrained)"
            )


def _lacks(tokenizer: Tokenizer, token: Mapping[str, Any]) -> bool:
    return tokenizer.token_to_id(token["content"]) is None


def _stated(settings: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """What the two files say, by id, as entries of tokenizer.json."""
    found: dict[int, dict[str, Any]] = {}
    for text, number in extra.items():
        if isinstance(number, int):
            found[number] = {"id": number, "content": text, **_FLAGS, "normalized": True}
            found[number]["special"] = False
    decoder = settings.get("added_tokens_decoder")
    for key, token in decoder.items() if isinstance(decoder, dict) else ():
        if key.isdecimal() and isinstance(token, dict) and isinstance(token.get("content"), str):
            flags = {name: bool(token.get(name, default)) for name, default in _FLAGS.items()}
            special = bool(token.get("special", False))
            normalized = bool(token.get("normalized", not special))
            entry = {"id": int(key), "content": token["content"], **flags}
            found[int(key)] = entry | {"normalized": normalized, "special": special}
    return found

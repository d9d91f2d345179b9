"""The three tokenizer files of an artifact: tokenizer.json, chat template, generation facts.

The runtime encodes with ``add_special_tokens=False`` and puts `bos_token_id` in front itself when
``add_bos`` says so: a post-processor in tokenizer.json has no say, so both formats behave alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..errors import FrontendError
from .added_tokens import check_ids, with_added_tokens

# Files that AutoTokenizer can make a tokenizer.json from.
_CONVERTIBLE = ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
# Sampling defaults that a generation_config.json may carry, by the runtime's names.
_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True)
class TokenizerFiles:
    """`generation` is generation.json: eos_token_ids, bos_token_id, add_bos, defaults."""

    tokenizer_json: bytes
    chat_template: str | None
    generation: dict[str, Any]


def generation_facts(
    eos: Iterable[int], bos: int | None, add_bos: bool, defaults: Mapping[str, float]
) -> dict[str, Any]:
    """The content of generation.json.

    >>> generation_facts([2, 2], None, True, {})
    {'eos_token_ids': [2], 'bos_token_id': None, 'add_bos': False, 'defaults': {}}
    """
    return {
        "eos_token_ids": list(dict.fromkeys(eos)),
        "bos_token_id": bos,
        "add_bos": add_bos and bos is not None,
        "defaults": dict(defaults),
    }


def tokenizer_from_folder(folder: Path) -> TokenizerFiles | None:
    """The files of a Hugging Face folder; None when it holds no tokenizer."""
    text = _tokenizer_json(folder)
    if text is None:
        return None
    tokenizer = load_tokenizer(text, folder / "tokenizer.json")
    settings = read_json(folder / "tokenizer_config.json")
    added = settings, read_json(folder / "added_tokens.json")
    if (fuller := with_added_tokens(text, tokenizer, *added)) is not text:
        text, tokenizer = fuller, load_tokenizer(fuller, folder / "tokenizer.json")
        check_ids(tokenizer, *added, folder)
    generation = read_json(folder / "generation_config.json")
    model = read_json(folder / "config.json")
    bos = _first_id([generation, model], "bos_token_id") or _id_of(tokenizer, settings, "bos_token")
    bos_id = bos[0] if bos else None
    eos = _first_id([generation, model], "eos_token_id") or _id_of(tokenizer, settings, "eos_token")
    own = _id_of(tokenizer, settings, "eos_token")  # chat models often end turns with this one
    starts = tokenizer.encode("").ids[:1]
    return TokenizerFiles(
        tokenizer_json=text,
        chat_template=_chat_template(folder, settings),
        generation=generation_facts(
            [*eos, *own], bos_id, bool(starts) and starts[0] == bos_id, _defaults(generation)
        ),
    )


def load_tokenizer(text: bytes, where: Path) -> Tokenizer:
    """Parse a tokenizer.json; a malformed one raises `FrontendError`."""
    try:
        return Tokenizer.from_buffer(text)
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise FrontendError(f"{where}: expected a tokenizer.json, got: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """An object from a JSON file; empty when there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FrontendError(f"{path}: expected a JSON file, got: {error}") from error
    if not isinstance(value, dict):
        raise FrontendError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def _tokenizer_json(folder: Path) -> bytes | None:
    path = folder / "tokenizer.json"
    if path.is_file():
        return _without_truncation(path.read_bytes(), path)
    if not any((folder / name).is_file() for name in _CONVERTIBLE):
        return None
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return str(tokenizer.backend_tokenizer.to_str()).encode()
    except (OSError, ValueError, ImportError, AttributeError, TypeError, KeyError) as error:
        raise FrontendError(
            f"{folder}: expected a tokenizer that converts to tokenizer.json, got: {error} "
            "(save one with save_pretrained of a fast tokenizer)"
        ) from error


def _without_truncation(text: bytes, path: Path) -> bytes:
    """The file as it is, unless it cuts or pads prompts: training settings that must not serve."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise FrontendError(f"{path}: expected a JSON file, got: {error}") from error
    if not isinstance(content, dict) or not (content.get("truncation") or content.get("padding")):
        return text
    return json.dumps(content | {"truncation": None, "padding": None}, ensure_ascii=False).encode()


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, else the one in tokenizer_config.json (``default`` of several)."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {row.get("name"): row.get("template") for row in template if isinstance(row, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _first_id(files: Iterable[Mapping[str, Any]], key: str) -> list[int]:
    """The ids under `key` in the first file that has any."""
    for content in files:
        value = content.get(key)
        ids = value if isinstance(value, list) else [value]
        if found := [item for item in ids if isinstance(item, int)]:
            return found
    return []


def _id_of(tokenizer: Tokenizer, settings: Mapping[str, Any], key: str) -> list[int]:
    """The id of a token that tokenizer_config.json names by its text."""
    token = settings.get(key)
    text = token.get("content") if isinstance(token, dict) else token
    found = tokenizer.token_to_id(text) if isinstance(text, str) else None
    return [] if found is None else [found]


def _defaults(generation: Mapping[str, Any]) -> dict[str, float]:
    """Sampling values that the model's makers chose; none when they chose greedy decoding."""
    if not generation.get("do_sample"):
        return {}
    chosen = {name: generation.get(name) for name in _DEFAULTS}
    return {name: value for name, value in chosen.items() if isinstance(value, (int, float))}

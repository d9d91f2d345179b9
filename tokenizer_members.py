"""The tokenizer's files as members of an artifact."""

from __future__ import annotations

import json
import logging

from .frontend.tokenizer_files import TokenizerFiles
from .frontend.tokenizer_form import quick_form
from .runtime.short_texts import ShortTexts
from .targets.artifact.vocabulary import VocabularyTables, make_vocabulary

log = logging.getLogger(__name__)

PROBES = (
    "The capital of France is Paris.",
    " two  spaces,\ttab\r\n\n\nlines 12345 it's",
    "naïve café — Ångström \N{KELVIN SIGN} e\N{COMBINING ACUTE ACCENT} ﬁ Ⅳ １２",
    "你好，世界 안녕하세요 नमस्ते مرحبا 🙂👩‍👩‍👧🇫🇷",
    "\0\ufeff\u200b\u2581\u00a0x",
)
"""Texts that normalizers and pre-tokenizers treat in ways of their own."""
_MOST_MARKED = 64


def tokenizer_members(files: TokenizerFiles) -> dict[str, bytes]:
    """Contents by name within ``tokenizer/``."""
    tokenizer_json = quick_form(files.tokenizer_json)
    members = {
        "tokenizer.json": tokenizer_json,
        "generation.json": json.dumps(files.generation, indent=1).encode(),
    }
    if files.chat_template is not None:
        members["chat_template.jinja"] = files.chat_template.encode()
    tables = make_vocabulary(tokenizer_json)
    if tables is not None and _agrees(tables, tokenizer_json):
        members["vocabulary.bin"] = tables
    return members


def _agrees(tables: bytes, tokenizer_json: bytes) -> bool:
    """Whether the tables give the ids that the tokenizer itself gives.

    Every added token and every probe is looked at. The library numbers added tokens in order, or
    as the model does, whatever the file says. Without the tables the artifact is as right, and
    starts later.
    """
    import tokenizers

    vocabulary = VocabularyTables(memoryview(tables))
    shorts = ShortTexts(vocabulary)
    whole = tokenizers.Tokenizer.from_buffer(tokenizer_json)
    whole.no_truncation()
    whole.no_padding()
    decoder = whole.get_added_tokens_decoder()
    added = {id: token.content for id, token in decoder.items()}
    if whole.normalizer is not None:
        loose = [t.content for t in decoder.values() if t.normalized]
        if len({whole.normalizer.normalize_str(each) for each in loose}) < len(loose):
            # Which of them such a text means, the library decides by the order of all.
            log.warning("tokenizer: added tokens are alike when normalized: no tables are made")
            return False
    for token_id, content in added.items():
        if vocabulary.token(token_id) != content:
            log.warning(
                "tokenizer: %r is not %d in its file: no tables are made", content, token_id
            )
            return False
    marked = "hi".join(["", *list(added.values())[:_MOST_MARKED], " "])
    for text in (*PROBES, marked):
        found = shorts.encode(text)
        if found is not None and found != whole.encode(text, add_special_tokens=False).ids:
            log.warning("tokenizer: the tables differ for %r and are left out", text)
            return False
    return True

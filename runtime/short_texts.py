"""Ids of short texts without reading the whole tokenizer: the same ids, milliseconds after start.

Byte-pair encoding merges neighbours within a text, so only tokens that are part of the text can
come up. The tokenizers library, given a model of those alone, does all the work: normalizer,
pre-tokenizer, added tokens, merges. A first pass with single characters as the only tokens shows
what the text looks like to the model (as bytes, with other spaces, ...).
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

from ..targets.artifact.vocabulary import VocabularyTables

if TYPE_CHECKING:
    import tokenizers
    from tokenizers.models import BPE

_STRANGER = "<no such character>"
"""Stands for a character that the first pass did not expect."""
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""What sentencepiece models write for a space."""


class ShortTexts:
    """The tokenizer of `VocabularyTables`, made anew for each text."""

    def __init__(self, tables: VocabularyTables) -> None:
        self.tables = tables
        self._model: dict[str, Any] = tables.shell["model"]

    @staticmethod
    def prepare() -> None:
        """Load the library, for a thread that has the time."""
        import tokenizers.models  # noqa: F401

    def encode(self, text: str) -> list[int] | None:
        """Ids of a text, no special tokens put around it; None if its form is not foreseen."""
        from tokenizers.models import BPE

        added = self.tables.added_tokens(text)
        names = {token["content"]: token["id"] for token in added}
        tokenizer = self._of_added(added, names)
        tokenizer.model = self._of_characters(text, tokenizer, names)
        form = tokenizer.encode(text, add_special_tokens=False).tokens
        if _STRANGER in form:
            return None
        tokens = self.tables.model_tokens("".join(form))
        characters = {part for part in form if len(part) == 1} - names.keys()
        if not self._covers_all and not tokens.keys() >= characters:
            return None  # the model drops a character, and its neighbours may merge
        merges = self.tables.merges(tokens)
        tokenizer.model = BPE(tokens | self._fallbacks, merges, **self._options())
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _of_added(self, added: list[dict[str, Any]], names: dict[str, int]) -> tokenizers.Tokenizer:
        """All but the model: normalizer, pre-tokenizer and the added tokens, with their ids."""
        import tokenizers

        model = self._model | {"vocab": names, "merges": []}
        content = self.tables.shell | {"added_tokens": added, "model": model}
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def _of_characters(
        self, text: str, tokenizer: tokenizers.Tokenizer, names: dict[str, int]
    ) -> BPE:
        """A model that takes nothing together."""
        from tokenizers.models import BPE
        from tokenizers.pre_tokenizers import ByteLevel

        characters = {*text, _SPACE, *ByteLevel.alphabet()}
        if tokenizer.normalizer is not None:
            characters.update(tokenizer.normalizer.normalize_str(text))
        first = self.tables.num_ids
        ids = {name: first + at for at, name in enumerate(sorted(characters - set(names)))}
        ids[_STRANGER] = first + len(ids)
        return BPE(ids | names, [], unk_token=_STRANGER, fuse_unk=False)

    def _options(self) -> dict[str, Any]:
        keys = ("unk_token", "fuse_unk", "byte_fallback", "ignore_merges")
        return {key: self._model[key] for key in keys if self._model.get(key) is not None}

    @functools.cached_property
    def _covers_all(self) -> bool:
        """Whether there is a token for every character."""
        has_bytes = self._model.get("byte_fallback") and len(self._fallbacks) >= 256
        return bool(has_bytes) or self._model.get("unk_token") is not None

    @functools.cached_property
    def _fallbacks(self) -> dict[str, int]:
        """Tokens for what no other token covers."""
        names = [self._model.get("unk_token") or ""]
        if self._model.get("byte_fallback"):
            names += [f"<0x{byte:02X}>" for byte in range(256)]
        found = self.tables.model_tokens(" ".join(names))
        return {name: found[name] for name in names if name in found}

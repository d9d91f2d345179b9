"""The artifact's tokenizer: text to ids with the model's own BOS policy, and ids to text."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import ArtifactError, RequestError
from .chat import SpecialTokens
from .text import Detokenizer, Vocabulary

if TYPE_CHECKING:
    import tokenizers

_CHARS_PER_TOKEN = 8
"""A prompt with more characters per token of context than this is probably too long: look first."""
_CUT_EFFECT = 64
"""Tokens by which cutting a text can raise its count; merges are local, so a few would do."""


@dataclass(frozen=True)
class GenerationConfig:
    """``generation.json``: how prompts begin, where answers end, what the makers recommend."""

    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    add_bos: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Recommended sampling values; applied only when asked for: the default stays greedy."""

    @classmethod
    def parse(cls, data: bytes) -> GenerationConfig:
        """Read ``generation.json``, or raise `ArtifactError`.

        >>> GenerationConfig.parse(b'{"eos_token_ids": [2], "bos_token_id": 1}')
        GenerationConfig(eos_token_ids=(2,), bos_token_id=1, add_bos=False, defaults={})
        """
        where = "generation.json"
        try:
            found = json.loads(data)
        except ValueError as error:
            raise ArtifactError(f"{where}: expected JSON, got: {error}") from error
        if not isinstance(found, dict):
            raise ArtifactError(f"{where}: expected an object, got {type(found).__name__}")
        eos, bos = found.get("eos_token_ids", []), found.get("bos_token_id")
        if not isinstance(eos, list) or not all(_is_id(token) for token in eos):
            raise ArtifactError(
                f"{where}: expected eos_token_ids as a list of ids, got {eos!r:.80}"
            )
        if bos is not None and not _is_id(bos):
            raise ArtifactError(f"{where}: expected bos_token_id as an id or null, got {bos!r:.80}")
        defaults = found.get("defaults") or {}
        if not isinstance(defaults, dict):
            raise ArtifactError(f"{where}: expected defaults as an object, got {defaults!r:.80}")
        return cls(tuple(eos), bos, bool(found.get("add_bos", False)), defaults)


class Tokenizer:
    """A ``tokenizer.json`` with the prompt rules of ``generation.json``."""

    def __init__(self, backend: tokenizers.Tokenizer, config: GenerationConfig) -> None:
        self.backend = backend
        self.config = config
        backend.no_truncation()
        backend.no_padding()

    @classmethod
    def parse(cls, data: bytes, config: GenerationConfig) -> Tokenizer:
        """Read ``tokenizer.json``, or raise `ArtifactError`."""
        import tokenizers

        try:
            backend = tokenizers.Tokenizer.from_buffer(data)
        except ValueError as error:
            raise ArtifactError(f"tokenizer.json: expected a tokenizer, got: {error}") from error
        return cls(backend, config)

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """Tokens as bytes."""
        return Vocabulary(self.backend)

    @property
    def special_tokens(self) -> SpecialTokens:
        """The tokens that chat templates name."""
        bos, eos = self.config.bos_token_id, self.config.eos_token_ids
        return SpecialTokens(
            bos_token=self._token(bos) if bos is not None else "",
            eos_token=self._token(eos[0]) if eos else "",
        )

    def encode(self, text: str, *, context: int, add_bos: bool = True) -> list[int]:
        """Ids of a prompt; a text that cannot fit ``context`` tokens is refused before the work.

        With ``add_bos`` the model's BOS is put in front if its policy says so and it is not there.
        """
        self._check_text(text, context)
        ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        bos = self.config.bos_token_id
        if add_bos and self.config.add_bos and bos is not None and ids[:1] != [bos]:
            return [bos, *ids]
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of finished ids, by the same rules as streaming."""
        detokenizer = self.detokenizer(skip_special_tokens)
        return "".join([*map(detokenizer.push, ids), detokenizer.flush()])

    def detokenizer(self, skip_special_tokens: bool = True) -> Detokenizer:
        """For the tokens of one answer."""
        return self.vocabulary.detokenizer(skip_special_tokens)

    def _token(self, token_id: int) -> str:
        return self.backend.id_to_token(token_id) or ""

    def _check_text(self, text: str, context: int) -> None:
        if not isinstance(text, str):
            raise RequestError(f"prompt: expected text, got {type(text).__name__}")
        if not text:
            raise RequestError("prompt: expected at least one character, got an empty text")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"prompt: expected valid Unicode, got a lone surrogate at character {error.start}"
            ) from error
        if len(text) > context * _CHARS_PER_TOKEN and self._is_too_long(text, context):
            raise RequestError(
                f"prompt: expected text that fits the context of {context} tokens, "
                f"got {len(text)} characters (shorten it)"
            )

    def _is_too_long(self, text: str, context: int) -> bool:
        """Whether the length alone, or the first part alone, is more than the context holds."""
        if len(text) > context * self._longest_token:
            return True
        head = text[: context * _CHARS_PER_TOKEN]
        count = len(self.backend.encode(head, add_special_tokens=False).ids)
        return count > context + _CUT_EFFECT

    @functools.cached_property
    def _longest_token(self) -> int:
        """Characters of the longest token: no text has fewer tokens than its length over this."""
        return max(map(len, self.backend.get_vocab()), default=1)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0

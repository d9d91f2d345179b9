"""The artifact's tokenizer: text to ids with the model's own BOS policy, and ids to text."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import ArtifactError, RequestError
from ..targets.artifact.vocabulary import VocabularyTables
from .chat import SpecialTokens
from .short_texts import ShortTexts
from .text import Detokenizer, Vocabulary

if TYPE_CHECKING:
    import tokenizers

_CHARS_PER_TOKEN = 8
"""A prompt with more characters per token of context than this is probably too long: look first."""
_SHORT_CHARS = 2048
"""Characters of prompts that go by the tables: each takes milliseconds there, no more in all than
reading a large tokenizer."""
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
    """A ``tokenizer.json`` with the prompt rules of ``generation.json``.

    Given the vocabulary's tables, it answers for the first short texts from them alone, and reads
    the tokenizer.json when there is more to do.
    """

    def __init__(
        self,
        source: tokenizers.Tokenizer | Callable[[], tokenizers.Tokenizer],
        config: GenerationConfig,
        tables: VocabularyTables | None = None,
    ) -> None:
        self._source = source
        self.config = config
        self._tables = tables
        self._shorts = ShortTexts(tables) if tables else None
        self._left_for_shorts = _SHORT_CHARS

    @classmethod
    def parse(
        cls, data: bytes | memoryview, config: GenerationConfig, tables: memoryview | None = None
    ) -> Tokenizer:
        """Of the bytes of a ``tokenizer.json`` and of the ``vocabulary.bin`` made from it.

        What is wrong with the former is an `ArtifactError`, at once or when it is needed.
        """
        if tables is not None:
            ShortTexts.prepare()
            return cls(lambda: _read(bytes(data)), config, VocabularyTables(tables))
        return cls(_read(bytes(data)), config)

    @functools.cached_property
    def backend(self) -> tokenizers.Tokenizer:
        """The whole tokenizer; with 260,000 tokens it takes a second to read."""
        backend = self._source() if callable(self._source) else self._source
        backend.no_truncation()
        backend.no_padding()
        self._shorts = None
        return backend

    def read(self) -> None:
        """Have the whole tokenizer in memory from now on, as a server wants it."""
        self.backend  # noqa: B018  (an assert would be gone under python -O)

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """Tokens as bytes."""
        return Vocabulary(self)

    @functools.cached_property
    def special_ids(self) -> frozenset[int]:
        """Added tokens that are no text."""
        if self._tables is not None:
            return self._tables.special_ids
        added = self.backend.get_added_tokens_decoder()
        return frozenset(id for id, token in added.items() if token.special)

    @functools.cached_property
    def decoder_steps(self) -> list[dict[str, Any]]:
        """How names of tokens become text, as a tokenizer.json says it."""
        if self._tables is not None:
            decoder = self._tables.shell.get("decoder")
        else:
            decoder = self.backend.decoder and json.loads(self.backend.decoder.__getstate__())
        if decoder is None:
            return []
        steps: list[dict[str, Any]] = decoder.get("decoders", [decoder])
        return steps

    @property
    def special_tokens(self) -> SpecialTokens:
        """The tokens that chat templates name."""
        bos, eos = self.config.bos_token_id, self.config.eos_token_ids
        return SpecialTokens(
            bos_token=self.name(bos) if bos is not None else "",
            eos_token=self.name(eos[0]) if eos else "",
        )

    def name(self, token_id: int) -> str:
        """A token as the vocabulary writes it; empty for an id without a token."""
        if self._tables is not None:
            return self._tables.token(token_id) or ""
        return self.backend.id_to_token(token_id) or ""

    def encode(self, text: str, *, context: int, add_bos: bool = True) -> list[int]:
        """Ids of a prompt; a text that cannot fit ``context`` tokens is refused before the work.

        With ``add_bos`` the model's BOS is put in front if its policy says so and it is not there.
        """
        self._check_text(text, context)
        ids = self._encode(text)
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

    def _encode(self, text: str) -> list[int]:
        shorts = self._shorts
        self._left_for_shorts -= len(text)
        if shorts is not None and self._left_for_shorts >= 0:
            found = shorts.encode(text)
            if found is not None:
                return found
        ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        return ids

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


def _read(data: bytes) -> tokenizers.Tokenizer:
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_buffer(data)
    except ValueError as error:
        raise ArtifactError(f"tokenizer.json: expected a tokenizer, got: {error}") from error


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0

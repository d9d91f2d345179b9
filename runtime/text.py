"""Token ids to text, one token at a time: whole characters only, and nothing past a stop string.

The pieces, joined, are the text of the answer; there is no second way to make it. It equals what
the tokenizer decodes from all ids, except that after malformed UTF-8 from byte-fallback tokens the
characters that are well-formed stay readable.
"""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import tokenizers

    from .tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MALFORMED = "\N{REPLACEMENT CHARACTER}"
_MOST_HELD = 16
"""Tokens after which a text that ends malformed is shown anyway (a character takes 4 at most)."""


class Detokenizer(Protocol):
    """Text of one answer as its tokens come."""

    def push(self, token_id: int) -> str:
        """The characters that this token completes."""

    def flush(self) -> str:
        """What is left when no more tokens come."""


class Vocabulary:
    """What each token id stands for, read from the tokenizer's own decoder."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.special_ids = tokenizer.special_ids
        self._to_bytes, self.num_stripped = _bytes_rule(tokenizer.decoder_steps)
        self._bytes: dict[int, bytes] = {}
        self._texts: dict[frozenset[int], dict[int, str]] = {}

    def detokenizer(self, skip_special_tokens: bool = True) -> Detokenizer:
        """A fresh one for one answer."""
        skipped = self.special_ids if skip_special_tokens else frozenset()
        if self._to_bytes is None:
            return WindowDetokenizer(self._tokenizer.backend, skipped)
        return ByteDetokenizer(self, skipped)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text; none for an id without a token."""
        found = self._bytes.get(token_id)
        if found is None:
            token = self._tokenizer.name(token_id)
            found = self._to_bytes(token) if token and self._to_bytes is not None else b""
            self._bytes[token_id] = found
        return found

    def texts_without(self, skipped: frozenset[int]) -> dict[int, str]:
        """Texts of tokens between whole characters, filled as they come; of none in ``skipped``."""
        return self._texts.setdefault(skipped, {})


class ByteDetokenizer:
    """For byte-level and byte-fallback vocabularies: tokens are bytes, bytes are UTF-8."""

    def __init__(self, vocabulary: Vocabulary, skipped: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._texts = vocabulary.texts_without(skipped)
        self._skipped = skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._to_strip = vocabulary.num_stripped
        self._is_whole = not self._to_strip
        """Whether the text so far ends with a whole character, and nothing is left to strip."""

    def push(self, token_id: int) -> str:
        if self._is_whole:
            text = self._texts.get(token_id)  # nearly always: this runs for every token
            if text is not None:
                return text
        return self._push(token_id)

    def _push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        data = self._vocabulary.token_bytes(token_id)
        if self._is_whole:
            try:
                text = self._texts[token_id] = data.decode()
            except UnicodeDecodeError:  # it cuts a character, or is malformed
                pass
            else:
                return text
        text = self._stripped(self._utf8.decode(data))
        self._is_whole = not self._to_strip and not self._utf8.getstate()[0]
        return text

    def flush(self) -> str:
        return self._stripped(self._utf8.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        """Sentencepiece models start their text with a space that is not part of it."""
        if not self._to_strip or not text:
            return text
        kept = text.removeprefix(" " * self._to_strip)
        self._to_strip = 0
        return kept


class WindowDetokenizer:
    """For any other decoder: decode a window of tokens twice and show what the newest ones add."""

    def __init__(self, backend: tokenizers.Tokenizer, skipped: frozenset[int]) -> None:
        self._backend = backend
        self._skipped = skipped
        self._window: list[int] = []
        self._num_shown = 0

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        self._window.append(token_id)
        shown, text = self._decode(self._window[: self._num_shown]), self._decode(self._window)
        is_held = text.endswith(_MALFORMED) and len(self._window) - self._num_shown < _MOST_HELD
        if is_held or len(text) <= len(shown):
            return ""
        del self._window[: self._num_shown]
        self._num_shown = len(self._window)
        return text[len(shown) :]

    def flush(self) -> str:
        shown, text = self._decode(self._window[: self._num_shown]), self._decode(self._window)
        self._num_shown = len(self._window)
        return text[len(shown) :]

    def _decode(self, ids: list[int]) -> str:
        return self._backend.decode(ids, skip_special_tokens=False)


class StopMatcher:
    """Holds text back while it may be the start of a stop string.

    The stop string that is complete first ends the answer, wherever tokens begin and end.

    >>> matcher = StopMatcher(["END"])
    >>> matcher.push("the E"), matcher.push("NDED"), matcher.stopped
    ('the ', '', True)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted(stops, key=len, reverse=True)
        self._longest = len(self._stops[0]) if self._stops else 0
        self._held = ""
        self._firsts = tuple({stop[0] for stop in stops})
        self.stopped = False

    def push(self, text: str) -> str:
        """The part of the text that is decided."""
        if self.stopped:
            return ""
        if not self._held:
            for first in self._firsts:  # a loop, since this runs for every token
                if first in text:
                    break
            else:
                return text  # no stop string begins here
        text = self._held + text
        found = [(at + len(s), at) for s in self._stops if (at := text.find(s)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        keep = self._undecided(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        return held

    def _undecided(self, text: str) -> int:
        """Length of the longest tail that starts a stop string."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0


class AnswerText:
    """The text of one answer: detokenizer, then stop strings (in what follows ``min_tokens``)."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str], min_tokens: int = 0) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stops)
        self._num_exempt = min_tokens
        self.push: Callable[[int], str] = self._push if stops else detokenizer.push
        """The text that is decided with a token."""
        self.stopped = False
        """Whether a stop string has ended the answer."""

    def _push(self, token_id: int) -> str:
        text = self._detokenizer.push(token_id)
        if self._num_exempt:
            self._num_exempt -= 1
            return text
        text = self._matcher.push(text)
        self.stopped = self._matcher.stopped
        return text

    def finish(self) -> str:
        """The rest of the text, when no more tokens come."""
        if self.stopped:
            return ""
        return self._matcher.push(self._detokenizer.flush()) + self._matcher.flush()


def _bytes_rule(steps: list[dict[str, Any]]) -> tuple[Callable[[str], bytes] | None, int]:
    """How a token's name becomes bytes, and how many leading spaces the whole text loses.

    None when the decoder is of another kind (WordPiece, Metaspace without byte fallback, ...).
    """
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level, 0
    replaces = [step for step in steps if step["type"] == "Replace"]
    rest = kinds[len(replaces) :]
    is_plain = all("String" in step["pattern"] for step in replaces)
    if not is_plain or rest not in (["ByteFallback", "Fuse"], ["ByteFallback", "Fuse", "Strip"]):
        return None, 0
    num_stripped = 0
    if rest[-1] == "Strip":
        strip = steps[-1]
        if strip["content"] != " " or strip["stop"] or strip["start"] > 1:
            return None, 0
        num_stripped = int(strip["start"])
    pairs = tuple((step["pattern"]["String"], step["content"]) for step in replaces)
    return functools.partial(_byte_fallback, pairs), num_stripped


def _byte_fallback(replaces: tuple[tuple[str, str], ...], token: str) -> bytes:
    for pattern, content in replaces:
        token = token.replace(pattern, content)
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.encode()


def _byte_level(token: str) -> bytes:
    table = _byte_level_table()
    if all(char in table for char in token):
        return bytes(table[char] for char in token)
    return token.encode()  # an added token, written as itself


@functools.cache
def _byte_level_table() -> dict[str, int]:
    """GPT-2's names of the 256 bytes: printable Latin-1 is itself, the rest moves to U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + place): byte for place, byte in enumerate(moved)
    }

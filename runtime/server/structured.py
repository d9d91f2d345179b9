"""Answers that must fit a JSON schema, a regular expression or a grammar, by llguidance's masks.

A grammar is compiled in a worker, bounded in size, work and time, before its request is accepted:
a bad one is the request's error, and nothing else is touched. It fails closed: an answer that
cannot be constrained is refused, never left free.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import llguidance

from ...errors import RequestError
from ..token_mask import TokenMask, Words
from ..tokenizer import Tokenizer
from .problem import Problem

COMPILE_TIMEOUT = 10.0
MAX_GRAMMAR_CHARS = 512 * 1024
_CACHED = 64
_MAX_ERROR_CHARS = 400
_BLANKS = r"[\x20\x0A\x0D\x09]{1,16}"
"""Between the parts of JSON: any layout a model likes, but no endless blanks."""


@dataclass(frozen=True)
class Constraint:
    """A grammar in llguidance's form, and the field that it came from."""

    grammar: str
    param: str


def json_constraint(schema: Any, param: str) -> Constraint:
    """Answers that are JSON of this schema."""
    try:
        text = llguidance.LLMatcher.grammar_from_json_schema(
            schema, defaults={"whitespace_pattern": _BLANKS}
        )
    except ValueError as error:
        raise _bad(param, str(error)) from error
    return Constraint(text, param)


def regex_constraint(regex: str) -> Constraint:
    """Answers that match a regular expression as a whole."""
    return Constraint(llguidance.LLMatcher.grammar_from_regex(regex), "regex")


def lark_constraint(grammar: str, param: str = "grammar") -> Constraint:
    """Answers that a Lark grammar derives from ``start``."""
    return Constraint(llguidance.LLMatcher.grammar_from_lark(grammar), param)


class GrammarMask:
    """A `TokenMask` over one answer's matcher."""

    def __init__(self, matcher: llguidance.LLMatcher, param: str) -> None:
        self._matcher, self._param = matcher, param

    def fill(self, words: Words) -> None:
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._check()

    def accept(self, token_id: int) -> None:
        self._matcher.consume_token(token_id)
        self._check()

    def is_terminated(self) -> bool:
        return self._matcher.is_stopped()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestError(f"{self._param}: {_first(self._matcher.get_error())}")


class Grammars:
    """Compiles constraints for one tokenizer; the last ones are kept."""

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._matchers: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="sglk-grammar")
        self._backend: llguidance.LLTokenizer | None = None

    async def masks(self, constraint: Constraint, count: int) -> list[TokenMask]:
        """A mask for each of ``count`` answers, or `Problem` if the grammar is unfit."""
        if len(constraint.grammar) > MAX_GRAMMAR_CHARS:
            size = len(constraint.grammar)
            raise _bad(constraint.param, f"at most {MAX_GRAMMAR_CHARS} characters, got {size}")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(COMPILE_TIMEOUT):
                make = await loop.run_in_executor(self._pool, self._compile, constraint)
        except TimeoutError as error:
            raise _bad(constraint.param, f"it takes more than {COMPILE_TIMEOUT:.0f} s") from error
        return [make() for _ in range(count)]

    def close(self) -> None:
        """End the workers."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compile(self, constraint: Constraint) -> Callable[[], TokenMask]:
        matcher = self._matchers.get(constraint.grammar)
        if matcher is None:
            matcher = self._matcher(constraint)
            self._matchers[constraint.grammar] = matcher
            while len(self._matchers) > _CACHED:
                self._matchers.popitem(last=False)
        return lambda: GrammarMask(matcher.deep_copy(), constraint.param)

    def _matcher(self, constraint: Constraint) -> llguidance.LLMatcher:
        limits = llguidance.LLParserLimits(
            initial_lexer_fuel=1_000_000,
            max_grammar_size=200_000,
            max_lexer_states=50_000,
            verbose_errors=False,
        )
        matcher = llguidance.LLMatcher(
            self._tokens(constraint.param), constraint.grammar, log_level=0, limits=limits
        )
        if not matcher.is_error():
            matcher.compute_bitmask()  # what only fails at its first use
        if matcher.is_error():
            raise _bad(constraint.param, _first(matcher.get_error()))
        matcher.reset()
        return matcher

    def _tokens(self, param: str) -> llguidance.LLTokenizer:
        """The vocabulary as llguidance wants it; made at the first use."""
        if self._backend is None:
            tokenizer = self._tokenizer
            if tokenizer is None or not tokenizer.config.eos_token_ids:
                raise _bad(param, "it needs a tokenizer with an end token, and this model has none")
            wrapper = llguidance.TokenizerWrapper(_Vocabulary(tokenizer, self._vocab_size))
            if not any(wrapper.tokens):
                raise _bad(param, "it needs tokens that are bytes; this tokenizer's are not")
            self._backend = llguidance.LLTokenizer(
                wrapper, n_vocab=self._vocab_size, eos_token=list(tokenizer.config.eos_token_ids)
            )
        return self._backend


class _Vocabulary:
    """What `llguidance.TokenizerWrapper` asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        vocabulary = tokenizer.vocabulary
        self.eos_token_id = tokenizer.config.eos_token_ids[0]
        self.bos_token_id = tokenizer.config.bos_token_id
        self.tokens = [vocabulary.token_bytes(token) for token in range(vocab_size)]
        self.special_token_ids = sorted(t for t in vocabulary.special_ids if t < vocab_size)
        self._encode = tokenizer.backend.encode

    def __call__(self, text: bytes | str) -> list[int]:
        decoded = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        ids: list[int] = self._encode(decoded, add_special_tokens=False).ids
        return ids


def lark_literal(text: str, special: dict[str, int]) -> str:
    """A text as items of a Lark rule; special tokens as tokens, the rest as characters.

    >>> lark_literal('<call>{"name', {"<call>": 7})
    '<[7]> "{\\\\"name"'
    """
    items, rest = [], text
    while rest:
        found = [(at, name) for name in special if (at := rest.find(name)) >= 0]
        at, name = min(found, key=lambda each: (each[0], -len(each[1])), default=(len(rest), ""))
        if at:
            items.append(json.dumps(rest[:at], ensure_ascii=False))
        if name:
            items.append(f"<[{special[name]}]>")
        rest = rest[at + len(name) :]
    return " ".join(items)


def _first(message: str) -> str:
    """The useful part of a message, on one line."""
    text = " ".join(message.split())
    return text if len(text) <= _MAX_ERROR_CHARS else f"{text[:_MAX_ERROR_CHARS]}..."


def _bad(param: str, why: str) -> Problem:
    return Problem(
        f"{param}: expected a grammar that can be followed, got: {why}",
        param=param,
        code="invalid_grammar",
    )

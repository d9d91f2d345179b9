"""What a caller asks for (`SamplingParams`) and what the scheduler knows about it (`Request`)."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import RequestError
from .page_pool import Page
from .radix_cache import Node

FinishReason = Literal["stop", "length", "abort", "timeout", "error"]
MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_LOGPROBS = 100
MAX_SEED = 2**64
MAX_PRIORITY = 100
_stamps = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to choose tokens and when to stop. The default is greedy: the same answer every time.

    >>> SamplingParams(temperature=0.8, top_p=0.95, stop="\\n\\n").stop
    ('\\n\\n',)
    >>> SamplingParams(temperature=-1)
    Traceback (most recent call last):
    sglk.errors.RequestError: temperature: expected a number >= 0, got -1 (0 is greedy)
    """

    max_tokens: int | None = 256
    """Most tokens to generate; None: until the context is full."""
    min_tokens: int = 0
    """Tokens before which no end token is chosen and no stop string looked for."""
    temperature: float = 0.0
    """0 is greedy; ties go to the lowest token id."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Of those, keep the smallest set whose probabilities reach this sum."""
    min_p: float = 0.0
    """Of those, keep tokens at least this likely relative to the most likely one."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens seen in prompt or answer."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens seen in the answer."""
    frequency_penalty: float = 0.0
    """Subtracted once per occurrence in the answer."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of the named token ids."""
    seed: int | None = None
    """Same seed and prompt, same answer, whatever runs beside it; None draws a fresh seed."""
    stop: str | Sequence[str] = ()
    """Texts that end the answer; they are not part of it."""
    stop_token_ids: Sequence[int] = ()
    """Token ids that end the answer besides the model's own; not part of the text."""
    ignore_eos: bool = False
    """Do not stop at the model's end token."""
    logprobs: int | None = None
    """Log-probabilities of each chosen token and of this many most likely ones; None: none."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""

    def __post_init__(self) -> None:
        self._normalize()
        self._check_stopping()
        self._check_numbers()

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always chosen."""
        return self.temperature == 0 or self.top_k == 1

    @property
    def has_processors(self) -> bool:
        """Whether logits change before the choice (bias or penalties)."""
        return bool(self.logit_bias) or self.has_history

    @property
    def has_history(self) -> bool:
        """Whether earlier tokens change the logits."""
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty - 1.0)
        return any(penalties)

    def _normalize(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(_listed("stop", self.stop))
        object.__setattr__(self, "stop", stop)
        object.__setattr__(
            self, "stop_token_ids", tuple(_listed("stop_token_ids", self.stop_token_ids))
        )
        if not isinstance(self.logit_bias, Mapping):
            raise RequestError(
                f"logit_bias: expected a mapping of token id to number, got {self.logit_bias!r}"
            )
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))

    def _check_stopping(self) -> None:
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, None, "None: until the context is full")
        _check_int("min_tokens", self.min_tokens, 0, self.max_tokens, "at most max_tokens")
        if len(self.stop) > MAX_STOPS:
            raise RequestError(f"stop: expected at most {MAX_STOPS} strings, got {len(self.stop)}")
        for text in self.stop:
            if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_CHARS:
                raise RequestError(
                    f"stop: expected texts of 1 to {MAX_STOP_CHARS} characters, got {_short(text)}"
                )
        for token in self.stop_token_ids:
            _check_int("stop_token_ids", token, 0, None)

    def _check_numbers(self) -> None:
        _check_number("temperature", self.temperature, 0, None, "0 is greedy")
        _check_int("top_k", self.top_k, 0, None, "0 keeps all tokens")
        _check_number("top_p", self.top_p, 0, 1, "1 keeps all tokens", exclude_low=True)
        _check_number("min_p", self.min_p, 0, 1, "0 keeps all tokens")
        _check_number("repetition_penalty", self.repetition_penalty, 0, None, "1 is none", True)
        _check_number("presence_penalty", self.presence_penalty, -2, 2, "0 is none")
        _check_number("frequency_penalty", self.frequency_penalty, -2, 2, "0 is none")
        if self.seed is not None:
            _check_int("seed", self.seed, 0, MAX_SEED - 1)
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, MAX_LOGPROBS, "None for none at all")
        for token, bias in self.logit_bias.items():
            _check_int("logit_bias", token, 0, None)
            _check_number(f"logit_bias[{token}]", bias, -100, 100)


def place_of(row: int) -> int:
    """The token id that stands for what this row of a step in flight chooses.

    >>> [place_of(0), place_of(5)]
    [-1, -6]
    """
    return -1 - row


class Status(enum.Enum):
    """Where a request is in its life; a preempted one waits again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Request:
    """One sequence being generated: tokens, how many of them are computed, and its pages.

    Tokens ``0..num_computed-1`` have keys and values in ``pages``; the first ``num_published``
    pages belong to the radix tree (their path ends at ``node``), the rest to this request.
    """

    __slots__ = (
        "_keys", "_tokens", "arrival", "arrival_step", "arrived_at", "bound_step",
        "finish_reason", "id", "last_token", "latest",
        "max_total", "namespace", "node", "num_cached", "num_computed", "num_matched",
        "num_preemptions", "num_prompt", "num_published", "num_slots", "num_tokens", "page_row",
        "pages", "pages_stamp", "priority", "slot", "status", "stop_ids", "uses_cache",
    )  # fmt: skip

    def __init__(
        self,
        id: str,
        prompt: Sequence[int] | NDArray[np.int32],
        max_new: int,
        stop_ids: Iterable[int] = (),
        namespace: str = "",
        *,
        priority: int = 0,
        uses_cache: bool = True,
    ) -> None:
        _check_int("priority", priority, -MAX_PRIORITY, MAX_PRIORITY, "lower is more urgent")
        self.id = id
        self._tokens = np.array(prompt, dtype=np.int32)
        self.latest: list[int] = []
        """The newest tokens, not yet in the array that `tokens` shows."""
        self.num_prompt = self.num_tokens = len(self._tokens)
        self.last_token = int(self._tokens[-1]) if self.num_prompt else -1
        self.max_total = self.num_prompt + max_new
        self.stop_ids = frozenset(stop_ids)
        self.namespace = namespace
        self.priority = int(priority)
        """The lower, the more urgent."""
        self.uses_cache = uses_cache
        """Whether it reuses cached prefixes and publishes its own pages."""
        self.arrival = 0
        """Its number in order of arrival; `Scheduler.add` sets this and the three below."""
        self.arrival_step = 0
        self.arrived_at = 0.0
        self.bound_step = 0
        """The step by which it has ended, by the progress guarantee."""
        self.status = Status.WAITING
        self.finish_reason: FinishReason | None = None
        self.num_computed = 0
        self.num_cached = 0
        """Prompt tokens reused when it first started: whole pages."""
        self.num_matched = 0
        """Prompt tokens that the cache knew then, those of a last partial page included."""
        self.num_preemptions = 0
        self.pages: list[Page] = []
        self.pages_stamp = next(_stamps)
        """A number that no other list of pages has, of this request or another."""
        self.page_row = np.zeros(0, dtype=np.int32)
        self.num_published = 0
        self.num_slots = 0
        """Tokens that its pages hold; `KVCache` keeps it."""
        self.slot: Page | None = None
        """Its place in states beside the pages, while it runs, if the model has such states."""
        self.node: Node | None = None
        self._keys: list[bytes] = []

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Prompt and answer so far (a view)."""
        self._gather()
        return self._tokens[: self.num_tokens]

    @property
    def num_remaining(self) -> int:
        """Known tokens still to compute; 1 while decoding."""
        return self.num_tokens - self.num_computed

    def append(self, token: int) -> None:
        """Add a generated token, or one that is known by its place in a step in flight only."""
        self.num_tokens += 1
        self.last_token = token
        self.latest.append(token)

    def _gather(self) -> None:
        """Move the latest tokens, one by one in a list, to the others; one in flight also stays."""
        if not self.latest:
            return
        if self.num_tokens > len(self._tokens):
            grown = np.zeros(min(2 * self.num_tokens, self.max_total), dtype=np.int32)
            grown[: len(self._tokens)] = self._tokens
            self._tokens = grown
        self._tokens[self.num_tokens - len(self.latest) : self.num_tokens] = self.latest
        del self.latest[: len(self.latest) - self.num_in_flight]

    @property
    def num_in_flight(self) -> int:
        """1 while the newest token is known by its place in a step only, else 0."""
        return int(self.last_token < 0)

    def add_pages(self, pages: Sequence[Page]) -> None:
        """Take pages for the tokens that follow."""
        start, end = len(self.pages), len(self.pages) + len(pages)
        if end > len(self.page_row):
            grown = np.zeros(max(end, 2 * start), dtype=np.int32)
            grown[:start] = self.page_row[:start]
            self.page_row = grown
        self.pages.extend(pages)
        self.pages_stamp = next(_stamps)
        self.page_row[start:end] = [page.number for page in pages]

    def replace_pages(self, start: int, pages: Sequence[Page]) -> None:
        """Point to the radix tree's copies instead of our own."""
        if self.pages[start : start + len(pages)] == pages:
            return
        self.pages[start : start + len(pages)] = pages
        self.pages_stamp = next(_stamps)
        self.page_row[start : start + len(pages)] = [page.number for page in pages]

    def drop_pages(self) -> None:
        """Forget every page: nothing is computed any more."""
        self.pages = []
        self.pages_stamp = next(_stamps)
        self.num_computed = self.num_published = self.num_slots = 0
        self.node = None

    def page_keys(self, page_size: int, count: int, start: int = 0) -> list[bytes]:
        """The tokens of the whole pages ``start..count-1``, one key per page."""
        have = len(self._keys)
        if have < count:
            self._gather()
            data = self._tokens[have * page_size : count * page_size].tobytes()
            width = page_size * self._tokens.itemsize
            self._keys.extend(data[at : at + width] for at in range(0, len(data), width))
        return self._keys[start:count]


def _listed(where: str, values: object) -> Iterable[object]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise RequestError(f"{where}: expected a list, got {_short(values)}")
    return values


def _check_int(where: str, value: object, low: int, high: int | None, hint: str = "") -> None:
    is_int = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_int or value < low or (high is not None and value > high):  # type: ignore[operator]
        expected = f"a whole number {_range(low, high)}"
        raise RequestError(f"{where}: expected {expected}, got {_short(value)}{_hint(hint)}")


def _check_number(
    where: str,
    value: object,
    low: float,
    high: float | None,
    hint: str = "",
    exclude_low: bool = False,
) -> None:
    is_number = isinstance(value, int | float | np.integer | np.floating)
    if is_number and not isinstance(value, bool) and math.isfinite(value):  # type: ignore[arg-type]
        below = value <= low if exclude_low else value < low  # type: ignore[operator]
        if not below and (high is None or value <= high):  # type: ignore[operator]
            return
    expected = f"a number {_range(low, high, exclude_low)}"
    raise RequestError(f"{where}: expected {expected}, got {_short(value)}{_hint(hint)}")


def _range(low: float, high: float | None, exclude_low: bool = False) -> str:
    if high is None:
        return f"{'>' if exclude_low else '>='} {low}"
    return f"in {'(' if exclude_low else '['}{low}, {high}]"


def _hint(text: str) -> str:
    return f" ({text})" if text else ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

"""Which requests may run: refused at the door, or admitted strictly in order of arrival.

Strict order is what the progress guarantee rests on: every running request arrived before every
waiting one, so nothing that comes later can delay a request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import RequestError, SglkError
from .batch import Chunk
from .kv_cache import KVCache
from .request import Request


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one scheduler works within."""

    page_size: int
    num_pages: int
    """Physical pages, the reserved page 0 included."""
    max_step_tokens: int = 512
    """Token budget of a step: decoding requests first, prefill chunks fill the rest."""
    max_running: int = 32
    """Requests computed side by side; at most ``max_step_tokens``, so a step always serves all."""
    max_context: int = 2**31 - 1
    """Longest sequence, prompt and answer together."""
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        if self.page_size < 1 or self.num_pages < 2:
            raise SglkError(
                "limits: expected pages of at least 1 token and 2 pages (one is reserved), "
                f"got {self.num_pages} of {self.page_size}"
            )
        if not 1 <= self.max_running <= self.max_step_tokens:
            raise SglkError(
                f"limits: expected max_running between 1 and max_step_tokens "
                f"({self.max_step_tokens}), got {self.max_running}"
            )

    @property
    def max_total(self) -> int:
        """Longest sequence that fits context and, alone, the pages (its last token has no slot)."""
        return min(self.max_context, (self.num_pages - 1) * self.page_size + 1)

    def progress_bound(self, requests: Iterable[Request]) -> int:
        """Steps within which every one of ``requests`` has ended.

        In each step the oldest request is never preempted and computes at least
        ``max_step_tokens - max_running + 1`` tokens of its prefill or decodes one token. So each
        request adds its prefill steps (all of them again after a preemption) and its answer's
        length.
        """
        share = self.max_step_tokens - self.max_running + 1
        return sum(-(-r.max_total // share) + r.max_total - r.num_prompt for r in requests)


def check_admissible(request: Request, limits: Limits) -> None:
    """Refuse what could never run, with the reason, so that it cannot block the queue."""
    where = f"request {request.id}"
    if request.num_prompt == 0:
        raise RequestError(f"{where}: expected a prompt of at least one token, got none")
    if request.num_prompt >= limits.max_context:
        raise RequestError(
            f"{where}: expected a prompt shorter than the context of {limits.max_context} tokens, "
            f"got {request.num_prompt}"
        )
    if request.max_total > limits.max_total:
        raise RequestError(
            f"{where}: expected prompt and answer of at most {limits.max_total} tokens together, "
            f"got {request.num_prompt} + {request.max_total - request.num_prompt} "
            "(lower max_tokens, shorten the prompt, or load with more kv_memory)"
        )


def can_admit(request: Request, kv: KVCache, chunks: list[Chunk], num_running: int) -> bool:
    """Attach the oldest waiting request if its pages are there; nothing changes if not.

    While others run, one page for each of them stays available, so that an admission does not cause
    a preemption at once. With nobody running no spare is asked for: the request fits by
    `check_admissible`, so the queue always moves.
    """
    if _prefix_in_flight(request, kv, chunks):
        return False
    return kv.attach(request, spare=num_running)


def _prefix_in_flight(request: Request, kv: KVCache, chunks: list[Chunk]) -> bool:
    """Whether this very step fills the first page that the request misses.

    Then it pays to wait one step and find that page in the cache. An older request makes progress
    meanwhile, so the wait is part of the progress bound.
    """
    size = kv.page_size
    filling = [chunk for chunk in chunks if chunk.start // size != chunk.end // size]
    if not filling or not kv.prefix_cache or request.num_tokens <= size:
        return False
    first = kv.matched_pages(request)
    end = (first + 1) * size
    if end >= request.num_tokens:
        return False
    keys = request.page_keys(size, first + 1)
    return any(
        chunk.request.namespace == request.namespace
        and chunk.start < end <= chunk.end
        and chunk.request.page_keys(size, first + 1) == keys
        for chunk in filling
    )

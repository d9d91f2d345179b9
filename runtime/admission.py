"""What a scheduler works within (`Limits`), and which requests are refused at the door."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..errors import RequestError, SglkError
from .batch import Chunk
from .kv_cache import KVCache
from .request import Request

Policy = Literal["fcfs", "cache-aware"]
MAX_BATCH_WAIT = 10.0
POLICIES: tuple[Policy, ...] = ("fcfs", "cache-aware")


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
    state_slots: int = 0
    """Slots of states beside the pages, the reserved one included; 0: the model has no such states.
    Each running request owns one; what it holds is of no use to another, so no prefix is reused."""
    policy: Policy = "fcfs"
    """Who of equal priority starts next: the first to come, or who has most of it cached."""
    aging_steps: int = 256
    """Steps of waiting after which only earlier arrivals come first, whatever priority and policy
    say; 0: always strictly in order of arrival."""
    prefill_share: float = 1.0
    """Share of ``max_step_tokens`` that prefill may take while others decode, 0 to 1."""
    itl_target_s: float | None = None
    """Seconds that a step may take while others decode; prefill chunks are sized for it."""
    batch_wait_s: float = 0.0
    """Seconds that arrivals may be held back so that more of them start together."""

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
        if self.state_slots and (self.prefix_cache or self.state_slots <= self.max_running):
            raise SglkError(
                "limits: expected prefix_cache off and a slot for each of max_running "
                f"({self.max_running}) and one more, got {self.prefix_cache} and {self.state_slots}"
            )
        if self.policy not in POLICIES:
            raise SglkError(f"limits: expected a policy of {POLICIES}, got {self.policy!r}")
        for name, is_right, expected in (
            ("aging_steps", self.aging_steps >= 0, "0 or more"),
            ("prefill_share", 0 <= self.prefill_share <= 1, "a number from 0 to 1"),
            ("itl_target_s", self.itl_target_s is None or self.itl_target_s > 0, "more than 0 s"),
            ("batch_wait_s", 0 <= self.batch_wait_s <= MAX_BATCH_WAIT, "0 to 10 s"),
        ):
            if not is_right:
                raise SglkError(f"limits: {name}: expected {expected}, got {getattr(self, name)}")

    @property
    def max_total(self) -> int:
        """Longest sequence that fits context and, alone, the pages (its last token has no slot)."""
        return min(self.max_context, (self.num_pages - 1) * self.page_size + 1)

    @property
    def least_prefill(self) -> int:
        """Prefill tokens that every step has room for, whatever else it computes."""
        always = self.max_step_tokens - self.max_running + 1
        shared = max(self.page_size, int(self.prefill_share * self.max_step_tokens))
        return min(always, shared if self.itl_target_s is None else self.page_size)

    def steps_of(self, request: Request) -> int:
        """Steps that a request needs at most once it is the oldest: prefill, then its answer."""
        answer = request.max_total - request.num_prompt
        return -(-request.max_total // self.least_prefill) + answer

    def progress_bound(self, requests: Iterable[Request]) -> int:
        """Steps within which every one of ``requests`` has ended, counted from the latest arrival.

        After `aging_steps` all of them are aged. From then on the oldest unfinished request comes
        first: it is not preempted, it takes the place of a later one if it waits, and in each step
        it decodes a token or prefills `least_prefill` tokens. So each request adds its prefill
        steps (all of them again after a preemption) and its answer's length. Steps that only hold
        arrivals back (`batch_wait_s`) compute nothing and do not count.
        """
        return self.aging_steps + sum(self.steps_of(request) for request in requests)


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


def is_prefix_in_flight(request: Request, kv: KVCache, chunks: list[Chunk]) -> bool:
    """Whether this very step fills the first page that the request misses.

    Then it pays to wait one step and find that page in the cache.
    """
    size = kv.page_size
    filling = [chunk for chunk in chunks if chunk.start // size != chunk.end // size]
    if not filling or not kv.is_cached(request) or request.num_tokens <= size:
        return False
    first = kv.matched_pages(request)
    end = (first + 1) * size
    if end >= request.num_tokens:
        return False
    keys = request.page_keys(size, first + 1)
    return any(
        chunk.request.namespace == request.namespace
        and chunk.request.uses_cache
        and chunk.start < end <= chunk.end
        and chunk.request.page_keys(size, first + 1) == keys
        for chunk in filling
    )

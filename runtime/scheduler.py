"""Continuous batching as a pure state machine: no device, no clock, no text.

    scheduler.add(request)
    plan = scheduler.schedule()            # which tokens the next step computes
    events = scheduler.commit(plan, ids)   # one sampled id per request of plan.sampled

Each step serves every decoding request and fills the rest of its token budget with prefill chunks,
oldest first, so prefill and decode share steps. Pages for a prompt are taken at admission, all or
nothing; decoding grows by a page at a time, and when none is left the latest arrival is preempted.

Progress guarantee: nothing that arrives later delays a request; it ends within
`Limits.progress_bound` (itself and all unfinished requests before it) steps.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import RequestError
from .admission import Limits, can_admit, check_admissible
from .batch import Chunk, Plan
from .kv_cache import KVCache
from .preemption import make_room
from .request import FinishReason, Request, Status


class Event(NamedTuple):
    """A request got a token; ``finish_reason`` is set when that was its last."""

    request: Request
    token_id: int
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class Stats:
    """Gauges (now) and counters (since the start) of one scheduler, or engine."""

    num_waiting: int
    num_running: int
    pages_total: int
    pages_free: int
    pages_cached: int
    pages_held: int
    """Owned by one running request."""
    pages_evictable: int
    """Cached, and in use by no request."""
    slots_allocated: int
    """Token slots in the pages that running requests use, shared pages once per request."""
    slots_filled: int
    """Those that hold a computed token."""
    num_preemptions: int
    prompt_tokens: int
    """Prompt tokens of requests that started."""
    cached_tokens: int
    """Of those, reused from the prefix cache."""
    generated_tokens: int = 0
    num_steps: int = 0
    """Steps, and the seconds they took; an engine fills these."""
    step_seconds: float = 0.0
    device_seconds: float = 0.0
    finished: Mapping[str, int] = field(default_factory=dict)
    """Requests that ended, by reason."""

    @property
    def utilisation(self) -> float:
        """Share of the pages that running requests use."""
        return 1 - (self.pages_free + self.pages_evictable) / self.pages_total

    @property
    def fragmentation(self) -> float:
        """Share of the slots in used pages that hold no token yet."""
        return 1 - self.slots_filled / self.slots_allocated if self.slots_allocated else 0.0


class Scheduler:
    """Owns the queue, the running set and the pages."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.kv = KVCache(limits.num_pages, limits.page_size, prefix_cache=limits.prefix_cache)
        # Both in order of arrival, and everything running arrived before everything waiting.
        self.waiting: OrderedDict[str, Request] = OrderedDict()
        self.running: dict[str, Request] = {}
        self._num_preemptions = self._prompt_tokens = self._cached_tokens = 0

    @property
    def has_work(self) -> bool:
        """Whether a call of `schedule` would plan anything."""
        return bool(self.waiting or self.running)

    def add(self, request: Request, now: float = 0.0) -> None:
        """Queue a request, or raise `RequestError` if it could never run."""
        if request.id in self.waiting or request.id in self.running:
            raise RequestError(f"request {request.id}: expected a new id, got one that is in use")
        check_admissible(request, self.limits)
        self.waiting[request.id] = request

    def schedule(self, now: float = 0.0) -> Plan:
        """Plan the next step; empty only when there is no work."""
        plan = Plan()
        self._find_pages(plan)
        prefills = [request for request in self.running.values() if request.num_remaining > 1]
        plan.chunks = [
            Chunk.next(request, 1)
            for request in self.running.values()
            if request.num_remaining == 1
        ]
        budget = self.limits.max_step_tokens - len(plan.chunks)
        for request in prefills:
            if budget:
                plan.chunks.append(Chunk.next(request, min(request.num_remaining, budget)))
                budget -= plan.chunks[-1].num_tokens
        if not plan.preempted:
            self._admit(plan, budget)
        return plan

    def commit(self, plan: Plan, sampled: Sequence[int]) -> list[Event]:
        """Record a finished step; requests that ended since it was planned are left alone."""
        events: list[Event] = []
        tokens = iter(sampled)
        for chunk in plan.chunks:
            request = chunk.request
            token = next(tokens) if chunk.is_last else None
            if request.status is not Status.RUNNING:
                continue
            if request.num_computed != chunk.start:
                raise AssertionError(f"request {request.id}: committed a plan that is outdated")
            request.num_computed = chunk.end
            self.kv.publish(request)
            if token is not None:
                events.append(self._advance(request, token))
        return events

    def finish(self, request_id: str, reason: FinishReason) -> bool:
        """End a request in any state and free its pages at once; False when it is not here."""
        request = self.waiting.pop(request_id, None) or self.running.pop(request_id, None)
        if request is None:
            return False
        self.kv.release(request)
        request.status = Status.FINISHED
        request.finish_reason = reason
        return True

    def abort(self, request_id: str) -> bool:
        """The caller has lost interest. Idempotent."""
        return self.finish(request_id, "abort")

    def stats(self) -> Stats:
        """Numbers for logs and metrics."""
        pool = self.kv.pool
        return Stats(
            num_waiting=len(self.waiting),
            num_running=len(self.running),
            pages_total=pool.total,
            pages_free=pool.num_free,
            pages_cached=pool.num_cached,
            pages_held=pool.num_held,
            pages_evictable=self.kv.tree.num_evictable,
            slots_allocated=sum(len(r.pages) for r in self.running.values()) * self.kv.page_size,
            slots_filled=sum(r.num_computed for r in self.running.values()),
            num_preemptions=self._num_preemptions,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
        )

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken (for tests and audits)."""
        self.kv.check([*self.running.values(), *self.waiting.values()])
        if any(request.pages or request.node for request in self.waiting.values()):
            raise AssertionError("scheduler: a waiting request holds pages or locks")

    def _find_pages(self, plan: Plan) -> None:
        """A slot for each running request's newest token, oldest first; who finds none waits."""
        short = [request for request in self.running.values() if self.kv.needs_page(request)]
        for request in short:
            if request.status is Status.RUNNING:
                self._queue_again(make_room(request, self.running, self.kv), plan)

    def _queue_again(self, victims: list[Request], plan: Plan) -> None:
        """Put preempted requests back at the head: they are older than anything that waits."""
        for victim in victims:
            self.waiting[victim.id] = victim
            self.waiting.move_to_end(victim.id, last=False)
        self._num_preemptions += len(victims)
        plan.preempted.extend(victims)

    def _admit(self, plan: Plan, budget: int) -> None:
        while self.waiting and budget and len(self.running) < self.limits.max_running:
            request = next(iter(self.waiting.values()))
            if not can_admit(request, self.kv, plan.chunks, len(self.running)):
                return
            del self.waiting[request.id]
            self.running[request.id] = request
            request.status = Status.RUNNING
            plan.admitted.append(request)
            if not request.num_preemptions:
                request.num_cached = request.num_computed
                self._prompt_tokens += request.num_prompt
                self._cached_tokens += request.num_cached
            plan.chunks.append(Chunk.next(request, min(request.num_remaining, budget)))
            budget -= plan.chunks[-1].num_tokens

    def _advance(self, request: Request, token: int) -> Event:
        request.append(token)
        reason: FinishReason | None = None
        if token in request.stop_ids:
            reason = "stop"
        elif request.num_tokens >= request.max_total:
            reason = "length"
        if reason is not None:
            self.finish(request.id, reason)
        return Event(request, token, reason)

"""Continuous batching as a pure state machine: no device, no clock, no text.

    scheduler.add(request, now)
    plan = scheduler.schedule(now)         # which tokens the next step computes
    events = scheduler.commit(plan, ids)   # one sampled id per request of plan.sampled
    scheduler.observe(record)              # optional: how long it took

or, where the next step is planned before this one's tokens are known, ``advance(plan)`` when it is
submitted and ``land(plan, ids)`` in place of ``commit``. Before it comes ``lands_all(plan, ids)``,
which does all of it where requests decode on as before.

Each step serves every decoding request and fills its token budget with prefill chunks, by rank, so
prefill and decode share steps. Pages for a prompt are taken at admission, all or nothing; decoding
grows by a page at a time, and when none is left the last by rank is preempted.

Progress guarantee: a request ends within `Limits.progress_bound` (itself and all unfinished
requests before it) steps, whatever arrives later. `overdue` names those for which it broke.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from ..errors import RequestError
from .admission import Limits, check_admissible, is_prefix_in_flight
from .batch import Chunk, Plan, by_pages
from .chunk_budget import prefill_budget
from .decode_run import DecodeRuns
from .kv_cache import KVCache
from .preemption import make_room, preempt_last
from .request import FinishReason, Request, Status, place_of
from .stats import Stats
from .step_model import OnlineFit
from .steps import StepRecord
from .waiting import Rank, WaitingQueue, is_aged, rank_of

CACHE_WINDOW = 32
"""Waiting requests whose cached prefixes are compared at a time: bounds the work of a step."""


class Event(NamedTuple):
    """A request got a token; ``finish_reason`` is set when that was its last."""

    request: Request
    token_id: int
    finish_reason: FinishReason | None


PlainEvent: TypeAlias = tuple[Request, int, FinishReason | None]
"""What an `Event` is, where one is made for every token."""


class Scheduler:
    """Owns the queue, the running set and the pages."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.kv = KVCache(
            limits.num_pages,
            limits.page_size,
            prefix_cache=limits.prefix_cache,
            state_slots=limits.state_slots,
        )
        self.waiting = WaitingQueue()
        self.running: dict[str, Request] = {}
        self.fit = OnlineFit()
        """The step-time model behind `Limits.itl_target_s`."""
        self.num_steps = 0
        """Steps committed so far."""
        self._runs = DecodeRuns()
        self._is_unordered = False  # somebody has started who may share pages with others
        self._num_arrivals = 0
        self._steps_owed = 0  # what all unfinished requests need at most
        self._num_preemptions = 0
        self._prompt_tokens = self._cached_tokens = self._matched_tokens = 0

    @property
    def has_work(self) -> bool:
        """Whether anybody waits or runs."""
        return bool(self.running) or len(self.waiting) > 0

    def add(self, request: Request, now: float = 0.0) -> None:
        """Queue a request, or raise `RequestError` if it could never run."""
        if request.id in self.waiting or request.id in self.running:
            raise RequestError(f"request {request.id}: expected a new id, got one that is in use")
        check_admissible(request, self.limits)
        self._num_arrivals += 1
        self._steps_owed += self.limits.steps_of(request)
        request.arrival, request.arrival_step = self._num_arrivals, self.num_steps
        request.arrived_at = now
        request.bound_step = self.num_steps + self.limits.aging_steps + self._steps_owed
        self.waiting.add(request)

    def schedule(self, now: float = 0.0) -> Plan:
        """Plan the next step; empty when there is no work, or none before ``plan.wait_until``."""
        if self._may_repeat():
            repeated = self._runs.next_plan(self.kv, len(self.running))
            if repeated is not None:
                return repeated
        self._runs.end()
        plan = Plan()
        self._start_oldest(plan)
        self._find_pages(plan)
        if self._is_unordered:
            self.running, self._is_unordered = by_pages(self.running), False
        running, new = self.running.values(), tuple.__new__  # a third of what `Chunk(...)` costs
        plan.chunks = [
            new(Chunk, (r, r.num_computed, r.num_tokens, True))
            for r in running
            if r.num_tokens - r.num_computed == 1 and r.num_tokens < r.max_total
        ]
        plan.num_decoding = len(plan.chunks)
        prefills: list[Request] = []
        if plan.num_decoding < len(running):
            # nothing is left of a request whose last token is in flight
            prefills = [r for r in running if r.num_remaining != 1 and r.num_tokens < r.max_total]
        budget = prefill_budget(self.limits, plan.chunks, self.fit.model)
        for request in sorted(prefills, key=self._rank):
            if budget:
                plan.chunks.append(Chunk.next(request, min(request.num_remaining, budget)))
                budget -= plan.chunks[-1].num_tokens
        if not plan.preempted and self.waiting:
            self._admit(plan, budget, now)
        return plan

    def commit(self, plan: Plan, sampled: Sequence[int]) -> list[Event]:
        """Record a finished step; requests that ended since it was planned are left alone."""
        self.num_steps += 1
        tokens = iter(sampled)
        events = self._commit_decoding(plan.chunks[: plan.num_decoding], tokens)
        for chunk in plan.chunks[plan.num_decoding :]:
            token = next(tokens) if chunk.is_last else None
            if self._compute(chunk) and token is not None:
                chunk.request.append(token)
                events.append(self._event(chunk.request, token))
        return events

    def _commit_decoding(self, chunks: Sequence[Chunk], tokens: Iterator[int]) -> list[Event]:
        """One token each; the common case in place, since this runs for every token."""
        events: list[Event] = []
        size, running, new = self.kv.page_size, Status.RUNNING, tuple.__new__
        for chunk, token in zip(chunks, tokens, strict=False):
            request, start, end, _ = chunk
            if request.status is running and request.num_computed == start and end % size:
                request.num_computed = end
            elif not self._compute(chunk):
                continue
            request.append(token)
            if token in request.stop_ids or request.num_tokens >= request.max_total:
                events.append(self._event(request, token))
            else:
                events.append(new(Event, (request, token, None)))
        return events

    def advance(self, plan: Plan, *, may_repeat: bool = False) -> None:
        """Record a step that is in flight: its tokens are appended by their places.

        The step before it must have landed. Its pages may be shared from here on: the device runs
        steps in order. ``may_repeat``: no token of the next step is asked for more than its id.
        """
        self.num_steps += 1
        if self._runs.advance(plan, self.kv):
            return
        # Of a run that ended meanwhile: the host's arrays may be those of an earlier step of it.
        was_moved = plan.moved > 0
        plan.update_chunks()
        size, running = self.kv.page_size, Status.RUNNING
        row = 0
        for chunk in plan.chunks:
            request, start, end, is_last = chunk
            # decoding within a page, in place: this runs for every token
            is_quick = end - start == 1 and end % size and request.num_computed == start
            if is_quick and is_last and request.status is running:
                request.num_computed, request.num_tokens = end, end + 1
                request.last_token = place = -1 - row  # as in `place_of`
                request.latest.append(place)
            elif self._compute(chunk) and is_last:
                request.append(place_of(row))
            row += is_last
        is_whole = plan.num_decoding == len(plan.chunks) == len(self.running)
        if may_repeat and is_whole and not was_moved:
            self._runs.may_follow(plan)

    def lands_all(self, plan: Plan, sampled: Sequence[int]) -> bool:
        """Whether all of an advanced step's tokens have landed at once; none is anybody's last."""
        return self._runs.land(plan, sampled)

    def land(self, plan: Plan, sampled: Sequence[int]) -> list[PlainEvent]:
        """The tokens of an advanced step; requests that ended meanwhile are left alone."""
        self._runs.end()
        events: list[PlainEvent] = []
        finished = Status.FINISHED
        for request, token in zip(plan.sampled, sampled, strict=True):
            if request.status is finished:
                continue
            request.last_token = request.latest[-1] = token
            if token in request.stop_ids or request.num_tokens >= request.max_total:
                events.append(self._event(request, token))
            else:
                events.append((request, token, None))
        return events

    def observe(self, record: StepRecord) -> None:
        """Learn what a step costs; needed only where chunks are sized for a target."""
        if self.limits.itl_target_s is not None:
            self.fit.observe(record)

    def finish(self, request_id: str, reason: FinishReason) -> bool:
        """End a request in any state and free its pages at once; False when it is not here."""
        if request_id in self.running:
            self._runs.end()
        request = self.waiting.pop(request_id) or self.running.pop(request_id, None)
        if request is None:
            return False
        self.kv.release(request)
        self._steps_owed -= self.limits.steps_of(request)
        request.status = Status.FINISHED
        request.finish_reason = reason
        return True

    def abort(self, request_id: str) -> bool:
        """The caller has lost interest. Idempotent."""
        return self.finish(request_id, "abort")

    def snapshot(self) -> list[Request]:
        """Everyone unfinished; safe to ask for from another thread."""
        return [*list(self.running.values()), *self.waiting.values()]

    def overdue(self) -> list[Request]:
        """Requests that the progress guarantee says have ended by now: none, unless it broke."""
        return [request for request in self.snapshot() if self.num_steps > request.bound_step]

    def stats(self) -> Stats:
        """Numbers for logs and metrics."""
        pool = self.kv.pool
        running = list(self.running.values())
        return Stats(
            num_waiting=len(self.waiting),
            num_running=len(running),
            pages_total=pool.total,
            pages_free=pool.num_free,
            pages_cached=pool.num_cached,
            pages_held=pool.num_held,
            pages_evictable=self.kv.tree.num_evictable,
            slots_allocated=sum(len(r.pages) for r in running) * self.kv.page_size,
            slots_filled=sum(r.num_computed for r in running) + self._runs.num_unsettled,
            num_preemptions=self._num_preemptions,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            matched_tokens=self._matched_tokens,
            num_steps=self.num_steps,
        )

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken (for tests and audits)."""
        self._runs.settle()
        waiting = self.waiting.values()
        unfinished = [*self.running.values(), *waiting]
        self.kv.check(unfinished)
        if any(request.pages or request.node for request in waiting):
            raise AssertionError("scheduler: a waiting request holds pages or locks")
        if self._steps_owed != sum(map(self.limits.steps_of, unfinished)):
            raise AssertionError("scheduler: the steps owed are not those of the unfinished")
        if self.waiting.num_tokens != sum(request.num_tokens for request in waiting):
            raise AssertionError("scheduler: miscounted the tokens that wait")

    def _may_repeat(self) -> bool:
        """Whether the next step could be like the last: nobody who waits can start."""
        oldest = self.waiting.oldest
        is_full = len(self.running) >= self.limits.max_running
        return oldest is None or (is_full and not self._is_aged(oldest))

    def _rank(self, request: Request) -> Rank:
        return rank_of(request, self.num_steps, self.limits.aging_steps)

    def _is_aged(self, request: Request) -> bool:
        return is_aged(request, self.num_steps, self.limits.aging_steps)

    def _start_oldest(self, plan: Plan) -> None:
        """Where the oldest of all waits and is aged, later arrivals that run make room for it.

        Nobody else may do that, so a step preempts only where the guarantee needs it.
        """
        oldest = self.waiting.oldest
        if oldest is None or not self.running or not self._is_aged(oldest):
            return
        if any(request.arrival < oldest.arrival for request in self.running.values()):
            return
        while len(self.running) >= self.limits.max_running or not self.kv.attach(oldest):
            victim = preempt_last(self.running, self.kv, self._rank)
            self._queue_again([victim], plan)
        self._start(oldest, plan)

    def _find_pages(self, plan: Plan) -> None:
        """A slot for each running request's newest token, by rank; who finds none waits."""
        everyone = self.running.values()
        short = [r for r in everyone if r.num_slots < r.num_tokens < r.max_total]
        for request in sorted(short, key=self._rank):
            self._queue_again(make_room(request, self.running, self.kv, self._rank), plan)

    def _queue_again(self, victims: list[Request], plan: Plan) -> None:
        for victim in victims:
            self.waiting.add(victim)
        self._num_preemptions += len(victims)
        plan.preempted.extend(victims)

    def _admit(self, plan: Plan, budget: int, now: float) -> None:
        """Start waiting requests by rank while there is room; the first that lacks pages ends it.

        While others run, one page for each of them stays available, so that an admission does not
        cause a preemption at once. With nobody running no spare is asked for: the request fits by
        `check_admissible`, so the queue always moves.
        """
        if self.running and self.kv.num_available <= len(self.running):
            return  # whoever starts needs a page of its own
        held_until = self._held_until(now)
        if held_until is not None:
            plan.wait_until = None if plan.chunks else held_until
            return
        for request in self._candidates(self.limits.max_running - len(self.running)):
            if budget == 0:
                return
            if is_prefix_in_flight(request, self.kv, plan.chunks):
                if self.limits.policy == "fcfs" or self._is_aged(request):
                    return
                continue
            if not self.kv.attach(request, spare=len(self.running)):
                return
            self._start(request, plan)
            plan.chunks.append(Chunk.next(request, min(request.num_remaining, budget)))
            budget -= plan.chunks[-1].num_tokens

    def _candidates(self, count: int) -> list[Request]:
        """Who may start, best first."""
        aging = self.limits.aging_steps
        if self.limits.policy == "fcfs" or count <= 0:
            return self.waiting.first(count, self.num_steps, aging)
        window = self.waiting.first(CACHE_WINDOW, self.num_steps, aging)
        # The sort is stable: equal matches stay in order of arrival, and the aged stay first.
        window.sort(key=lambda r: (*self._rank(r)[:2], self._missing(r)))
        return window[:count]

    def _missing(self, request: Request) -> int:
        """Orders non-aged requests by the longest cached prefix."""
        return 0 if self._is_aged(request) else -self.kv.matched_pages(request)

    def _held_until(self, now: float) -> float | None:
        """Until when arrivals are held back so that more start together; None: they are not."""
        oldest = self.waiting.oldest
        free = self.limits.max_running - len(self.running)
        if oldest is None or not self.limits.batch_wait_s or self._is_aged(oldest):
            return None
        until = oldest.arrived_at + self.limits.batch_wait_s
        is_full = len(self.waiting) >= free or self.waiting.num_tokens >= (
            self.limits.max_step_tokens
        )
        return None if now >= until or is_full else until

    def _start(self, request: Request, plan: Plan) -> None:
        """A waiting request that has its pages runs from here on."""
        self.waiting.pop(request.id)
        self.running[request.id] = request
        self._is_unordered |= request.num_published > 0
        request.status = Status.RUNNING
        plan.admitted.append(request)
        if not request.num_preemptions and request.uses_cache:
            self._prompt_tokens += request.num_prompt
            self._cached_tokens += request.num_cached
            self._matched_tokens += request.num_matched

    def _compute(self, chunk: Chunk) -> bool:
        """The tokens of a chunk have keys and values now; False if the request is not running."""
        request, start, end, _ = chunk
        if request.status is not Status.RUNNING:
            return False
        if request.num_computed != start:
            raise AssertionError(f"request {request.id}: committed a plan that is outdated")
        request.num_computed = end
        size = self.kv.page_size
        if end // size != start // size:
            self.kv.publish(request)
        return True

    def _event(self, request: Request, token: int) -> Event:
        """A request has its newest token; ends it where that was the last."""
        reason: FinishReason | None = None
        if token in request.stop_ids:
            reason = "stop"
        elif request.num_tokens >= request.max_total:
            reason = "length"
        if reason is not None:
            self.finish(request.id, reason)
        return Event(request, token, reason)

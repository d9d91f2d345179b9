"""One model being served: requests in, pieces of their answers out, one device step at a time.

    engine.add_request("a", prompt_ids, SamplingParams(max_tokens=8))
    while engine.has_work:
        for output in engine.step():
            ...

Not thread-safe: one thread adds, steps and aborts. A step that raises has changed nothing, so the
caller may abort requests and step again. Where the device runs steps ahead of the host, its
failure ends the requests that were in flight, and the next step says so.

It reads no clock but the one it is given: deadlines and timestamps are in that clock's seconds.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..errors import SglkError
from ..targets.device import Logits
from .admission import Limits
from .answer import Live, Output, Timing
from .audit import CacheAudit
from .batch import Plan
from .deadlines import Deadlines
from .executor import Executor
from .outputs import Outputs
from .request import Request, SamplingParams, Status
from .request_checks import Ids, check_params, checked_prompt
from .run_ahead import Flight, as_sampled_rows, changes_of, likeliest_rows
from .sampler import NO_TOKEN, RowState, sample
from .scheduler import Scheduler
from .stats import Stats
from .steps import StepLoad, StepRecord
from .text import AnswerText
from .token_mask import MaskedRow, TokenMask
from .tokenizer import GenerationConfig, Tokenizer


def _fresh_seed() -> int:
    return int.from_bytes(os.urandom(8), "little")


class Engine:
    """Scheduler, executor, sampler and text of one model."""

    def __init__(
        self,
        executor: Executor,
        limits: Limits,
        tokenizer: Tokenizer | None = None,
        config: GenerationConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        audit: CacheAudit | None = None,
    ) -> None:
        self.limits = limits
        self.scheduler = Scheduler(limits)
        self.tokenizer = tokenizer
        self.clock = clock
        self.on_step: Callable[[StepRecord], None] | None = None
        """Called after every step, such as a `StepWriter`."""
        self.last_step: StepRecord | None = None
        self.wait_until: float | None = None
        """Set by a step that computed nothing: when to step again unless a request arrives."""
        self.step_started: float | None = None
        """Since when a step is running; None between steps. Other threads may read it."""
        self._audit, self._executor = audit, executor
        self._config = config or GenerationConfig()
        self.executable = executor.executable
        self.vocab_size = executor.executable.vocab_size
        self._outputs = Outputs(self.scheduler, has_text=tokenizer is not None)
        self._live = self._outputs.live
        self._flight: Flight | None = None
        self._deadlines = Deadlines()
        self._mask_worker: ThreadPoolExecutor | None = None
        self._recorded = self._step_seconds = self._device_seconds = 0.0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.has_work or bool(self._outputs.ready) or self._flight is not None

    def add_request(
        self,
        request_id: str,
        prompt: Ids,
        params: SamplingParams,
        *,
        sample_index: int = 0,
        cache_salt: str = "",
        priority: int = 0,
        mask: TokenMask | None = None,
        deadline: float | None = None,
        start_deadline: float | None = None,
    ) -> int:
        """Queue a prompt, or raise `RequestError`; returns the seed in use.

        ``sample_index`` tells apart samples of one prompt under one seed (``n`` samples are n
        requests). Requests share cached prefixes only with requests of the same ``cache_salt``.
        The lower ``priority`` (-100..100) is the more urgent. ``mask`` says which tokens may come
        next. At ``deadline``, or if it is still queued at ``start_deadline``, the request ends with
        reason "timeout".
        """
        ids = checked_prompt(prompt, self.vocab_size, self.limits.max_context)
        check_params(params, self.vocab_size, has_tokenizer=self.tokenizer is not None)
        eos = () if params.ignore_eos else self._config.eos_token_ids
        request = Request(
            request_id,
            ids,
            self._max_new(len(ids), params),
            stop_ids=(*eos, *params.stop_token_ids),
            namespace=cache_salt,
            priority=priority,
        )
        seed = _fresh_seed() if params.seed is None else int(params.seed)
        row = RowState(
            params,
            ids,
            seed,
            sample_index,
            end_ids=[token for token in request.stop_ids if token < self.vocab_size],
            mask=None if mask is None else MaskedRow(mask, self.vocab_size, self._worker()),
        )
        live = Live(request, row, self._answer_text(params), Timing(self.clock()))
        self.scheduler.add(request, live.timing.arrived)
        self._live[request_id] = live
        if deadline is not None:
            self._deadlines.add(live, deadline, only_waiting=False)
        if start_deadline is not None:
            self._deadlines.add(live, start_deadline, only_waiting=True)
        return seed

    def step(self) -> list[Output]:
        """Run one step of whatever is due; at most one output per request."""
        started = self.step_started = self.clock()
        try:
            return self._step(started)
        finally:
            self.step_started = None

    def _step(self, started: float) -> list[Output]:
        if self._deadlines.entries:
            for live in self._deadlines.passed(started):
                self._outputs.end(live, "timeout", started)
            self._deadlines.prune(len(self._live))
        if self._can_run_ahead():
            self._run_ahead(started)
        else:
            if self._flight is not None:
                self._land(self._flight)
                self._flight = None
            plan = self._schedule(started)
            if plan.chunks:
                self._run(plan, started)
        return self._outputs.take()

    def _schedule(self, started: float) -> Plan:
        plan = self.scheduler.schedule(started)
        self.wait_until = plan.wait_until
        is_idle = not plan.chunks and plan.wait_until is None and self._flight is None
        if is_idle and self.scheduler.has_work:
            raise AssertionError("scheduler: there is work, but the plan is empty")
        return plan

    def abort(self, request_id: str) -> bool:
        """Drop a request in any state and free its pages at once; False if it has ended already."""
        if live := self._live.get(request_id):
            self._outputs.drop(live, "abort", self.clock())
        return self.scheduler.abort(request_id)

    def flush_cache(self) -> int:
        """Forget every cached prefix; how many pages are free now that were not."""
        return self.scheduler.kv.flush()

    def stats(self) -> Stats:
        """Numbers for logs and metrics."""
        return dataclasses.replace(
            self.scheduler.stats(),
            step_seconds=self._step_seconds,
            device_seconds=self._device_seconds,
            generated_tokens=self._outputs.num_tokens,
            finished=dict(self._outputs.finished),
            host_ops=self._executor.host_ops(),
            num_audits=self._audit.num_audits if self._audit else 0,
            num_audit_mismatches=self._audit.num_mismatches if self._audit else 0,
        )

    def close(self) -> None:
        """Give the device back."""
        if self._mask_worker is not None:
            self._mask_worker.shutdown()
        self._executor.close()

    def _run(self, plan: Plan, started: float) -> None:
        """Device, sampling, commit; nothing changes when the device or the sampler raises."""
        on_device = self.clock()
        logits = self._executor.run(plan)
        off_device = self.clock()
        rows = [self._live[request.id] for request in plan.sampled]
        states = [live.row for live in rows]
        sampled = sample(logits, states, self._executor.argmax, self._executor.draw)
        now = self.clock()
        for request in plan.admitted:
            self._live[request.id].timing.started = started
        if self._audit is not None:
            self._audit_rows(self._audit, plan, logits, now)
        for row, error in sampled.failures.items():
            self._outputs.end(rows[row], "error", now, str(error))
        if any(sampled.logprobs):
            for live, logprob in zip(rows, sampled.logprobs, strict=True):
                live.logprob = logprob
        self._outputs.add(self.scheduler.commit(plan, sampled.token_ids), now)
        self._record(plan, started, off_device - on_device)

    def _can_run_ahead(self) -> bool:
        """Whether every token can be chosen without the host seeing its logits."""
        if not self._executor.can_run_ahead or self._audit is not None:
            return False
        special, can_change = self._live.special, self._executor.can_choose_later
        return not special or not any(v.row.needs_logits(can_change) for v in special.values())

    def _run_ahead(self, started: float) -> None:
        """Queue the next step, then wait for the one before it: the device never waits for us."""
        plan = self._schedule(started)
        flight, following, is_open = self._flight, None, False
        if plan.chunks:
            if flight is not None and plan.chunks is flight.plan.chunks:
                rows = flight.rows  # the same requests, a token further on
            else:
                rows = [self._live[request.id] for request in plan.sampled]
            following = Flight(plan, rows, started)
            special = self._live.special
            is_open = bool(special) and any(live.row.changes_logits for live in rows)
            how = as_sampled_rows(rows) if special else likeliest_rows(len(rows))
            self._executor.submit(plan, None if is_open else how)
            for request in plan.admitted:
                self._live[request.id].timing.started = started
        self._flight = following
        if flight is not None:
            self._land(flight)
        if following is not None:
            if is_open:
                self._choose(following)
            self.scheduler.advance(plan, may_repeat=not self._live.special)

    def _choose(self, flight: Flight) -> None:
        """Say how a queued step gets its tokens, now that those before it are known."""
        changes, failures = changes_of(flight.rows, self.vocab_size)
        for row, reason in failures.items():
            self._outputs.end(flight.rows[row], "error", self.clock(), str(reason))
        try:
            self._executor.choose(as_sampled_rows(flight.rows), changes)
        except SglkError as error:
            self._lose(flight, str(error))
            raise

    def _land(self, flight: Flight) -> None:
        """Wait for a step in flight and hand out its tokens."""
        waiting = self.clock()
        try:
            ids = self._executor.collect().tolist()
        except SglkError as error:
            self._lose(flight, str(error))
            raise
        now = self.clock()
        if not self._live.special and self.scheduler.lands_all(flight.plan, ids):
            self._outputs.add_next(flight.rows, ids, now)
        else:
            self._end_without_token(flight, ids, now)
            self._outputs.add(self.scheduler.land(flight.plan, ids), now)
        self._record(flight.plan, flight.started, now - waiting)

    def _end_without_token(self, flight: Flight, ids: Sequence[int], now: float) -> None:
        """End the requests of a step whose logits were not finite."""
        for row in [row for row, token in enumerate(ids) if token == NO_TOKEN]:
            live = flight.rows[row]
            if live.request.status is not Status.FINISHED:
                reason = f"step: expected finite logits, got none in row {row}"
                self._outputs.end(live, "error", now, reason)

    def _lose(self, flight: Flight, error: str) -> None:
        """The device failed: whoever ran or was in flight ends, and no page that is cached is kept.

        Those that ran without a place in the lost steps may hold pages that these published.
        """
        lost = [flight, *([self._flight] if self._flight not in (None, flight) else [])]
        self._flight = None
        now = self.clock()
        in_flight = {chunk.request.id for f in lost if f for chunk in f.plan.chunks}
        for id in in_flight | set(self.scheduler.running):
            if id in self._live:
                self._outputs.end(self._live[id], "error", now, error)
        self.scheduler.kv.flush()

    def _audit_rows(self, audit: CacheAudit, plan: Plan, logits: Logits, now: float) -> None:
        """Compare the copies that are done; make copies of requests that got their first token."""
        ended = [chunk.request for chunk in plan.chunks[plan.num_decoding :] if chunk.is_last]
        for row, request in enumerate(ended, start=plan.num_decoding):
            if audit.is_copy(request):
                audit.compare(request, logits[row])
                self.scheduler.finish(request.id, "stop")
                del self._live[request.id]
            elif audit.wants(request):
                copy = audit.remember(request, logits[row])
                self.scheduler.add(copy, now)
                state = RowState(SamplingParams(), copy.tokens)
                self._live[copy.id] = Live(copy, state, None, Timing(now))

    def _record(self, plan: Plan, started: float, device_seconds: float) -> None:
        started = max(started, self._recorded)
        self._recorded = self.clock()
        record = StepRecord(
            started,
            self._recorded - started,
            device_seconds,
            StepLoad.of(plan),
            len(self.scheduler.running),
            len(self.scheduler.waiting),
            len(plan.preempted),
        )
        self.scheduler.observe(record)
        self.last_step = record
        self._step_seconds += record.seconds
        self._device_seconds += device_seconds
        if self.on_step is not None:
            self.on_step(record)

    def _worker(self) -> ThreadPoolExecutor:
        """The thread that fills masks while the device computes."""
        if self._mask_worker is None:
            self._mask_worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sglk-mask")
        return self._mask_worker

    def _max_new(self, prompt_len: int, params: SamplingParams) -> int:
        """Most tokens to generate: a longer answer than the context ends with reason "length"."""
        if params.max_tokens is None:
            return max(1, self.limits.max_total - prompt_len)
        return min(params.max_tokens, self.limits.max_context - prompt_len)

    def _answer_text(self, params: SamplingParams) -> AnswerText | None:
        if self.tokenizer is None:
            return None
        stops = (params.stop,) if isinstance(params.stop, str) else params.stop
        detokenizer = self.tokenizer.detokenizer(params.skip_special_tokens)
        return AnswerText(detokenizer, stops, params.min_tokens)

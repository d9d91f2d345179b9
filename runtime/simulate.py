"""The scheduler replays a trace with modelled step times: what would a server have done?

The code that decides is the one that serves: `Scheduler` over real page accounting and the real
prefix cache. Only the device is missing; a step takes what `StepModel` says, now less, now more, as
steps of its load did when they were timed: the same trace has the same times again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import RequestError, SglkError
from .admission import Limits
from .batch import Plan
from .request import Request
from .scheduler import Scheduler
from .stats import Stats
from .step_model import MIN_STEPS, StepModel
from .steps import StepLoad, StepRecord
from .trace import TraceRequest

PERCENTILES = (50, 90, 99)
GOLDEN = (5**0.5 - 1) / 2
"""Its multiples, less their whole parts, are spread over 0 to 1 as evenly as can be."""


@dataclass
class _Progress:
    """What one request has seen so far."""

    arrival_s: float
    last_s: float
    last_step: int
    bound: int
    """Steps within which it ends, by the guarantee."""
    worst: int = 0
    """Most steps without a token."""
    has_token: bool = False


@dataclass
class SimResult:
    """What became of a trace. Times in seconds."""

    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    """From arrival to the last token."""
    refused: list[str] = field(default_factory=list)
    """Why requests were refused at the door."""
    seconds: float = 0.0
    """From the first arrival to the last token."""
    busy_s: float = 0.0
    """Seconds in steps."""
    num_tokens: int = 0
    """Generated tokens."""
    num_starved: int = 0
    """Requests that went longer without a token than the guarantee allows; never any."""
    worst_gap: tuple[int, int] = (0, 1)
    """Steps without a token and the bound, of the request that came closest to its bound."""
    stats: Stats | None = None

    def percentiles(self, name: str) -> dict[str, float]:
        """p50, p90, p99 of "ttft", "itl" or "total"; empty without any."""
        values = getattr(self, name)
        if not values:
            return {}
        found = np.percentile(values, PERCENTILES)
        return {f"p{p}": float(value) for p, value in zip(PERCENTILES, found, strict=True)}

    def as_record(self) -> dict[str, Any]:
        """For JSON."""
        stats = self.stats
        assert stats is not None
        prompt = max(1, stats.prompt_tokens)
        return {
            "requests": len(self.total),
            "refused": len(self.refused),
            "ttft_s": self.percentiles("ttft"),
            "itl_s": self.percentiles("itl"),
            "total_s": self.percentiles("total"),
            "seconds": self.seconds,
            "busy_s": self.busy_s,
            "steps": stats.num_steps,
            "output_tokens_per_s": self.num_tokens / self.seconds if self.seconds else 0.0,
            "prompt_tokens_per_s": stats.prompt_tokens / self.seconds if self.seconds else 0.0,
            "cache_hit_rate": stats.cached_tokens / prompt,
            "cache_match_rate": stats.matched_tokens / prompt,
            "preemptions": stats.num_preemptions,
            "starved": self.num_starved,
            "longest_steps_without_token": self.worst_gap[0],
            "its_bound": self.worst_gap[1],
        }


class Simulation:
    """One replay.

    >>> from .step_model import Costs
    >>> decode, mixed = Costs(("decode_rows",), (0.01, 0)), Costs(("prefill_tokens",), (0.02, 0))
    >>> model = StepModel(decode, mixed)
    >>> limits = Limits(page_size=4, num_pages=9, max_running=2)
    >>> result = Simulation([TraceRequest(0, 5.0, 8, 3)], limits, model).run()
    >>> round(result.ttft[0], 3), [round(gap, 3) for gap in result.itl]
    (0.02, [0.01, 0.01])
    """

    def __init__(
        self,
        trace: Sequence[TraceRequest],
        limits: Limits,
        model: StepModel,
        *,
        pace: Callable[[float, StepLoad], float] | None = None,
    ) -> None:
        """``trace`` in order of arrival; ``pace`` says by which factor a step of some load that
        begins then takes longer than modelled, for a machine whose speed changes.
        """
        self.scheduler = Scheduler(limits)
        self.result = SimResult()
        self._model, self._pace = model, pace
        self._arrivals = deque(trace)
        self._started = self._now = trace[0].arrival_s if trace else 0.0
        self._progress: dict[str, _Progress] = {}

    def run(self, on_step: Callable[[int], None] | None = None) -> SimResult:
        """Replay everything; ``on_step`` is told how many requests are still to come."""
        while self._arrivals or self.scheduler.has_work:
            self._take_arrivals()
            if not self.scheduler.has_work:
                if self._arrivals:
                    self._now = max(self._now, self._arrivals[0].arrival_s)
                continue
            plan = self.scheduler.schedule(self._now)
            if plan.chunks:
                self._step(plan)
            else:
                self._idle(plan)
            if on_step is not None:
                on_step(len(self._arrivals))
        self.result.seconds = self._now - self._started
        self.result.stats = self.scheduler.stats()
        return self.result

    def _take_arrivals(self) -> None:
        while self._arrivals and self._arrivals[0].arrival_s <= self._now:
            each = self._arrivals.popleft()
            request = Request(
                f"t{each.number}",
                each.prompt(),
                each.num_output,
                namespace=each.cache_salt,
                priority=each.priority,
            )
            try:
                self.scheduler.add(request, each.arrival_s)
            except RequestError as error:
                self.result.refused.append(str(error))
                continue
            step = request.arrival_step
            self._progress[request.id] = _Progress(
                each.arrival_s, each.arrival_s, step, request.bound_step - step
            )

    def _idle(self, plan: Plan) -> None:
        """Arrivals are held back: until the wait is over, or somebody comes."""
        if plan.wait_until is None:
            raise AssertionError("scheduler: there is work, but the plan is empty")
        until = plan.wait_until
        if self._arrivals:
            until = min(until, self._arrivals[0].arrival_s)
        self._now = max(until, self._now)

    def _step(self, plan: Plan) -> None:
        load = StepLoad.of(plan)
        seconds = self._model.varied(load, self.scheduler.num_steps * GOLDEN % 1)
        if seconds is None:
            kind = "with prefill" if load.prefill_tokens else "that only decode"
            raise SglkError(
                f"step model: expected {MIN_STEPS} timed steps {kind} or more, got fewer "
                "(record a longer run)"
            )
        if self._pace is not None:
            seconds *= self._pace(self._now, load)
        self.scheduler.observe(StepRecord(self._now, seconds, seconds, load, 0, 0, 0))
        self._now += seconds
        self.result.busy_s += seconds
        for event in self.scheduler.commit(plan, [0] * load.logit_rows):
            self._note(event.request, event.finish_reason is not None)

    def _note(self, request: Request, is_last: bool) -> None:
        """A request got a token just now."""
        progress, result = self._progress[request.id], self.result
        gap = self._now - progress.last_s
        (result.itl if progress.has_token else result.ttft).append(gap)
        steps = self.scheduler.num_steps
        progress.worst = max(progress.worst, steps - progress.last_step)
        progress.last_s, progress.last_step, progress.has_token = self._now, steps, True
        result.num_tokens += 1
        if is_last:
            del self._progress[request.id]
            result.total.append(self._now - progress.arrival_s)
            result.num_starved += steps > request.bound_step
            worst, bound = result.worst_gap
            if progress.worst * bound > worst * progress.bound:
                result.worst_gap = progress.worst, progress.bound

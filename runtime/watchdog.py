"""Says what is wrong instead of hanging: steps that do not end, work that nobody steps, starvation.

Ask it now and then, from any thread: it reads, and changes nothing. The answer is a sentence and
the state behind it, ready for a log or a health check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from .engine import Engine
from .request import Request
from .scheduler import Scheduler
from .stats import Stats

Kind = Literal["step", "idle", "overdue"]
_MAX_SHOWN = 5


@dataclass(frozen=True)
class RequestView:
    """A request as it stands."""

    id: str
    status: str
    num_prompt: int
    num_tokens: int
    num_computed: int
    num_pages: int
    num_preemptions: int
    steps: int
    """Steps since it arrived."""
    bound: int
    """Steps within which it ends, by the guarantee."""

    @classmethod
    def of(cls, request: Request, num_steps: int) -> RequestView:
        """As of now."""
        return cls(
            id=request.id,
            status=request.status.value,
            num_prompt=request.num_prompt,
            num_tokens=request.num_tokens,
            num_computed=request.num_computed,
            num_pages=len(request.pages),
            num_preemptions=request.num_preemptions,
            steps=num_steps - request.arrival_step,
            bound=request.bound_step - request.arrival_step,
        )


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong, since when, and the state of everything that may explain it."""

    kind: Kind
    """"step": one does not end; "idle": nobody steps though there is work; "overdue": a request
    went longer without its end than the progress guarantee allows."""
    sentence: str
    seconds: float
    """How long the step has run, or the engine stood still."""
    stats: Stats
    requests: tuple[RequestView, ...]
    """Those concerned, the oldest first, at most five."""

    def as_record(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "stats": asdict(self.stats)}


class Watchdog:
    """Watches one engine; times are in its clock's seconds."""

    def __init__(
        self,
        engine: Engine,
        *,
        step_timeout_s: float = 60.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """``step_timeout_s``: the longest a step, or a pause between steps, may take."""
        self._engine = engine
        self._timeout = step_timeout_s
        self._clock = clock or engine.clock
        self._last_steps = -1
        self._still_since = 0.0

    def check(self) -> Diagnosis | None:
        """What is wrong now; None: nothing."""
        now, engine = self._clock(), self._engine
        scheduler = engine.scheduler
        num_steps, has_work = scheduler.num_steps, engine.has_work
        if num_steps != self._last_steps or not has_work:
            self._last_steps, self._still_since = num_steps, now
        started = engine.step_started
        if started is not None and now - started > self._timeout:
            sentence = f"a step has been running for {now - started:.1f} s"
            return self._diagnose("step", sentence, now - started, scheduler.snapshot())
        still = now - self._still_since
        if started is None and has_work and still > self._timeout:
            sentence = f"there is work, but no step has ended for {still:.1f} s"
            return self._diagnose("idle", sentence, still, scheduler.snapshot())
        overdue = scheduler.overdue()
        if overdue:
            sentence = f"{len(overdue)} requests should have ended by step {num_steps}"
            return self._diagnose("overdue", sentence, still, overdue)
        return None

    def _diagnose(
        self, kind: Kind, sentence: str, seconds: float, requests: list[Request]
    ) -> Diagnosis:
        scheduler: Scheduler = self._engine.scheduler
        shown = sorted(requests, key=lambda request: request.arrival)[:_MAX_SHOWN]
        expected = f"one within {self._timeout:g} s" if kind != "overdue" else "none overdue"
        stats = self._engine.stats()
        return Diagnosis(
            kind=kind,
            sentence=f"watchdog: expected steps to go on ({expected}), got: {sentence} "
            f"({stats.num_running} running, {stats.num_waiting} waiting, {stats.pages_free} of "
            f"{stats.pages_total} pages free)",
            seconds=seconds,
            stats=stats,
            requests=tuple(RequestView.of(each, scheduler.num_steps) for each in shown),
        )

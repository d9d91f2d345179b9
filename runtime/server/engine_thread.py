"""The one thread that owns the engine; the event loop talks to it through two queues.

Inwards: functions that run between steps. Outwards: what the steps gave, handed to the loop with
one wake-up however many steps and tokens came together, so a busy loop never slows the device:
only where it is far behind, the next step waits a moment, once. Steps that hardly leave the
interpreter would keep it from the loop, which gives it away with every write to a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from ...errors import RequestError, SglkError
from ..answer import Output, Timing
from ..engine import Engine
from ..steps import StepRecord
from .exchange import Answer, Exchange
from .metrics import Metrics, State
from .problem import Problem, as_problem

Result = TypeVar("Result")
log = logging.getLogger(__name__)
STEP_FAULTS = (SglkError, OSError, MemoryError)
"""What a device may raise and recover from; anything else is a bug of ours and ends the thread."""
MAX_FAILURES = 3
"""Steps that may fail in a row before the answers under way are given up."""
STATS_INTERVAL = 0.1
MIN_INTERVAL = 0.005
"""Seconds between deliveries to the loop: more pieces per second help nobody and cost each time."""
FAR_BEHIND = 4 * MIN_INTERVAL
"""Seconds after which what a step gave should have been delivered, and the longest wait for it."""


class EngineThread:
    """Submits, aborts and steps; every method but the private ones belongs to the event loop."""

    def __init__(
        self,
        engine: Engine,
        metrics: Metrics,
        state: State,
        *,
        request_timeout: float,
        queue_timeout: float,
        on_death: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self.engine = engine
        self.death: BaseException | None = None
        self.failure: str | None = None
        """Why the device cannot compute; None again after a step that worked."""
        self.last_success = time.monotonic()
        self.step_began: float | None = None
        """When the step that is running now began."""
        self._metrics, self._state = metrics, state
        self._timeouts = (request_timeout, queue_timeout)
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._live: dict[str, tuple[Exchange, Answer]] = {}
        self._inbox: deque[Callable[[], None]] = deque()
        self._outbox: deque[tuple[StepRecord | None, list[Output]] | Callable[[], None]] = deque()
        self._arrived = threading.Event()
        self._is_waking = self._is_stopping = False
        self._failures = 0
        self._delivered = 0.0
        self._behind_since: float | None = None
        self._caught_up = threading.Event()
        self._record: StepRecord | None = None
        self._stats_due = 0.0
        engine.on_step = self._note_step
        self._thread = threading.Thread(target=self._run, name="sglk-engine", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self.death is None and self._thread.is_alive()

    @property
    def num_live(self) -> int:
        """Answers that are not complete."""
        return len(self._live)

    @property
    def live_exchanges(self) -> list[Exchange]:
        return list({id(exchange): exchange for exchange, _ in self._live.values()}.values())

    def step_age(self, now: float) -> float:
        """Seconds that the running step has taken so far; 0 between steps."""
        began = self.step_began
        return 0.0 if began is None else now - began

    def submit(self, exchange: Exchange, prompt_field: str = "prompt") -> None:
        """Queue all answers of a request or none; `Exchange.accepted` tells."""
        if self.death is not None:
            return exchange.fail(self._dead())
        for answer in exchange.answers:
            self._live[answer.id] = (exchange, answer)
        return self._send(lambda: self._add(exchange, prompt_field))

    def abort(self, exchange: Exchange, reason: str = "abort") -> None:
        """Nobody wants the rest: free its pages before the next step. Idempotent."""
        ids = []
        for answer in exchange.unfinished:
            if self._live.pop(answer.id, None) is not None:
                answer.finish_reason = reason
                self._ended(exchange, answer, 0.0)
                ids.append(answer.id)
        if ids:
            self._send(lambda: [self.engine.abort(each) for each in ids])
        exchange.changed.set()

    async def call(self, function: Callable[[Engine], Result]) -> Result:
        """Run something on the engine between two steps."""
        if self.death is not None:
            raise self._dead()
        future: Future[Result] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(self.engine))
                except BaseException as error:
                    future.set_exception(error)
                    if not isinstance(error, SglkError):
                        raise

        self._send(run)
        return await asyncio.wrap_future(future)

    def stop(self, timeout: float) -> bool:
        """End the thread after its current step; whether it did within the time."""
        self._is_stopping = True
        self._arrived.set()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _send(self, function: Callable[[], object]) -> None:
        def run() -> None:
            function()

        self._inbox.append(run)
        self._arrived.set()

    # On the engine's thread.

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._work()
        except BaseException as error:
            log.exception("the engine's thread ends")
            self._post(partial(self._die, error))
        finally:
            self._state.stats = self.engine.stats()

    def _work(self) -> None:
        """What has arrived, then one step; or wait for something to arrive."""
        self._arrived.clear()
        while self._inbox:
            self._inbox.popleft()()
        if self._failures:
            self._arrived.wait(0.05 * 2**self._failures)
        if not self.engine.has_work:
            self._note_stats()
            if not self._inbox and not self._is_stopping:
                self._arrived.wait()
            return
        self._step()
        until = self.engine.wait_until
        if until is not None and not self._inbox:
            self._arrived.wait(max(0.0, until - self.engine.clock()))

    def _step(self) -> None:
        self.step_began = time.monotonic()
        try:
            outputs = self.engine.step()
        except STEP_FAULTS as error:
            return self._step_failed(error)
        finally:
            self.step_began = None
        self._failures, self.failure = 0, None
        self.last_success = time.monotonic()
        record, self._record = self._record, None
        if outputs or record is not None:
            self._outbox.append((record, outputs))
            self._wake()
        if self.last_success >= self._stats_due:
            self._note_stats()
        behind = self._behind_since
        if behind is not None and self.last_success - behind > FAR_BEHIND:
            self._behind_since = None  # so it waits once, even if the loop is stuck
            self._caught_up.clear()
            self._caught_up.wait(FAR_BEHIND)
        return None

    def _step_failed(self, error: BaseException) -> None:
        """A failed step changed nothing: try again, and after some tries give the answers up."""
        log.error("step failed: %s", error)
        self.failure = str(error) or type(error).__name__
        self._failures += 1
        if self._failures < MAX_FAILURES:
            return self._post(lambda: self._count_error("device"))
        self._failures = 0
        scheduler = self.engine.scheduler
        for request_id in [*scheduler.running, *scheduler.waiting]:
            self.engine.abort(request_id)
        return self._post(lambda: self._fail_all("device", f"device: {self.failure}"))

    def _add(self, exchange: Exchange, prompt_field: str) -> None:
        now, added = self.engine.clock(), []
        request_timeout, queue_timeout = self._timeouts
        try:
            for answer in exchange.answers:
                order = answer.order
                self.engine.add_request(
                    answer.id,
                    order.prompt,
                    order.params,
                    sample_index=order.sample_index,
                    cache_salt=order.cache_salt,
                    priority=order.priority,
                    mask=order.mask,
                    deadline=now + request_timeout,
                    start_deadline=now + queue_timeout,
                )
                added.append(answer.id)
        except RequestError as error:
            for request_id in added:
                self.engine.abort(request_id)
            problem = as_problem(error, prompt_field)
            return self._post(lambda: self._fail(exchange, problem))
        return self._post(lambda: self._accepted(exchange))

    def _note_step(self, record: StepRecord) -> None:
        self._record = record

    def _note_stats(self) -> None:
        self._state.stats = self.engine.stats()
        self._stats_due = time.monotonic() + STATS_INTERVAL

    def _post(self, function: Callable[[], None]) -> None:
        self._outbox.append(function)
        self._wake()

    def _wake(self) -> None:
        if not self._is_waking:
            self._is_waking = True
            if self._behind_since is None:
                self._behind_since = time.monotonic()
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody to tell
                self._loop.call_soon_threadsafe(self._awake)

    # On the event loop.

    def _awake(self) -> None:
        """Deliver now, or, when steps are shorter than that, what several of them gave at once."""
        wait = self._delivered + MIN_INTERVAL - self._loop.time()
        if wait > 0:
            self._loop.call_later(wait, self._deliver)
        else:
            self._deliver()

    def _deliver(self) -> None:
        self._is_waking = False
        self._delivered = self._loop.time()
        touched: dict[Exchange, None] = {}
        while self._outbox:
            item = self._outbox.popleft()
            if callable(item):
                item()
                continue
            record, outputs = item
            if record is not None:
                self._metrics.on_step(record)
            # Not the time in `Output.timing`: a later step may have changed that by now.
            ended = 0.0 if record is None else record.started + record.seconds
            self._give(outputs, ended, touched)
        for exchange in touched:
            exchange.notify()
        self._behind_since = time.monotonic() if self._is_waking else None
        self._caught_up.set()

    def _give(self, outputs: list[Output], ended: float, touched: dict[Exchange, None]) -> None:
        """What a step that ended then gave, to its answers; for most tokens there is no more."""
        live, before = self._live, list[float]()
        for output in outputs:
            found = live.get(output.request_id)
            if found is None:  # aborted meanwhile
                continue
            exchange, answer = found
            touched[exchange] = None
            if output.token_id is not None:
                if not exchange.is_counted:
                    pass
                elif answer.last_token is None:
                    self._metrics.on_first_token(output.timing)
                else:
                    before.append(answer.last_token)
                answer.last_token = ended
            answer.add(output)
            if output.finish_reason is not None:
                self._complete(exchange, answer, output.timing)
        for last, count in Counter(before).items():  # few: who runs together waits equally long
            self._metrics.itl.observe(ended - last, count)

    def _complete(self, exchange: Exchange, answer: Answer, timing: Timing) -> None:
        del self._live[answer.id]
        if answer.finish_reason == "timeout":
            self._metrics.timeouts["request" if timing.started is not None else "queue"] += 1
        self._ended(exchange, answer, (timing.finished or timing.arrived) - timing.arrived)

    def _ended(self, exchange: Exchange, answer: Answer, seconds: float) -> None:
        if exchange.is_counted:
            self._metrics.on_end(answer.finish_reason or "error", seconds, answer.num_tokens)
        exchange.on_answer_end(answer, seconds)

    def _accepted(self, exchange: Exchange) -> None:
        exchange.is_accepted = True
        exchange.changed.set()

    def _fail(self, exchange: Exchange, problem: Problem) -> None:
        for answer in exchange.unfinished:
            if self._live.pop(answer.id, None) is not None:
                exchange.on_answer_end(answer, 0.0)
        exchange.fail(problem)

    def _fail_all(self, kind: str, message: str) -> None:
        self._count_error(kind)
        for exchange in self.live_exchanges:
            self._fail(exchange, Problem(message, status=500, code=f"{kind}_error", reason=kind))

    def _count_error(self, kind: str) -> None:
        self._metrics.errors[kind] += 1

    def _dead(self) -> Problem:
        return Problem(
            f"engine: it has ended after {type(self.death).__name__}: {self.death} (restart)",
            status=500,
            code="engine_error",
        )

    def _die(self, error: BaseException) -> None:
        self.death = error
        self._fail_all("engine", str(self._dead()))
        self._on_death(error)

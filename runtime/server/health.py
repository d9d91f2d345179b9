"""Alive, ready, degraded: three questions with three answers, and the sweeper that keeps them true.

- live: the process can still do its work; if not, restart it.
- ready: send it requests. A real step on the device has worked lately, or works now.
- degraded: it answers, but somebody should look. Never because of what clients did wrong.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from ..watchdog import Watchdog
from .exchange import Exchange
from .service import Model, Service
from .wire import Client

log = logging.getLogger(__name__)
SWEEP_INTERVAL = 0.25
_NEARLY_FULL = 0.9


class Health:
    """Answers the three questions for one service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._probing: asyncio.Task[bool] | None = None
        self._preemptions = 0
        self._watchdog: Watchdog | None = None

    def is_live(self) -> tuple[bool, str]:
        """Whether the process can still do its work, and why not."""
        service = self._service
        if service.load_error is not None:
            return False, service.load_error
        if service.model is None:
            return True, "starting"
        thread = service.model.thread
        if thread.death is not None:
            return False, f"the engine has ended: {thread.death}"
        age = thread.step_age(time.monotonic())
        if age > service.settings.hang_timeout:
            return False, f"a step has been running for {age:.0f} s"
        return True, "ok"

    async def is_ready(self) -> tuple[bool, str]:
        """Whether to send requests: after a real step, that is recent or made now."""
        service = self._service
        live, why = self.is_live()
        if not live or service.model is None or service.phase != "ready":
            return False, why if not live else service.phase
        thread, settings = service.model.thread, service.settings
        now = time.monotonic()
        if thread.step_age(now) > settings.step_timeout:
            return False, f"a step has been running for {thread.step_age(now):.0f} s"
        if thread.failure is None and now - thread.last_success < settings.probe_interval:
            return True, "ok"
        if thread.failure is None and thread.num_live:
            return True, "a step is under way"
        if await self._probe():
            return True, "ok"
        return False, f"the device does not compute: {thread.failure or 'no step in time'}"

    async def _probe(self) -> bool:
        """One probe at a time, however many ask."""
        if self._probing is None or self._probing.done():
            timeout = self._service.settings.step_timeout
            self._probing = asyncio.create_task(self._service.probe(timeout))
        return await asyncio.shield(self._probing)

    def degraded(self) -> dict[str, str]:
        """Reasons with what is behind them."""
        service = self._service
        model = service.model
        if model is None:
            return {}
        found: dict[str, str] = {}
        thread, now = model.thread, time.monotonic()
        if thread.death is not None:
            found["engine"] = f"the engine has ended: {thread.death}"
        if thread.failure is not None:
            found["device"] = thread.failure
        if thread.step_age(now) > service.settings.step_timeout:
            found["slow_step"] = f"a step has been running for {thread.step_age(now):.0f} s"
        stalled = self._stalled(model)
        if stalled is not None:
            found["stalled"] = stalled
        gate = model.gate
        if gate.max_queued and gate.num_answers > gate.max_running + _NEARLY_FULL * gate.max_queued:
            found["queue"] = f"{gate.num_answers - gate.max_running} of {gate.max_queued} wait"
        stats = service.state.stats
        if stats is not None:
            if stats.utilisation > _NEARLY_FULL and stats.num_preemptions > self._preemptions:
                found["pages"] = f"pages are full and {stats.num_preemptions} answers gave way"
            self._preemptions = stats.num_preemptions
            if stats.num_audit_mismatches:
                found["audit"] = f"{stats.num_audit_mismatches} cache hits were wrong"
        return found

    def _stalled(self, model: Model) -> str | None:
        """What the engine's own watchdog says about work that does not go on."""
        if self._watchdog is None:
            timeout = self._service.settings.step_timeout
            self._watchdog = Watchdog(model.llm.engine, step_timeout_s=timeout)
        diagnosis = self._watchdog.check()
        if diagnosis is None or diagnosis.kind == "step":  # told apart as slow_step
            return None
        return diagnosis.sentence

    async def sweep(self) -> None:
        """For ever: find clients that do not read, streams that are silent, the state of health."""
        while True:
            await asyncio.sleep(SWEEP_INTERVAL)
            now = time.monotonic()
            for exchange in list(self._service.streams):
                self._sweep_one(exchange, now)
            state = self._service.state
            degraded = self.degraded()
            if "pages" in state.degraded and "pages" not in degraded and self._is_full():
                degraded["pages"] = state.degraded["pages"]
            for reason in degraded.keys() - state.degraded.keys():
                log.warning("degraded: %s: %s", reason, degraded[reason])
            state.degraded = degraded
            state.is_ready = (await self.is_ready())[0] if self._is_cheap() else False

    def _sweep_one(self, exchange: Exchange, now: float) -> None:
        settings = self._service.settings
        blocked = exchange.blocked_since
        if blocked is not None and now - blocked > settings.write_timeout and not exchange.gone:
            self._service.metrics.timeouts["write"] += 1
            exchange.gone = "write"
            if exchange.abort_connection is not None:
                exchange.abort_connection()
            if self._service.model is not None:
                self._service.model.thread.abort(exchange)
        elif blocked is None and now - exchange.last_sent > settings.ping_interval:
            exchange.wants_ping = True
            exchange.changed.set()

    def _is_full(self) -> bool:
        stats = self._service.state.stats
        return stats is not None and stats.utilisation > _NEARLY_FULL

    def _is_cheap(self) -> bool:
        return self._service.phase == "ready"


async def live(service: Service, health: Health, client: Client) -> None:
    """GET /health/live"""
    is_live, why = health.is_live()
    await client.reply_json(
        {"status": "ok" if is_live else "failed", "detail": why}, 200 if is_live else 503
    )


async def ready(service: Service, health: Health, client: Client) -> None:
    """GET /health/ready"""
    is_ready, why = await health.is_ready()
    body: dict[str, Any] = {"status": "ready" if is_ready else "not ready", "detail": why}
    if service.state.phases is not None:
        body["startup_seconds"] = round(service.state.phases.total, 3)
    await client.reply_json(body, 200 if is_ready else 503)


async def degraded(service: Service, health: Health, client: Client) -> None:
    """GET /health/degraded: always 200, the reasons are in the body."""
    reasons = [{"reason": k, "detail": v} for k, v in sorted(health.degraded().items())]
    await client.reply_json({"degraded": bool(reasons), "reasons": reasons})

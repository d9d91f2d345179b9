"""The ASGI application: routes, and the guard around them.

The guard gives each request an id, refuses what may not come in, turns every fault into OpenAI's
error shape, and counts.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from . import admin, endpoints, health, page
from .openapi import document
from .problem import Problem
from .service import Service
from .wire import Client, ClientLeft, Message, Receive, Scope, Send, header

log = logging.getLogger(__name__)
Handler = Callable[[Client], Awaitable[None]]
_REQUEST_ID = re.compile(r"[\w.:-]{1,128}")
_STATS_TIMEOUT = 0.2

OPEN, USER, ADMIN = "open", "user", "admin"


class Endpoint:
    """A handler as an ASGI application."""

    def __init__(self, handler: Handler, access: str) -> None:
        self._handler, self.access = handler, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["sglk.guard"](scope, self.access)
        client = Client(scope, receive, send)
        scope["sglk.client"] = client
        await self._handler(client)


class App:
    """What uvicorn serves."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.health = health.Health(service)
        self._router = Router(self._routes())

    def _routes(self) -> Sequence[Route]:
        service = self.service

        def route(path: str, method: str, handler: Handler, access: str = USER) -> Route:
            return Route(path, Endpoint(handler, access), methods=[method])

        def of(function: Callable[[Service, Client], Awaitable[None]]) -> Handler:
            return partial(function, service)

        def checks(
            function: Callable[[Service, health.Health, Client], Awaitable[None]],
        ) -> Handler:
            return partial(function, service, self.health)

        return [
            route("/v1/chat/completions", "POST", of(endpoints.chat_completions)),
            route("/v1/completions", "POST", of(endpoints.completions)),
            route("/v1/models", "GET", of(endpoints.models)),
            route("/v1/models/{model:path}", "GET", of(endpoints.one_model)),
            route("/tokenize", "POST", of(endpoints.tokenize)),
            route("/detokenize", "POST", of(endpoints.detokenize)),
            route("/health/live", "GET", checks(health.live), OPEN),
            route("/health/ready", "GET", checks(health.ready), OPEN),
            route("/health/degraded", "GET", checks(health.degraded), OPEN),
            route("/metrics", "GET", of(metrics), OPEN),
            route("/openapi.json", "GET", of(openapi), OPEN),
            route("/flush_cache", "POST", of(admin.flush_cache), ADMIN),
            route("/admin/requests", "GET", of(admin.requests), ADMIN),
            route("/admin/drain", "POST", of(admin.drain), ADMIN),
            route("/admin/resume", "POST", of(admin.resume), ADMIN),
            *(route(path, "GET", partial(page.send, name), OPEN) for path, name in page.FILES),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["app"] = self  # a router inside an application raises instead of answering itself
        scope["sglk.id"] = _request_id(scope)
        scope["sglk.guard"] = self._admit
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [(b"x-request-id", scope["sglk.id"].encode()), *_SECURITY]
                message["headers"] = [*message.get("headers", []), *own]
            await send(message)

        try:
            await self._serve(scope, receive, sending)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.service.metrics.requests[route, str(status or "left")] += 1
            for name in ("app", "extensions", "sglk.client", "sglk.guard"):
                scope.pop(name, None)  # each is part of a cycle that only the collector would find

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = Client(scope, receive, send)
        try:
            self._check_headers(scope)
            await self._router(scope, receive, send)
        except ClientLeft:
            return
        except HTTPException as error:
            await client.reply_problem(_routing_problem(scope, error))
        except Problem as problem:
            self._count(problem)
            await client.reply_problem(problem)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("request %s failed", scope["sglk.id"])
            self.service.metrics.errors["internal"] += 1
            started = scope.get("sglk.client")
            if started is not None and started.is_started:
                client.abort_connection()
                return
            text = f"server: an internal error; it is logged under {scope['sglk.id']}"
            await client.reply_problem(Problem(text, status=500, code="internal_error"))

    def _count(self, problem: Problem) -> None:
        metrics = self.service.metrics
        if problem.status == 408:
            metrics.timeouts["read"] += 1
        elif problem.status < 500 or problem.status == 503:
            metrics.refusals[problem.reason] += 1

    def _check_headers(self, scope: Scope) -> None:
        limit = self.service.settings.max_header_bytes
        size = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        size += len(scope.get("raw_path", b"")) + len(scope.get("query_string", b""))
        if size > limit:
            raise Problem(
                f"headers: expected at most {limit} bytes, got {size}",
                status=431,
                code="headers_too_large",
                reason="too_large",
            )

    def _admit(self, scope: Scope, access: str) -> None:
        """Whether the key of a request opens this door."""
        service = self.service
        key = (header(scope, b"authorization") or "").partition(" ")
        given = key[2].strip() if key[0].lower() == "bearer" else ""
        if access == ADMIN:
            if not service.admin_keys:
                raise _forbidden("an --admin-key-file or --admin-key-env, got none")
            if not service.admin_keys.accepts(given):
                raise (
                    _unauthorized("the administrator's key")
                    if not given
                    else _forbidden("the administrator's key, got another")
                )
        elif access == USER and service.keys and not self._is_known(given):
            raise _unauthorized("a valid API key")

    def _is_known(self, key: str) -> bool:
        return self.service.keys.accepts(key) or self.service.admin_keys.accepts(key)


_SECURITY = [(b"x-content-type-options", b"nosniff")]


def _request_id(scope: Scope) -> str:
    """The client's own id if it is harmless, else a new one."""
    given = header(scope, b"x-request-id") or ""
    return given if _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex[:20]}"


def _unauthorized(what: str) -> Problem:
    return Problem(
        f"authorization: expected 'Bearer KEY' with {what}, got none or another",
        status=401,
        code="invalid_api_key",
        reason="unauthorized",
    )


def _forbidden(what: str) -> Problem:
    return Problem(
        f"authorization: expected {what}", status=403, code="forbidden", reason="forbidden"
    )


def _routing_problem(scope: Scope, error: HTTPException) -> Problem:
    if error.status_code == 405:
        problem = Problem(
            f"method: expected {(error.headers or {}).get('Allow')}, got {scope['method']}",
            status=405,
            code="method_not_allowed",
        )
        problem.allow = (error.headers or {}).get("Allow")
        return problem
    return Problem(
        f"path: expected one of /openapi.json, got {scope['path']!r:.120}",
        status=404,
        code="not_found",
    )


async def metrics(service: Service, client: Client) -> None:
    """GET /metrics"""
    state, model = service.state, service.model
    if model is not None:
        thread = model.thread
        if thread.is_alive:
            try:  # between two steps, where nothing is half done
                async with asyncio.timeout(_STATS_TIMEOUT):
                    state.stats = await thread.call(lambda engine: engine.stats())
            except TimeoutError:  # a long step: what it was planned with is what is true now
                state.stats = thread.engine.stats()
        state.num_in_flight = thread.num_live
        state.num_waiting_to_send = sum(
            exchange.blocked_since is not None for exchange in service.streams
        )
    state.num_connections = service.connections()
    data = generate_latest(service.registry)
    await client.reply(200, data, [(b"content-type", CONTENT_TYPE_LATEST.encode())])


async def openapi(service: Service, client: Client) -> None:
    """GET /openapi.json"""
    model = service.loaded()
    await client.reply_json(document(model.schemas, model.name, bool(service.keys)))

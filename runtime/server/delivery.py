"""An accepted request's answers to its client: as one JSON body, or piece by piece.

A shape says what the pieces look like. Whatever happens on the way, what is unfinished is aborted
and its place given back.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, Protocol

from .engine_thread import EngineThread
from .exchange import Answer, Exchange, News, fault_of
from .problem import Problem
from .wire import SSE, Client, ClientLeft, dumps

DONE = b"data: [DONE]\n\n"
PING = b": still working\n\n"


class Shape(Protocol):
    """How answers look on the wire."""

    def first(self, answer: Answer) -> bytes:
        """Events before an answer's first piece."""

    def pieces(self, answer: Answer, news: News) -> bytes:
        """Events for what came."""

    def usage(self, answers: list[Answer]) -> bytes:
        """The event with the usage, after all pieces."""

    def whole(self, answers: list[Answer]) -> dict[str, Any]:
        """The response in one piece."""


async def deliver(
    client: Client,
    thread: EngineThread,
    exchange: Exchange,
    shape: Shape,
    *,
    prompt_field: str,
    is_stream: bool,
    wants_usage: bool,
) -> None:
    """Submit, then send; `Problem` before anything was sent, an error event after."""
    exchange.abort_connection = client.abort_connection
    watcher = asyncio.create_task(client.until_gone())
    watcher.add_done_callback(lambda task: _left(task, thread, exchange))
    try:
        thread.submit(exchange, prompt_field)
        await exchange.accepted()
        if exchange.gone is not None:
            raise ClientLeft
        if is_stream:
            await _stream(client, exchange, shape, wants_usage)
        else:
            await exchange.done()
            if exchange.gone is not None:
                raise ClientLeft
            await client.reply_json(shape.whole(exchange.answers))
    finally:
        watcher.cancel()
        thread.abort(exchange)
        exchange.abort_connection = exchange.push = None


def _left(task: asyncio.Task[None], thread: EngineThread, exchange: Exchange) -> None:
    if task.cancelled() or exchange.is_done:
        return
    if exchange.gone is None:
        exchange.gone = "disconnect"
    thread.abort(exchange)


async def _stream(client: Client, exchange: Exchange, shape: Shape, wants_usage: bool) -> None:
    await client.start(200, SSE)
    await _write(client, exchange, b"".join(map(shape.first, exchange.answers)))
    exchange.push = partial(_push, client, exchange, shape)
    ended = False
    while not ended:
        await exchange.changed.wait()
        exchange.changed.clear()
        if exchange.gone is not None:
            raise ClientLeft
        data = _events(exchange, shape)
        problem = _fault(exchange)
        if problem is not None:
            await _write(client, exchange, data + b"data: " + dumps(problem.body()) + b"\n\n")
            await client.write(b"", more=False)
            return
        ended = exchange.is_done
        if ended:
            data += (shape.usage(exchange.answers) if wants_usage else b"") + DONE
        elif not data and exchange.wants_ping:
            data = PING
        exchange.wants_ping = False
        if data:
            await _write(client, exchange, data)
    await client.write(b"", more=False)


def _push(client: Client, exchange: Exchange, shape: Shape) -> bool:
    """Send without the stream's task; what ends an answer, and what has to wait, is the task's."""
    if exchange.blocked_since is not None or exchange.gone or exchange.problem is not None:
        return False
    for answer in exchange.answers:
        if answer.is_done and not answer.reported:
            return False
    if not client.write_now(partial(_events, exchange, shape)):
        return False
    exchange.last_sent = time.monotonic()
    return True


def _events(exchange: Exchange, shape: Shape) -> bytes:
    return b"".join(
        [
            shape.pieces(answer, answer.take())
            for answer in exchange.answers
            if answer.has_news and answer.finish_reason not in ("timeout", "error", "abort")
        ]
    )


def _fault(exchange: Exchange) -> Problem | None:
    """What broke the stream, if anything did; one broken answer breaks it."""
    if exchange.problem is not None:
        return exchange.problem
    broken = [a for a in exchange.answers if a.finish_reason in ("timeout", "error", "abort")]
    return fault_of(broken[0]) if broken else None


async def _write(client: Client, exchange: Exchange, data: bytes) -> None:
    """Send; the sweeper sees how long that takes."""
    exchange.blocked_since = time.monotonic()
    await client.write(data)
    exchange.last_sent = time.monotonic()
    exchange.blocked_since = None

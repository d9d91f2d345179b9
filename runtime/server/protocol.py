"""uvicorn's HTTP protocol with limits on what a client may do before there is a request.

A connection that sends nothing, or its headers too slowly or without end, is closed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

_BUFFER_BYTES = 64 * 2**10


class LimitedProtocol(HttpToolsProtocol):
    """Made by `limited_protocol`, which sets the limits."""

    max_header_bytes = 64 * 2**10
    read_timeout = 30.0
    on_timeout: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._is_in_head = True
        self._deadline: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # What a client does not read waits here and in the kernel, and no more than this.
        transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _BUFFER_BYTES)
        self._deadline = self.loop.call_later(self.read_timeout, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_deadline()
        self.pipeline.clear()
        running = self._running
        super().connection_lost(exc)
        if running is not None and not running.response_complete:  # also if others are behind it
            running.disconnected = True
            running.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if self._is_in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._head_bytes > self.max_header_bytes:
            self.send_400_response(f"expected at most {self.max_header_bytes} bytes of headers")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.read_timeout, self._too_slow)

    def on_headers_complete(self) -> None:
        self._is_in_head, self._head_bytes = False, 0
        self._stop_deadline()
        own: dict[object, object] = {"abort": self.transport.abort, "write_now": self.write_now}
        self.scope["extensions"] = {"sglk": own}
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_in_head = True

    def write_now(self, make: Callable[[], bytes]) -> bool:
        """Write a piece of the running response, without a task and ASGI's messages in between.

        False, and nothing is made, where ASGI's way would wait: it knows how.
        """
        cycle = self._running
        if cycle is None or not cycle.chunked_encoding or cycle.response_complete:
            return False
        if self.flow.write_paused or cycle.disconnected:
            return False
        data = make()
        if data:
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.on_timeout()
            self.transport.abort()


def limited_protocol(
    max_header_bytes: int, read_timeout: float, on_timeout: Callable[[], None]
) -> type[LimitedProtocol]:
    """A protocol class with these limits."""
    limits = {
        "max_header_bytes": max_header_bytes,
        "read_timeout": read_timeout,
        "on_timeout": staticmethod(on_timeout),
    }
    return type("LimitedProtocol", (LimitedProtocol,), limits)

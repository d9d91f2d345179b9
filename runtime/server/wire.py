"""One HTTP request as the endpoints see it: a bounded body, JSON both ways, and whether the client
is still there.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NoReturn

from .problem import Problem

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON: Headers = [(b"content-type", b"application/json")]
SSE: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def header(scope: Scope, name: bytes) -> str | None:
    """The value of a request header."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value.decode("latin-1"))
    return None


class Client:
    """Reads the request, writes the response, and notices when nobody reads it any more."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self._receive, self._send = receive, send
        self.is_started = False

    async def body(self, max_bytes: int, timeout: float) -> bytes:
        """The whole body, or `Problem`: too large, or too slow."""
        length = header(self.scope, b"content-length")
        if length is not None and length.isdecimal() and int(length) > max_bytes:
            _too_large(max_bytes, length)
        parts: list[bytes] = []
        size = 0
        while True:
            try:
                message = await asyncio.wait_for(self._receive(), timeout)
            except TimeoutError as error:
                raise Problem(
                    f"body: expected more of it within {timeout:g} s, got nothing",
                    status=408, code="timeout", reason="read",
                ) from error  # fmt: skip
            if message["type"] == "http.disconnect":
                raise ClientLeft
            part = message.get("body", b"")
            size += len(part)
            if size > max_bytes:
                _too_large(max_bytes, str(size))
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)

    async def until_gone(self) -> None:
        """Return when the client has left; the body has to be read before."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def start(self, status: int, headers: Headers) -> None:
        """Status line and headers."""
        self.is_started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """A piece of the body; waits while the client does not read."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    def write_now(self, make: Callable[[], bytes]) -> bool:
        """Write what ``make`` gives; False, and nothing is made, where that would have to wait."""
        write = self.scope.get("extensions", {}).get("sglk", {}).get("write_now")
        return bool(write is not None and write(make))

    async def reply(self, status: int, data: bytes, headers: Headers) -> None:
        """A whole response."""
        await self.start(status, [*headers, (b"content-length", str(len(data)).encode())])
        await self.write(data, more=False)

    async def reply_json(
        self, value: Any, status: int = 200, headers: Headers | None = None
    ) -> None:
        """A whole response that is JSON."""
        await self.reply(status, dumps(value), [*JSON, *(headers or [])])

    async def reply_problem(self, problem: Problem) -> None:
        """An error in OpenAI's shape. What is left of a refused body is not read."""
        headers = problem.headers()
        if problem.status in (408, 413):
            headers.append((b"connection", b"close"))
        await self.reply_json(problem.body(), problem.status, headers)

    def abort_connection(self) -> None:
        """Close at once, whatever still waits to be sent."""
        abort = self.scope.get("extensions", {}).get("sglk", {}).get("abort")
        if abort is not None:
            abort()


class ClientLeft(Exception):
    """The client has closed the connection; there is nobody to answer."""


def dumps(value: Any) -> bytes:
    """Compact JSON in UTF-8."""
    return _ENCODER.encode(value).encode()


def quoted(text: str) -> str:
    """A text as JSON."""
    return _ENCODER.encode(text)


def parse_object(body: bytes) -> dict[str, Any]:
    """A JSON object with text that is valid Unicode, or `Problem`."""
    try:
        value = json.loads(body, parse_constant=_no_constant)
        if _SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError as error:
        raise _bad_body(f"text in UTF-8 without lone surrogates, got: {error}") from error
    except (ValueError, RecursionError) as error:
        raise _bad_body(f"JSON, got: {error}") from error
    if not isinstance(value, dict):
        raise _bad_body(f"a JSON object, got {type(value).__name__}")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _bad_body(text: str) -> Problem:
    return Problem(f"body: expected {text:.300}", code="invalid_json")


def _too_large(max_bytes: int, got: str) -> NoReturn:
    raise Problem(
        f"body: expected at most {max_bytes} bytes, got {got:.20} (send less)",
        status=413,
        code="request_too_large",
        reason="too_large",
    )

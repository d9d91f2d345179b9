"""A client for load: one socket per request, as little work per piece as possible."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Result:
    """What became of one request, with times in seconds from its start."""

    status: int = 0
    ttft: float | None = None
    gaps: list[float] = field(default_factory=list)
    seconds: float = 0.0
    num_tokens: int = 0
    num_pieces: int = 0
    """Events that have come so far."""
    num_cached: int = 0
    text: str = ""
    finish_reason: str | None = None
    left: bool = False
    """Whether the client itself broke off."""
    error: str | None = None


@dataclass(frozen=True)
class Target:
    """Where to send requests."""

    host: str
    port: int
    model: str
    key: str = ""


async def request(
    target: Target,
    body: dict[str, Any],
    *,
    leave_after: int | None = None,
    keeps_text: bool = False,
    result: Result | None = None,
) -> Result:
    """POST /v1/completions; ``leave_after`` pieces the client closes its socket.

    ``result`` is filled while the answer comes, for who wants to watch it.
    """
    started = time.perf_counter()
    result = Result() if result is None else result
    reader, writer = await asyncio.open_connection(target.host, target.port, limit=2**24)
    try:
        writer.write(_head(target, {"model": target.model, **body}))
        await writer.drain()
        if leave_after == 0:
            result.left = True
            return result
        result.status = await _status(reader)
        if result.status == 200 and body.get("stream"):
            await _read_stream(reader, result, started, leave_after, keeps_text)
        else:
            _read_whole(json.loads(await reader.read()), result)
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        result.error = type(error).__name__
    finally:
        result.seconds = time.perf_counter() - started
        writer.close()
    return result


def _head(target: Target, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    key = f"authorization: Bearer {target.key}\r\n" if target.key else ""
    return (
        f"POST /v1/completions HTTP/1.1\r\nhost: {target.host}\r\n{key}connection: close\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    ).encode() + data


async def _status(reader: asyncio.StreamReader) -> int:
    head = await reader.readuntil(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1])


async def _read_stream(
    reader: asyncio.StreamReader,
    result: Result,
    started: float,
    leave_after: int | None,
    keeps_text: bool,
) -> None:
    """Events as they come; JSON is only read where its content is wanted."""
    last = started
    while True:
        size = int(await reader.readuntil(b"\r\n"), 16)
        chunk = await reader.readexactly(size + 2)
        if size == 0:
            return
        now = time.perf_counter()
        for event in chunk[:-2].split(b"\n\n"):
            if not event.startswith(b"data: {"):
                continue
            result.num_pieces += 1
            if result.ttft is None:
                result.ttft = now - started
            elif now > last:
                result.gaps.append(now - last)
            last = now
            if keeps_text or b'"usage":{' in event or b'"error"' in event:
                _read_event(json.loads(event[6:]), result)
        if leave_after is not None and result.num_pieces >= leave_after:
            result.left = True
            return


def _read_event(event: dict[str, Any], result: Result) -> None:
    if "error" in event:
        result.error = event["error"]["message"]
        return
    for choice in event["choices"]:
        result.text += choice["text"]
        result.finish_reason = choice["finish_reason"] or result.finish_reason
    if event.get("usage"):
        _read_usage(event["usage"], result)


def _read_whole(body: dict[str, Any], result: Result) -> None:
    if "error" in body:
        result.error = body["error"]["message"]
        return
    result.text = body["choices"][0]["text"]
    result.finish_reason = body["choices"][0]["finish_reason"]
    _read_usage(body["usage"], result)


def _read_usage(usage: dict[str, Any], result: Result) -> None:
    result.num_tokens = usage["completion_tokens"]
    result.num_cached = usage["prompt_tokens_details"]["cached_tokens"]


async def metrics(target: Target) -> dict[str, float]:
    """Every series of /metrics by its full name."""
    reader, writer = await asyncio.open_connection(target.host, target.port, limit=2**24)
    try:
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        text = (await reader.read()).decode().partition("\r\n\r\n")[2]
    finally:
        writer.close()
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found


def percentile(values: list[float], share: float) -> float:
    """The value below which this share of the values lies; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

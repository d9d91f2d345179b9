"""Does a server grow slower? Mixed lengths for an hour, a window of it measured at either end.

Every cycle of the load is the same work with other tokens, so cycles compare. The machine may be
another one after an hour, or in one of the windows: in the end a fresh server, which is what the
old one was in its first minute, answers the same cycles in turns with the old one, and the two side
by side decide. The windows at either end are shown with how far the machine itself has moved.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sglk.bench.edges import Edges
from sglk.bench.load_client import Target, metrics, request
from sglk.bench.mixed_load import cycles
from sglk.bench.server_process import serve_command, server

STEPS_BOUND = 0.03
"""The share of its steps per second that an old server may lose."""
LOOK_INTERVAL_S = 0.5
STALL_S = 3600
"""A machine that stands still for others in between ends no request."""
BODY: dict[str, Any] = {"ignore_eos": True, "stream": True, "temperature": 0}
SIDE_BY_SIDE = ("beside 1", "beside 2")
Batches = list[tuple[list[list[int]], int]]


class _Window:
    """What a cycle of load showed, from the metrics before and after it."""

    def __init__(self, seconds: float, before: dict[str, float], after: dict[str, float]) -> None:
        steps = after["sglk_steps_total"] - before["sglk_steps_total"]
        self.steps_per_s = steps / seconds
        tokens = "sglk_generated_tokens_total"
        self.tokens_per_s = (after[tokens] - before[tokens]) / seconds
        self.busy_ms = 1e3 * (
            after["sglk_busy_seconds_total"] - before["sglk_busy_seconds_total"]
        ) / max(1.0, steps)  # fmt: skip
        self.memory = after['sglk_memory_bytes{kind="anonymous"}'] / 2**20
        self.fragmentation: list[float] = []
        self.utilisation: list[float] = []


def hour(options: argparse.Namespace) -> dict[str, Any]:
    """Steps per second of the first and the last window, and beside a fresh server."""
    limits = [f"--{name}-timeout={STALL_S}" for name in ("read", "write", "queue", "request")]
    command = serve_command(options.artifact, "--kv-memory", str(options.kv_memory), *limits)
    edges = Edges(options.at_edge)
    turning = cycles()
    with server(command, "m") as old:
        first, last = asyncio.run(_age(old, turning, edges, options.minutes * 60, options.window))
        with server(command, "m") as fresh:
            pairs = asyncio.run(_beside(old, fresh, turning, edges, options.window))
    return compared(first, last, *pairs)


def compared(
    first: list[_Window], last: list[_Window], old: list[_Window], fresh: list[_Window]
) -> dict[str, Any]:
    """The figures of all windows, and whether the bound holds."""

    def rate(windows: list[_Window], name: str = "steps_per_s") -> float:
        return float(statistics.median(getattr(window, name) for window in windows))

    beside = [a.steps_per_s / b.steps_per_s - 1 for a, b in zip(old, fresh, strict=True)]
    change, machine = (rate(windows) / rate(first) - 1 for windows in (last, fresh))
    aged = statistics.median(beside)
    return {
        "change": round(change, 4),
        "change_of_tokens_per_s": round(
            rate(last, "tokens_per_s") / rate(first, "tokens_per_s") - 1, 4
        ),
        "machine": round(machine, 4),
        "beside_fresh": round(aged, 4),
        "beside_fresh_each": [round(each, 3) for each in beside],
        **_shown("first", first),
        **_shown("last", last),
        **_shown("fresh", fresh),
        "ok": aged >= -STEPS_BOUND,
    }


def _shown(name: str, windows: list[_Window]) -> dict[str, Any]:
    """Medians over the cycles of a window, so that one disturbed cycle does not decide."""

    def median(values: Iterable[float], digits: int) -> float:
        return round(statistics.median(list(values) or [0.0]), digits)

    return {
        f"{name}_cycles": len(windows),
        f"{name}_steps_per_s": median((w.steps_per_s for w in windows), 2),
        f"{name}_tokens_per_s": median((w.tokens_per_s for w in windows), 1),
        f"{name}_step_ms": median((w.busy_ms for w in windows), 3),
        f"{name}_fragmentation": median((f for w in windows for f in w.fragmentation), 4),
        f"{name}_utilisation": median((u for w in windows for u in w.utilisation), 4),
        f"{name}_memory_mib": median((w.memory for w in windows), 1),
    }


async def _age(
    target: Target, turning: Iterator[Batches], edges: Edges, seconds: float, window: float
) -> tuple[list[_Window], list[_Window]]:
    """The first and the last window of so many seconds of load."""
    await _one_cycle(target, next(turning))  # warm up
    began = time.perf_counter()
    with edges.window("first"):
        (first,) = await _measure([target], turning, window)
    while time.perf_counter() - began < seconds - window:
        await _one_cycle(target, next(turning))
    with edges.window("last"):
        (last,) = await _measure([target], turning, window)
    return first, last


async def _beside(
    old: Target, fresh: Target, turning: Iterator[Batches], edges: Edges, window: float
) -> tuple[list[_Window], list[_Window]]:
    """The same cycles on both, in turns."""
    found: tuple[list[_Window], list[_Window]] = ([], [])
    for name in SIDE_BY_SIDE:
        for target in (old, fresh):
            await _one_cycle(target, next(turning))  # warm up, and a pause between windows
        with edges.window(name):
            for all_of_them, windows in zip(
                found, await _measure([old, fresh], turning, window), strict=True
            ):
                all_of_them += windows
    return found


async def _measure(
    targets: Sequence[Target], turning: Iterator[Batches], seconds: float
) -> list[list[_Window]]:
    """Cycles for so long and no longer, at least one, each the same on all targets in turns."""
    found: list[list[_Window]] = [[] for _ in targets]
    began = time.perf_counter()
    while True:
        started, batches = time.perf_counter(), next(turning)
        turns = list(zip(targets, found, strict=True))
        for target, windows in turns if len(found[0]) % 2 else reversed(turns):
            windows.append(await _one_cycle(target, batches))
        now = time.perf_counter()
        if now - began + (now - started) > seconds:
            return found


async def _one_cycle(target: Target, batches: Batches) -> _Window:
    before, started = await metrics(target), time.perf_counter()
    looks: list[dict[str, float]] = []
    looking = asyncio.create_task(_look(target, looks))
    for prompts, new in batches:
        bodies = [{"prompt": ids, "max_tokens": new, **BODY} for ids in prompts]
        results = await asyncio.gather(*[request(target, body) for body in bodies])
        failed = [result for result in results if result.status != 200 or result.error]
        if failed:
            raise SystemExit(f"serve_hour: expected an answer, got {failed[0]}")
    seconds = time.perf_counter() - started
    looking.cancel()
    (ended,) = await asyncio.gather(looking, return_exceptions=True)  # it closes its connection
    if isinstance(ended, Exception):  # called off is no Exception
        raise ended
    window = _Window(seconds, before, await metrics(target))
    for look in looks:
        window.fragmentation.append(look["sglk_page_fragmentation_ratio"])
        window.utilisation.append(look["sglk_page_utilisation_ratio"])
    return window


async def _look(target: Target, looks: list[dict[str, float]]) -> None:
    while True:
        await asyncio.sleep(LOOK_INTERVAL_S)
        found = await metrics(target)
        if found["sglk_running"]:
            looks.append(found)

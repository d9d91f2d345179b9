"""A server over time: killed under load and started again, and an hour of mixed lengths."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sglk.bench.load_client import Target, metrics, request
from sglk.bench.mixed_load import cycles
from sglk.bench.server_process import STOP_TIMEOUT_S, Served, serve_command, server, start

READY_BOUND_S = 2.0
LOAD_PHASES = ("load", "self-test")
STEPS_BOUND = 0.03
WINDOW_S = 60.0
LOOK_INTERVAL_S = 0.5
BODY: dict[str, Any] = {"ignore_eos": True, "stream": True, "temperature": 0}


def restart(options: argparse.Namespace) -> dict[str, Any]:
    """Kill -9 while answers run, start again on the same port, compare what is there.

    The bound: ready within 2 s more than the phases of loading take. Files are those beside the
    artifact, and this user's in the folder for temporary ones and in shared memory.
    """
    folders = (Path(options.artifact).resolve().parent, Path(tempfile.gettempdir()),
               Path("/dev/shm"))  # fmt: skip
    before = _files(folders)
    first = start(serve_command(options.artifact), "m")
    expected = asyncio.run(_text(first.target))
    asyncio.run(_kill_under_load(first, options.streams))
    second = start(serve_command(options.artifact, port=first.target.port), "m")
    try:
        text, found = asyncio.run(_text(second.target)), asyncio.run(metrics(second.target))
    finally:
        second.process.terminate()
        second.process.communicate(timeout=STOP_TIMEOUT_S)
    phases = {
        name.partition('"')[2].rstrip('"}'): value
        for name, value in found.items()
        if name.startswith("sglk_startup_phase_seconds")
    }
    loading = sum(phases[name] for name in LOAD_PHASES)
    left = sorted(_files(folders) - before)
    beyond = second.seconds - loading
    return {
        "first_start_s": round(first.seconds, 3),
        "restart_s": round(second.seconds, 3),
        "load_s": round(loading, 3),
        "beyond_load_s": round(beyond, 3),
        "phases": {name: round(value, 3) for name, value in phases.items()},
        "phases_are_the_whole": abs(sum(phases.values()) - found["sglk_startup_seconds"]) < 0.001,
        "left_behind": left,
        "same_text": text == expected,
        "ok": beyond <= READY_BOUND_S and not left and text == expected,
    }


def _files(folders: Iterable[Path]) -> set[str]:
    """Every file of this user in these folders, not those below."""
    found = set()
    for folder in folders:
        for entry in os.scandir(folder) if folder.is_dir() else ():
            if entry.is_file(follow_symlinks=False) and entry.stat().st_uid == os.getuid():
                found.add(entry.path)
    return found


async def _text(target: Target) -> str:
    body = {"prompt": [200 + at for at in range(40)], "max_tokens": 24, **BODY}
    return (await request(target, body, keeps_text=True)).text


async def _kill_under_load(served: Served, streams: int) -> None:
    body = {"prompt": [300] * 100, "max_tokens": 2000, **BODY}
    tasks = [asyncio.create_task(request(served.target, body)) for _ in range(streams)]
    while (await metrics(served.target))["sglk_running"] < streams:
        await asyncio.sleep(0.02)
    served.process.send_signal(signal.SIGKILL)
    results = await asyncio.gather(*tasks)
    served.process.communicate()
    if any(result.error is None for result in results):
        raise SystemExit("serve_long: expected every client to learn of the kill")


class _Window:
    """What a cycle of load showed, from the metrics before and after it."""

    def __init__(self, seconds: float, before: dict[str, float], after: dict[str, float]) -> None:
        self.end = 0.0
        steps = after["sglk_steps_total"] - before["sglk_steps_total"]
        self.steps_per_s = steps / seconds
        self.busy_ms = 1e3 * (
            after["sglk_busy_seconds_total"] - before["sglk_busy_seconds_total"]
        ) / max(1.0, steps)  # fmt: skip
        self.memory = after['sglk_memory_bytes{kind="anonymous"}'] / 2**20
        self.fragmentation: list[float] = []
        self.utilisation: list[float] = []


def hour(options: argparse.Namespace) -> dict[str, Any]:
    """Endless cycles of the same mixed lengths: steps per second of the first and last minute."""
    command = serve_command(options.artifact, "--kv-memory", str(options.kv_memory))
    with server(command, "m") as target:
        windows = asyncio.run(_cycles(target, options.minutes * 60))
    first = [w for w in windows if w.end <= WINDOW_S] or windows[:1]
    last = [w for w in windows if w.end > windows[-1].end - WINDOW_S]
    rates = [statistics.median(w.steps_per_s for w in part) for part in (first, last)]
    change = rates[1] / rates[0] - 1
    return {
        "minutes": round(windows[-1].end / 60, 1),
        "cycles": len(windows),
        "change": round(change, 4),
        **_shown("first", first),
        **_shown("last", last),
        "ok": abs(change) <= STEPS_BOUND,
    }


def _shown(name: str, windows: list[_Window]) -> dict[str, Any]:
    """Medians over the cycles of a minute, so that one disturbed cycle does not decide."""

    def median(values: Iterable[float], digits: int) -> float:
        return round(statistics.median(list(values) or [0.0]), digits)

    return {
        f"{name}_cycles": len(windows),
        f"{name}_steps_per_s": median((w.steps_per_s for w in windows), 2),
        f"{name}_step_ms": median((w.busy_ms for w in windows), 3),
        f"{name}_fragmentation": median((f for w in windows for f in w.fragmentation), 4),
        f"{name}_utilisation": median((u for w in windows for u in w.utilisation), 4),
        f"{name}_memory_mib": median((w.memory for w in windows), 1),
    }


async def _cycles(target: Target, seconds: float) -> list[_Window]:
    turning = cycles()
    await _one_cycle(target, next(turning))  # warm up
    began, windows = time.perf_counter(), list[_Window]()
    while not windows or windows[-1].end < seconds:
        windows.append(await _one_cycle(target, next(turning)))
        windows[-1].end = time.perf_counter() - began
    return windows


async def _one_cycle(target: Target, batches: list[tuple[list[list[int]], int]]) -> _Window:
    before, started = await metrics(target), time.perf_counter()
    looks: list[dict[str, float]] = []
    looking = asyncio.create_task(_look(target, looks))
    for prompts, new in batches:
        bodies = [{"prompt": ids, "max_tokens": new, **BODY} for ids in prompts]
        results = await asyncio.gather(*[request(target, body) for body in bodies])
        failed = [result for result in results if result.status != 200 or result.error]
        if failed:
            raise SystemExit(f"serve_long: expected an answer, got {failed[0]}")
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

"""A server killed under load and started again."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sglk.bench.load_client import Target, metrics, request
from sglk.bench.server_process import STOP_TIMEOUT_S, Served, serve_command, start

READY_BOUND_S = 2.0
LOAD_PHASES = ("load", "self-test")
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
        raise SystemExit("serve_restart: expected every client to learn of the kill")

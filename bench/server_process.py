"""A server in a process of its own, for benchmarks that ask it over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sglk.bench.load_client import Target, metrics

STOP_TIMEOUT_S = 30


@dataclass(frozen=True)
class Served:
    """A server that is ready."""

    process: subprocess.Popen[str]
    target: Target
    seconds: float
    """From the start of the process until it said ready."""


def serve_command(artifact: str, *options: str, port: int = 0) -> list[str]:
    """``sglk serve`` of an artifact as the model ``m``."""
    own = ["--port", str(port), "--model-name", "m"]
    return [sys.executable, "-m", "sglk", "serve", artifact, *own, *options]


def start(command: Sequence[str], model: str) -> Served:
    """Start a server and wait until it is ready."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.fullmatch(r"http://(.+):(\d+)", process.stdout.readline().strip())
        if found is None:
            raise SystemExit(f"expected an address from {' '.join(command)}, got none")
        target = Target(found[1], int(found[2]), model)
        asyncio.run(_until_ready(target))
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return Served(process, target, time.perf_counter() - began)


@contextlib.contextmanager
def serving(command: Sequence[str], model: str) -> Iterator[Served]:
    """A server that is ready, until the block ends."""
    served = start(command, model)
    try:
        yield served
    finally:
        served.process.terminate()
        served.process.communicate(timeout=STOP_TIMEOUT_S)


@contextlib.contextmanager
def server(command: Sequence[str], model: str) -> Iterator[Target]:
    """Where it can be asked."""
    with serving(command, model) as served:
        yield served.target


async def _until_ready(target: Target) -> None:
    while (await metrics(target)).get("sglk_ready") != 1:
        await asyncio.sleep(0.01)

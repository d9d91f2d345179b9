"""Tells when something is measured, so that a person or a command can keep the machine quiet."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator


class Edges:
    """Says when a measured window begins and ends, to people and to a command."""

    def __init__(self, command: str | None) -> None:
        self._command = shlex.split(command or "")
        self._started = time.perf_counter()

    @contextlib.contextmanager
    def window(self, name: str) -> Iterator[None]:
        """Around a window; the command hears ``begin NAME`` and ``end NAME``."""
        self._say("begin", name)
        try:
            yield
        finally:
            self._say("end", name)

    def _say(self, edge: str, name: str) -> None:
        if self._command:  # first: it may take until the machine is quiet
            subprocess.run([*self._command, edge, name], check=True)
        minute = (time.perf_counter() - self._started) / 60
        print(f"{minute:7.2f} min: window {name!r}: {edge}", file=sys.stderr, flush=True)

"""Where the time of a start went: phases that follow each other, so that their sum is the whole.

phases = Phases(process_started())
phases.end("imports")
...
phases.end("first step")
"""

from __future__ import annotations

import os
import time
from pathlib import Path


def process_started() -> float:
    """When this process began, in seconds of `time.monotonic`."""
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    since_boot = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic() - max(0.0, uptime - since_boot)


class Phases:
    """Seconds by phase, in order.

    >>> phases = Phases(started=10.0)
    >>> phases.end("load", now=12.0); phases.end("check", now=12.5)
    >>> phases.seconds, phases.total
    ({'load': 2.0, 'check': 0.5}, 2.5)
    """

    def __init__(self, started: float) -> None:
        self.started = self._last = started
        self.seconds: dict[str, float] = {}

    def end(self, name: str, now: float | None = None) -> None:
        """What happened since the last call was this phase."""
        now = time.monotonic() if now is None else now
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now

    @property
    def total(self) -> float:
        """Wall time from the start of the process to the end of the last phase."""
        return self._last - self.started

    def as_text(self) -> str:
        """``ready in 1.20 s: imports 0.30, load 0.90``"""
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.seconds.items())
        return f"ready in {self.total:.2f} s: {parts}"

"""Which processor is disturbed least just now.

A virtual machine's processor is half of a core. While another guest works on the other half, the
same arithmetic takes about twice as long, and what the caches held is gone after a wait: host times
tell then what the neighbour does. Where a fixed loop is never slow nobody is likely to be near.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

PROBE_SECONDS = 4e-3
"""On each processor, each time."""
PROBES = 5
"""Of each processor, in turns: a neighbour that comes and goes is met in one of them."""


def rounds_on(processor: int) -> int:
    """How often a fixed loop runs there in `PROBE_SECONDS`; the calling thread stays there."""
    os.sched_setaffinity(0, {processor})
    end = time.perf_counter() + PROBE_SECONDS
    rounds = 0
    while time.perf_counter() < end:
        sum(range(500))
        rounds += 1
    return rounds


@contextmanager
def on_quietest() -> Iterator[int]:
    """Keep the calling thread on the processor that is disturbed least; its number."""
    allowed = os.sched_getaffinity(0)
    try:
        probes = [[rounds_on(processor) for processor in sorted(allowed)] for _ in range(PROBES)]
        worst = dict(zip(sorted(allowed), map(min, zip(*probes, strict=True)), strict=True))
        quietest = max(worst, key=worst.__getitem__)
        os.sched_setaffinity(0, {quietest})
        yield quietest
    finally:
        os.sched_setaffinity(0, allowed)

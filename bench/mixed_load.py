"""Mixed load on ours for minutes: is the last minute as fast as the first?

The load is a cycle of batches whose sizes never change and whose tokens always do, so that every
cycle is the same work and the prefix cache, the page pool and the allocator keep turning over.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sglk.bench.contest import Result
from sglk.bench.peers import random_ids
from sglk.cli.bench import Scenario, load_options
from sglk.runtime import load

CYCLE = ((1, 16, 0, 64), (16, 64, 32, 32), (4, 512, 256, 48), (1, 1500, 0, 16), (8, 96, 0, 64))
"""Batches of a cycle: requests, prompt tokens, how many of them shared, new tokens."""
WINDOW_S = 60.0


def cycles(seed: int = 1) -> Iterator[list[tuple[list[list[int]], int]]]:
    """Endless cycles of (prompts, new tokens); every prompt is new."""
    while True:
        batches = []
        for count, prompt, shared, new in CYCLE:
            common = random_ids(seed, shared)
            own = [random_ids(seed + 1 + i, prompt - shared) for i in range(count)]
            batches.append(([common + each for each in own], new))
            seed += 1 + count
        yield batches


def soak(path: str, minutes: float, threads: int) -> Result:
    """Runs the load; tokens/s of the cycles that ended in the first and the last minute."""
    scenarios = [Scenario(prompt, new, count, shared) for count, prompt, shared, new in CYCLE]
    with load(path, **load_options(path, scenarios, None, threads)) as model:

        def work(batch: tuple[list[list[int]], int]) -> None:
            model.generate(batch[0], max_tokens=batch[1], ignore_eos=True)

        return run_cycles(work, minutes * 60)


def run_cycles(
    work: Callable[[Any], None],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
    window: float = WINDOW_S,
) -> Result:
    """Medians of the cycles' seconds in the first and the last ``window``, after one warm-up."""
    turning = cycles()
    for batch in next(turning):
        work(batch)
    begin, memory = clock(), [_resident_bytes()]
    ends: list[float] = []
    times: list[float] = []
    while not ends or ends[-1] < seconds:
        start = clock()
        for batch in next(turning):
            work(batch)
        ends.append(clock() - begin)
        times.append(clock() - start)
        memory.append(_resident_bytes())
    tokens = sum(count * (prompt + new) for count, prompt, _, new in CYCLE)
    first = [t for t, end in zip(times, ends, strict=True) if end <= window] or times[:1]
    last = [t for t, end in zip(times, ends, strict=True) if end > ends[-1] - window]
    return {
        "minutes": ends[-1] / 60,
        "cycles": len(times),
        "first_tokens_per_s": tokens / statistics.median(first),
        "last_tokens_per_s": tokens / statistics.median(last),
        "change": statistics.median(first) / statistics.median(last) - 1,
        "first_rss_bytes": memory[0],
        "last_rss_bytes": memory[-1],
    }


def _resident_bytes() -> int:
    """Now, where the system tells; else the peak."""
    status = Path("/proc/self/statm")
    if status.is_file():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def soak_lines(result: Result, allowed: float) -> list[str]:
    word = "holds" if result["change"] >= -allowed else "MISSED"
    return [
        f"{result['cycles']} cycles of mixed load in {result['minutes']:.1f} minutes",
        f"  first minute {result['first_tokens_per_s']:.0f} tokens/s, last minute "
        f"{result['last_tokens_per_s']:.0f}, change {result['change']:+.1%} "
        f"(allowed -{allowed:.0%}): {word}",
        f"  resident memory {result['first_rss_bytes'] / 1e6:.0f} MB after the first cycle, "
        f"{result['last_rss_bytes'] / 1e6:.0f} MB after the last",
    ]

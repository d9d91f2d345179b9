"""A long run of requests that end in every way; afterwards nothing may be left over."""

from __future__ import annotations

import asyncio
import random
import statistics
from typing import Any

from sglk.bench.load_client import Result, Target, metrics, request

CONCURRENCY = 48
MAX_GROWTH = 0.05


async def soak(target: Target, count: int, seed: int) -> dict[str, Any]:
    """Random lengths; a third of the clients leave early, some before the first byte."""
    rng = random.Random(seed)
    memory: list[float] = []
    wrong: list[str] = []
    slots = asyncio.Semaphore(CONCURRENCY)
    tasks = []
    for at in range(count):
        await slots.acquire()
        if at % max(1, count // 100) == 0:
            memory.append((await metrics(target))['sglk_memory_bytes{kind="anonymous"}'])
        task = asyncio.create_task(_one(target, rng.randrange(2**31), wrong))
        task.add_done_callback(lambda _: slots.release())
        tasks.append(task)
    results = await asyncio.gather(*tasks)
    after = await _settled(target)
    tenth = max(2, len(memory) // 10)
    first = memory[tenth // 2 : tenth]  # the caches of the vocabulary fill in the first requests
    growth = statistics.median(memory[-tenth:]) / statistics.median(first) - 1
    held = after['sglk_pages{state="held"}']
    pages = sum(after[f'sglk_pages{{state="{state}"}}'] for state in ("free", "cached", "held"))
    faults = sum(value for name, value in after.items() if name.startswith("sglk_errors_total"))
    return {
        "requests": count,
        "completed": sum(1 for r in results if r.status == 200 and not r.left),
        "left": sum(1 for r in results if r.left),
        "refused": sum(1 for r in results if r.status == 429),
        "wrong": wrong[:3],
        "pages_held": held,
        "pages": pages,
        "in_flight": after["sglk_in_flight"],
        "errors": faults,
        "memory_growth": round(growth, 4),
        "memory_mib": [round(each / 2**20, 1) for each in memory[:: max(1, len(memory) // 10)]],
        "ok": not wrong and held == 0 and after["sglk_in_flight"] == 0 and faults == 0
        and growth < MAX_GROWTH,
    }  # fmt: skip


async def _one(target: Target, seed: int, wrong: list[str]) -> Result:
    rng = random.Random(seed)
    prompt, new = rng.randrange(1, 300), rng.randrange(1, 200)
    is_stream = rng.random() < 0.7
    leave = rng.choice((0, 1, 2, 5, 20)) if rng.random() < 0.33 else None
    if not is_stream and leave is not None:
        leave = 0
    first = rng.randrange(8)
    body = {
        "prompt": [first] * prompt, "max_tokens": new, "ignore_eos": True, "temperature": 0,
        "stream": is_stream, "logprobs": 0,
    }  # fmt: skip
    if is_stream:
        body["stream_options"] = {"include_usage": True}
    result = await request(target, body, leave_after=leave, keeps_text=True)
    if not result.left and result.status == 200:
        if result.num_tokens != new:
            wrong.append(f"{prompt} + {new}: {result.num_tokens} tokens")
        if result.text != expected_text(prompt, new):
            wrong.append(f"{prompt} + {new}: got {result.text[:60]!r}")
    elif result.error is not None and not result.left and result.status != 429:
        wrong.append(result.error)
    return result


def expected_text(prompt: int, new: int) -> str:
    """The text of positions prompt-1, prompt, ...: what `CountingDevice` says."""
    return str(_tokenizer().decode(list(range(prompt - 1, prompt - 1 + new))))


_cached: list[Any] = []


def _tokenizer() -> Any:
    if not _cached:
        from sglk.bench.step_overhead import make_tokenizer

        _cached.append(make_tokenizer(8192))
    return _cached[0]


async def _settled(target: Target) -> dict[str, float]:
    """The metrics once nothing is under way."""
    while True:
        found = await metrics(target)
        if not found["sglk_in_flight"] and not found["sglk_running"] + found["sglk_queued"]:
            return found
        await asyncio.sleep(0.05)

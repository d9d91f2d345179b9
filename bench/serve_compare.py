"""HTTP beside in process, on a real artifact."""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

import sglk
from sglk.bench.load_client import Result, Target, request
from sglk.bench.server_process import serve_command, server
from sglk.runtime import LLM

HTTP_BOUND = 0.95
BODY: dict[str, Any] = {
    "ignore_eos": True, "stream": True, "temperature": 0,
    "stream_options": {"include_usage": True},
}  # fmt: skip


async def _all(target: Target, prompts: list[list[int]], new: int) -> list[Result]:
    asked = [request(target, {"prompt": prompt, "max_tokens": new, **BODY}) for prompt in prompts]
    return await asyncio.gather(*asked)


def ask(target: Target, prompts: list[list[int]], new: int) -> float:
    """All prompts side by side; seconds until all are answered."""
    started = time.perf_counter()
    results = asyncio.run(_all(target, prompts, new))
    seconds = time.perf_counter() - started
    check_answers(results, new)
    return seconds


def check_answers(results: Sequence[Result], new: int) -> None:
    """All of them came whole."""
    bad = [result for result in results if result.error or result.num_tokens != new]
    if bad:
        raise SystemExit(f"expected {new} tokens of every request, got {bad[0]}")


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Tokens/s in process and over HTTP, in turns, each time with fresh prompts.

    The worker threads of whoever does not run sleep, so the two do not disturb each other.
    """
    count: int = options.concurrency
    new: int = options.new
    rng = random.Random(0)

    def prompts() -> list[list[int]]:
        return [[rng.randrange(100, 4000) for _ in range(options.prompt)] for _ in range(count)]

    def in_process(llm: LLM) -> float:
        asked, started = prompts(), time.perf_counter()
        answers = llm.generate(asked, max_tokens=new, ignore_eos=True)
        seconds = time.perf_counter() - started
        return float(sum(len(answer.token_ids) for answer in answers) / seconds)

    def over_http(target: Target) -> float:
        return count * new / ask(target, prompts(), new)

    command = serve_command(
        options.artifact, "--max-running", str(count), "--kv-memory", str(options.kv_memory)
    )
    limits = {"max_running": count, "kv_memory": options.kv_memory}
    inside, outside = [], []
    with sglk.load(options.artifact, **limits) as llm, server(command, "m") as target:
        in_process(llm), over_http(target)
        for _ in range(options.rounds):
            inside.append(in_process(llm))
            outside.append(over_http(target))
    ratios = [mine / other for mine, other in zip(outside, inside, strict=True)]
    ratio = statistics.median(ratios)
    return {
        "concurrency": count,
        "in_process_tokens_per_s": round(statistics.median(inside), 1),
        "http_tokens_per_s": round(statistics.median(outside), 1),
        "ratios": [round(each, 3) for each in ratios],
        "ratio": round(ratio, 3),
        "ok": ratio >= HTTP_BOUND,
    }

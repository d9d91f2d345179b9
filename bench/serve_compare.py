"""HTTP beside in process, and the prefix cache beside none, on a real artifact."""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from typing import Any

import sglk
from sglk.bench.edges import Edges
from sglk.bench.load_client import Result, Target, request
from sglk.bench.server_process import serve_command, server
from sglk.runtime import LLM

HTTP_BOUND = 0.95
SHARED_BOUND = 0.9
BODY: dict[str, Any] = {
    "ignore_eos": True, "stream": True, "temperature": 0,
    "stream_options": {"include_usage": True},
}  # fmt: skip


async def _all(
    target: Target, prompts: list[list[int]], new: int, keeps_text: bool
) -> list[Result]:
    asked = [
        request(target, {"prompt": prompt, "max_tokens": new, **BODY}, keeps_text=keeps_text)
        for prompt in prompts
    ]
    return await asyncio.gather(*asked)


def ask(
    target: Target, prompts: list[list[int]], new: int, *, keeps_text: bool = False
) -> tuple[float, list[Result]]:
    """All prompts side by side; seconds and answers. Text costs the client time: only if asked."""
    started = time.perf_counter()
    results = asyncio.run(_all(target, prompts, new, keeps_text))
    seconds = time.perf_counter() - started
    bad = [result for result in results if result.error or result.num_tokens != new]
    if bad:
        raise SystemExit(f"expected {new} tokens of every request, got {bad[0]}")
    return seconds, results


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
        return count * new / ask(target, prompts(), new)[0]

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


def shared_prompts(options: argparse.Namespace) -> list[list[int]]:
    """``groups`` x ``each`` prompts in random order; those of a group begin with the same ids."""
    rng = random.Random(options.seed)

    def ids(count: int) -> list[int]:
        return [rng.randrange(100, 4000) for _ in range(count)]

    prompts = [
        prefix + ids(options.own)
        for prefix in (ids(options.shared) for _ in range(options.groups))
        for _ in range(options.each)
    ]
    rng.shuffle(prompts)
    return prompts


def shared(options: argparse.Namespace) -> dict[str, Any]:
    """The load without and with the prefix cache.

    Predicted are the seconds without it, less what the tokens that were reused cost: their share
    of the time that the same prompts take with one token of answer.
    """
    prompts, new, edges = shared_prompts(options), options.new, Edges(options.at_edge)
    num_prompt = sum(map(len, prompts))
    usual = ["--max-running", str(options.running), "--kv-memory", str(options.kv_memory),
             "--max-queued", str(len(prompts)), "--max-queued-tokens", str(2 * num_prompt),
             "--queue-timeout", "3600", "--request-timeout", "3600"]  # fmt: skip
    warm = [[each + 1 for each in prompt] for prompt in prompts[:2]]
    with server(serve_command(options.artifact, *usual, "--no-prefix-cache"), "m") as target:
        ask(target, warm, 4)
        with edges.window("without"):
            without, expected = ask(target, prompts, new, keeps_text=True)
        with edges.window("prefill"):
            prefill, _ = ask(target, prompts, 1)
    with server(serve_command(options.artifact, *usual), "m") as target:
        ask(target, warm, 4)
        with edges.window("with"):
            seconds, results = ask(target, prompts, new, keeps_text=True)
    saved = sum(result.num_cached for result in results)
    predicted = without - prefill * saved / num_prompt
    same = [a.text == b.text for a, b in zip(results, expected, strict=True)]
    return {
        "requests": len(prompts),
        "prompt_tokens": num_prompt,
        "saved_tokens": saved,
        "seconds_without": round(without, 2),
        "seconds": round(seconds, 2),
        "speed_up": round(without / seconds, 3),
        "predicted_speed_up": round(without / predicted, 3),
        "share_of_predicted": round(predicted / seconds, 3),
        "same_text": sum(same),
        "ok": all(same) and predicted / seconds >= SHARED_BOUND,
    }

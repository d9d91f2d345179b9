"""Load on a server: overhead per step, throughput beside in-process, Poisson load, a long soak.

    python bench/serve_load.py overhead [--running 32,256]
        processor milliseconds per step of scheduler and server together, on a device that takes
        no time, with that many streams over HTTP; bounds: 0.5 ms at 32, 2 ms at 256. Wall time
        beside it also holds what the client takes of the machine
    python bench/serve_load.py compare ARTIFACT [--concurrency 32] [--new 64]
        tokens/s over HTTP and in process, in turns; bound: 0.95
    python bench/serve_load.py shared ARTIFACT [--groups 16] [--each 16] [--shared 512] [--new 64]
                                       [--running 256] [--at-edge COMMAND]
        shared prefixes, all requests at once: the speed-up by the prefix cache, bound: 0.9 of what
        the tokens that it saves predict, and the same text. Servers with and without it take turns
        of a second; COMMAND is run with "begin NAME" and "end NAME" around every 50 s of them
    python bench/serve_load.py restart ARTIFACT
        kill -9 under load, then a new start: ready within 2 s of load time, no file left behind
    python bench/serve_load.py hour ARTIFACT [--minutes 60] [--window 55] [--at-edge COMMAND]
        mixed lengths: in the end at most 3 % fewer steps per second than a fresh server beside it.
        Each measured window is announced, and COMMAND is run with "begin NAME" and "end NAME", so
        that the machine can be kept quiet
    python bench/serve_load.py load URL --model NAME [--rate 4] [--requests 200]
        Poisson arrivals in groups with shared prefixes: percentiles of TTFT and ITL, tokens/s
    python bench/serve_load.py soak [--requests 10000]
        random lengths, aborts, disconnects on a null device: no token lost or doubled, no page
        held at the end, memory flat from the first to the last tenth (bound: 5 %)

Each prints one line of JSON per measurement; status 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import sys
import time
from typing import Any

from sglk.bench.load_client import Result, Target, metrics, percentile, request
from sglk.bench.server_process import server

OVERHEAD_BOUNDS_MS = {32: 0.5, 256: 2.0}
VOCAB = 8192
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def null_server(running: int, pages: int) -> list[str]:
    """The command of a server on a device that takes no time."""
    return [
        sys.executable,
        __file__,
        "null-server",
        "--running",
        str(running),
        "--pages",
        str(pages),
    ]


def serve_null(running: int, pages: int) -> None:
    """Run it: every token is the one after the last token in the alphabet."""
    from sglk.bench.null_device import CountingDevice
    from sglk.bench.step_overhead import PAGE_SIZE, make_tokenizer
    from sglk.runtime.admission import Limits
    from sglk.runtime.engine import Engine
    from sglk.runtime.executor import Executor
    from sglk.runtime.llm import LLM
    from sglk.runtime.server.serve import serve
    from sglk.runtime.server.settings import Settings

    limits = Limits(
        page_size=PAGE_SIZE, num_pages=pages, max_step_tokens=max(512, running),
        max_running=running, max_context=100_000,
    )  # fmt: skip
    device = CountingDevice(PAGE_SIZE, pages, limits.max_step_tokens, VOCAB)
    engine = Engine(Executor(device, limits), limits, make_tokenizer(VOCAB))
    settings = Settings(model_name="null", port=0, max_queued=1024, max_queued_tokens=10**7)
    asyncio.run(
        serve(
            lambda phases: LLM(engine),
            settings,
            on_started=lambda started: print(started.url, flush=True),
        )
    )


async def overhead(target: Target, running: int, new: int) -> dict[str, Any]:
    """All streams at once; the steps between two looks at the metrics, while all of them run."""
    body = {"prompt": [1] * 100, "max_tokens": new, "ignore_eos": True, "stream": True,
            "temperature": 0}  # fmt: skip
    tasks = [asyncio.create_task(request(target, body)) for _ in range(running)]
    while (before := await metrics(target))["sglk_running"] < running:
        if any(task.done() for task in tasks):
            raise SystemExit(f"overhead: streams of {new} tokens ended before all ran (more --new)")
        await asyncio.sleep(0.05)
    began = time.perf_counter()
    walls, costs = [], []
    while True:
        await asyncio.sleep(0.5)
        after, now = await metrics(target), time.perf_counter()
        if after["sglk_running"] < running:
            break
        steps = after["sglk_steps_total"] - before["sglk_steps_total"]
        cpu = after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]
        walls.append((now - began) / max(1, steps) * 1e3)
        costs.append(cpu / max(1, steps) * 1e3)
        before, began = after, now
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    bound = OVERHEAD_BOUNDS_MS.get(running)
    cost = statistics.median(costs) if costs else float("inf")
    return {
        "running": running,
        "cpu_ms_per_step": round(cost, 3),
        "wall_ms_per_step": round(statistics.median(walls), 3) if walls else None,
        "bound_ms": bound,
        "ok": bound is None or cost <= bound,
    }


async def poisson(
    target: Target,
    *,
    rate: float,
    count: int,
    groups: int,
    shared: int,
    own: int,
    new: int,
    seed: int,
) -> dict[str, Any]:
    """Arrivals at random; the prompts of a group begin with the same words."""
    rng = random.Random(seed)
    prefixes = [_words(rng, shared) for _ in range(groups)]
    tasks, started = [], time.perf_counter()
    for _ in range(count):
        prompt = f"{rng.choice(prefixes)} {_words(rng, own)}"
        body = {"prompt": prompt, "max_tokens": new, "ignore_eos": True, "stream": True,
                "temperature": 0, "stream_options": {"include_usage": True}}  # fmt: skip
        tasks.append(asyncio.create_task(request(target, body)))
        await asyncio.sleep(rng.expovariate(rate))
    results = await asyncio.gather(*tasks)
    return summary(results, time.perf_counter() - started)


def summary(results: list[Result], seconds: float) -> dict[str, Any]:
    """Percentiles and rates of a run."""
    good = [r for r in results if r.status == 200 and r.error is None]
    ttft = [r.ttft for r in good if r.ttft is not None]
    gaps = [gap for r in good for gap in r.gaps]
    return {
        "requests": len(results),
        "failed": len(results) - len(good),
        "ttft_p50_s": round(percentile(ttft, 0.5), 4),
        "ttft_p99_s": round(percentile(ttft, 0.99), 4),
        "itl_p50_s": round(percentile(gaps, 0.5), 4),
        "itl_p99_s": round(percentile(gaps, 0.99), 4),
        "tokens_per_s": round(sum(r.num_tokens for r in good) / seconds, 1),
        "cached_tokens": sum(r.num_cached for r in good),
        "seconds": round(seconds, 2),
    }


def _words(rng: random.Random, count: int) -> str:
    return " ".join("".join(rng.choices(LETTERS, k=4)) for _ in range(count))


def report(figures: dict[str, Any]) -> bool:
    """Print a line; whether its bounds hold."""
    print(json.dumps(figures), flush=True)
    return bool(figures.get("ok", True))


def _add_artifact_commands(commands: Any) -> None:
    for command, numbers in (
        ("compare", {"concurrency": 32, "prompt": 64, "new": 64, "rounds": 5}),
        ("shared", {"groups": 16, "each": 16, "shared": 512, "own": 16, "new": 64, "running": 256,
                    "seed": 0}),
        ("restart", {"streams": 16}),
        ("hour", {}),
    ):  # fmt: skip
        each = commands.add_parser(command)
        each.add_argument("artifact")
        for name, default in numbers.items():
            each.add_argument(f"--{name}", type=int, default=default)
        if command != "restart":
            each.add_argument("--kv-memory", type=int, default=2**30)
        if command in ("shared", "hour"):
            each.add_argument("--at-edge", help="command to run at the edges of what is measured")
    each.add_argument("--minutes", type=float, default=60.0)
    each.add_argument("--window", type=float, default=55.0, help="seconds that are measured")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="load on a server")
    commands = parser.add_subparsers(dest="command", required=True)
    each = commands.add_parser("overhead")
    each.add_argument("--running", default="32,256")
    each.add_argument("--new", type=int, default=20_000)
    _add_artifact_commands(commands)
    each = commands.add_parser("load")
    each.add_argument("url")
    each.add_argument("--model", required=True)
    each.add_argument("--key", default="")
    each.add_argument("--rate", type=float, default=4.0, help="requests per second")
    for name, default in (
        ("requests", 200), ("groups", 16), ("shared", 128), ("own", 16), ("new", 64), ("seed", 0)
    ):  # fmt: skip
        each.add_argument(f"--{name}", type=int, default=default)
    each = commands.add_parser("soak")
    each.add_argument("--requests", type=int, default=10_000)
    each.add_argument("--seed", type=int, default=0)
    each = commands.add_parser("null-server")
    each.add_argument("--running", type=int, required=True)
    each.add_argument("--pages", type=int, required=True)
    return parser


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    if options.command == "null-server":
        serve_null(options.running, options.pages)
        return 0
    if options.command == "compare":
        from sglk.bench.serve_compare import compare

        return 0 if report(compare(options)) else 1
    if options.command == "shared":
        from sglk.bench.serve_shared import shared

        return 0 if report(shared(options)) else 1
    if options.command == "restart":
        from sglk.bench.serve_restart import restart

        return 0 if report(restart(options)) else 1
    if options.command == "hour":
        from sglk.bench.serve_hour import hour

        return 0 if report(hour(options)) else 1
    if options.command == "load":
        where = re.fullmatch(r"https?://([^:/]+)(?::(\d+))?/?", options.url)
        if where is None:
            raise SystemExit(f"url: expected http://HOST:PORT, got {options.url}")
        target = Target(where[1], int(where[2] or 80), options.model, options.key)
        run = poisson(
            target, rate=options.rate, count=options.requests, groups=options.groups,
            shared=options.shared, own=options.own, new=options.new, seed=options.seed,
        )  # fmt: skip
        return 0 if report(asyncio.run(run)) else 1
    if options.command == "soak":
        from sglk.bench.serve_soak import soak

        with server(null_server(32, 400), "null") as target:
            return 0 if report(asyncio.run(soak(target, options.requests, options.seed))) else 1
    good = True
    for running in map(int, options.running.split(",")):
        pages = running * (options.new // 32 + 8) + 1
        with server(null_server(running, pages), "null") as target:
            good &= report(asyncio.run(overhead(target, running, options.new)))
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())

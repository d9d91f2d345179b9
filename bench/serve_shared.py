"""What the prefix cache gains over HTTP, beside what the tokens that it saves cost.

Three servers take turns: the whole load without the cache, the whole load with it, and every
`PRICED`th of its prompts without the cache and with one token of answer, for what a token of a
prompt costs. Predicted are the seconds without the cache, less the price of the tokens that were
reused. That asks for more than the price of the steps that remain would: what only decodes must
cost no more with the cache than it did beside the prefill of others, which fills steps to the brim.
As keys and values that several requests share are read once for all of them, it does.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Sequence
from typing import Any

from sglk.bench.edges import Edges
from sglk.bench.load_client import metrics
from sglk.bench.serve_compare import BODY, ask, check_answers
from sglk.bench.server_process import Served, serve_command, serving
from sglk.bench.turns import Load, in_turns

SHARED_BOUND = 0.9
PRICED = 2
STALL_S = 3600
"""A server that is stopped between its turns ends no request."""


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


def _size(prompts: Sequence[list[int]]) -> int:
    return sum(map(len, prompts))


def server_options(options: argparse.Namespace, prompts: Sequence[list[int]]) -> list[str]:
    """Of all three servers: nothing is refused, nothing ends for the time it takes."""
    limits = {
        "max-running": options.running,
        "kv-memory": options.kv_memory,
        "max-queued": len(prompts),
        "max-queued-tokens": 2 * _size(prompts),
        **dict.fromkeys(("read-timeout", "write-timeout", "queue-timeout"), STALL_S),
        "request-timeout": STALL_S,
    }
    return [f"--{name}={value}" for name, value in limits.items()]


def shared(options: argparse.Namespace) -> dict[str, Any]:
    """The load without and with the prefix cache, and what prompts cost, in turns."""
    prompts, new = shared_prompts(options), options.new
    usual = server_options(options, prompts)
    cached = serve_command(options.artifact, *usual)
    plain = [*cached, "--no-prefix-cache"]
    with serving(plain, "m") as first, serving(plain, "m") as second, serving(cached, "m") as third:
        for served in (first, second, third):
            ask(served.target, [[each + 1 for each in prompt] for prompt in prompts[:2]], 4)
        answers, some = new * len(prompts), prompts[::PRICED]
        once = options.groups * options.shared + options.own * len(prompts)
        whole = Load("without", first, prompts, new, BODY, _size(prompts) + answers)
        priced = Load("prefill", second, some, 1, BODY, _size(some))
        reused = Load("with", third, prompts, new, BODY, once + answers)
        in_turns([whole, priced, reused], Edges(options.at_edge))
        preempted = [_preemptions(served) for served in (first, third)]
    for load, count in ((whole, new), (priced, 1), (reused, new)):
        check_answers(load.results, count)
    return {
        "requests": len(prompts),
        "running": options.running,
        "turns": [load.num_turns for load in (whole, priced, reused)],
        "preemptions": preempted,
        **compared(
            num_prompt=_size(prompts),
            saved=sum(result.num_cached for result in reused.results),
            without=whole.seconds,
            price=priced.seconds / priced.work,
            cached=reused.seconds,
            same=[a.text == b.text for a, b in zip(whole.results, reused.results, strict=True)],
        ),
    }


def _preemptions(served: Served) -> int:
    """None if there are pages for all that run: then nothing is computed twice."""
    return int(asyncio.run(metrics(served.target))["sglk_preemptions_total"])


def compared(
    *,
    num_prompt: int,
    saved: int,
    without: float,
    price: float,
    cached: float,
    same: Sequence[bool],
) -> dict[str, Any]:
    """The figures of a run: seconds without and with the cache, and of a token of a prompt."""
    predicted = without - price * saved
    return {
        "prompt_tokens": num_prompt,
        "saved_tokens": saved,
        "seconds_without": round(without, 2),
        "ms_per_prompt_token": round(1e3 * price, 4),
        "seconds": round(cached, 2),
        "speed_up": round(without / cached, 3),
        "predicted_speed_up": round(without / predicted, 3),
        "share_of_predicted": round(predicted / cached, 3),
        "same_text": sum(same),
        "ok": all(same) and predicted / cached >= SHARED_BOUND,
    }

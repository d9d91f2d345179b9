"""What a GPU is asked to serve: cells of one figure each, the same for every runtime.

A runtime is a function ``serve(prompts, new, reuse) -> Served`` that answers prompts of token ids
greedily, each with exactly ``new`` tokens; ``reuse`` says whether cached prefixes may be used.
Prompts are fresh random ids each time, so only shared prefixes ever hit a cache.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

Prompts = list[list[int]]


class DecodeStep(NamedTuple):
    """A step in which requests only decode."""

    requests: int
    host_s: float
    """From the end of the step before to its own, less the time that the host waited for it."""


class Served(NamedTuple):
    """How a batch of prompts went."""

    seconds: float
    steps: tuple[DecodeStep, ...] = ()
    """As far as the runtime tells."""


Serve = Callable[[Prompts, int, bool], Served]
PROMPTS = 5
"""Prompts whose first tokens are timed, one after the other."""
REST_S = 2.0
"""Before these: a chip that has worked at its limit of power is slower for a while."""
WARM = "warm: "
WARM_S, WARM_PROMPT = 1.0, 8192
"""How long a chip works on prompts of how many tokens, until it is warm."""
HOST_RUNS = 3
"""`Cell.runs` of the host's time."""
NEW = 128
"""Tokens of an answer where decoding is measured."""
SHORT = 128
"""Tokens of a prompt there."""
GROUPS, EACH, SHARED, OWN, SHARED_NEW = 16, 16, 1024, 128, 64
"""Requests with shared prefixes: groups, requests of each, tokens shared and own, new tokens."""


@dataclass(frozen=True)
class Cell:
    """One figure: ``unit`` is "ms" or "µs" (lower is better) or "tokens/s"."""

    name: str
    unit: str
    measure: Callable[[Serve, random.Random, int], float]
    concurrency: int = 1
    prompt: int = SHORT
    needs_steps: bool = False
    """Whether it is made of `Served.steps`, which only ours has."""
    runs: int = 1
    """Of which the least counts, where what others do on the machine can only add."""


def ids(rng: random.Random, count: int, vocab: int) -> list[int]:
    """A prompt of random ids, away from the special ones at both ends."""
    return [rng.randrange(10, vocab - 10) for _ in range(count)]


def first_token_ms(serve: Serve, rng: random.Random, vocab: int, prompt: int) -> float:
    """The median of `PROMPTS` prompts, one after the other, after one more of that length."""
    times = [serve([ids(rng, prompt, vocab)], 1, True).seconds for _ in range(1 + PROMPTS)]
    return 1e3 * statistics.median(times[1:])


def first_token(prompt: int) -> Cell:
    """Time to the only token of an answer, alone: the median of five, after one of that length.

    The chip has rested, whatever was measured before: one that has worked at its limit of power is
    slower for a while, by up to a fifth. `first_token_warm` tells what it takes then.
    """

    def measure(serve: Serve, rng: random.Random, vocab: int) -> float:
        time.sleep(REST_S)
        return first_token_ms(serve, rng, vocab, prompt)

    return Cell(f"first token after {prompt}", "ms", measure, 1, prompt)


def first_token_warm(prompt: int) -> Cell:
    """As `first_token`, right after a second of prompts of 8,192."""

    def measure(serve: Serve, rng: random.Random, vocab: int) -> float:
        begun = time.perf_counter()
        while time.perf_counter() - begun < WARM_S:
            serve([ids(rng, WARM_PROMPT, vocab)], 1, True)
        return first_token_ms(serve, rng, vocab, prompt)

    return Cell(f"{WARM}first token after {prompt}", "ms", measure, 1, prompt)


def decode(concurrency: int, prompt: int = SHORT) -> Cell:
    """Tokens per second after the first token of each of the requests."""

    def measure(serve: Serve, rng: random.Random, vocab: int) -> float:
        def batch() -> Prompts:
            return [ids(rng, prompt, vocab) for _ in range(concurrency)]

        whole, first = serve(batch(), NEW, True), serve(batch(), 1, True)
        return concurrency * (NEW - 1) / (whole.seconds - first.seconds)

    return Cell(f"decode {concurrency} x {prompt}", "tokens/s", measure, concurrency, prompt)


def host_time(concurrency: int) -> Cell:
    """What the host does for a step in which so many requests decode; the median.

    The least of a few runs, each on the processor that others disturb least just then
    (`processors.py`): on shared machines all of it takes several times as long at times.
    """

    def measure(serve: Serve, rng: random.Random, vocab: int) -> float:
        served = serve([ids(rng, SHORT, vocab) for _ in range(concurrency)], NEW, True)
        return 1e6 * statistics.median(
            step.host_s for step in served.steps if step.requests == concurrency
        )

    name = f"host time of a step of {concurrency}"
    return Cell(name, "µs", measure, concurrency, needs_steps=True, runs=HOST_RUNS)


def prefill(count: int, prompt: int) -> Cell:
    """Prompt tokens per second of several requests at once."""

    def measure(serve: Serve, rng: random.Random, vocab: int) -> float:
        served = serve([ids(rng, prompt, vocab) for _ in range(count)], 1, True)
        return count * prompt / served.seconds

    return Cell(f"prefill {count} x {prompt}", "tokens/s", measure, count, prompt)


def shared_prefix(reuse: bool) -> Cell:
    """All tokens per second, prompts and answers, of groups that share most of their prompt."""

    def measure(serve: Serve, rng: random.Random, vocab: int) -> float:
        prompts = [
            prefix + ids(rng, OWN, vocab)
            for prefix in [ids(rng, SHARED, vocab) for _ in range(GROUPS)]
            for _ in range(EACH)
        ]
        rng.shuffle(prompts)
        total = len(prompts) * (SHARED + OWN + SHARED_NEW)
        return total / serve(prompts, SHARED_NEW, reuse).seconds

    name = f"shared prefix, cache {'on' if reuse else 'off'}"
    return Cell(name, "tokens/s", measure, GROUPS * EACH, SHARED + OWN)


def all_cells() -> Iterator[Cell]:
    """In the order of the table."""
    yield from (first_token(n) for n in (128, 512, 2048, 8192))
    yield from (first_token_warm(n) for n in (512, 2048))
    yield from (decode(n) for n in (1, 8, 64, 256))
    yield host_time(64)
    yield decode(1, 8192)
    yield decode(16, 4096)
    yield prefill(16, 2048)
    yield from (shared_prefix(reuse) for reuse in (True, False))

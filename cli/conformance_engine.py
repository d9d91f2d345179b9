"""Section ``engine`` of the conformance kit: what the runtime makes of the chip.

Prefix cache, chunks, batches and preemption must be invisible: the same greedy ids with and without
them. Here and not in ``targets/``, whose rooms do not know the runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..runtime.admission import Limits
from ..runtime.engine import Engine
from ..runtime.executor import Executor
from ..runtime.llm import LLM
from ..targets.conformance.chip import Chip
from ..targets.conformance.decoder import SHAPES
from ..targets.conformance.lifetimes import Bench, on_decoder
from ..targets.conformance.outcome import Outcome

SECTION = "engine"
NEW_TOKENS = 12
Prompt = tuple[int, ...]


def check_engine(chip: Chip) -> Iterator[Outcome]:
    """Every rule on the first decoder, through scheduler, prefix cache and sampler."""
    return on_decoder(chip, SECTION, RULES)


@dataclass(frozen=True)
class Served:
    """Answers by prompt, and how many of the prompts' tokens came from the prefix cache."""

    ids: list[list[int]]
    num_cached: int


def prompts(page: int) -> list[Prompt]:
    """Two that share two pages, one that ends with a page, two short ones."""
    rng = np.random.default_rng(5)
    vocab = SHAPES[0].vocab

    def draw(length: int) -> Prompt:
        return tuple(int(t) for t in rng.integers(0, vocab, length))

    shared = draw(2 * page)
    return [(*shared, *draw(3)), (*shared, *draw(9)), draw(page), draw(5), draw(1)]


def serve(bench: Bench, *, one_by_one: bool = False, pages: int = 40, **limits: Any) -> Served:
    """Greedy answers to `prompts` by a fresh engine."""
    page = bench.chip.target.page_size
    asked = prompts(page)
    options = {"max_step_tokens": 3 * page, "max_running": 8, **limits}
    executable = bench.chip.load(bench.artifact, pages, options["max_step_tokens"])
    bounds = Limits(page_size=page, num_pages=pages, **options)
    with LLM(Engine(Executor(executable, bounds), bounds)) as llm:
        if one_by_one:
            answers = [llm.generate(list(p), max_tokens=NEW_TOKENS) for p in asked]
        else:
            answers = llm.generate([list(p) for p in asked], max_tokens=NEW_TOKENS)
    return Served([a.token_ids for a in answers], sum(a.num_cached_tokens for a in answers))


def plain(bench: Bench) -> Served:
    """One request at a time, no cache."""
    return serve(bench, one_by_one=True, prefix_cache=False)


def right_ids(bench: Bench) -> str:
    """The reference's greedy ids, but where its two best logits are closer than the tolerance."""
    return _wrong_ids(bench, plain(bench))


def _wrong_ids(bench: Bench, got: Served) -> str:
    """The first answer that the reference would not give, if any."""
    asked = prompts(bench.chip.target.page_size)
    for prompt, answer in zip(asked, got.ids, strict=True):
        tokens = (*prompt, *answer)
        logits = bench.reference.logits(tokens)
        for place, token in enumerate(answer, start=len(prompt) - 1):
            row = logits[place]
            short = float(row.max() - row[token])
            allowed = 2 * bench.mode.tolerance * float(np.linalg.norm(row))
            if short > allowed:
                return (
                    f"expected token {int(row.argmax())} after {place + 1} tokens, got {token}: "
                    f"its logit is {short:.3g} below the best one, {allowed:.2g} is allowed"
                )
    return ""


def _same(bench: Bench, got: Served, what: str) -> str:
    """Ids equal those of one request at a time, if the chip promises so; else they are right."""
    if not bench.chip.target.batch_invariant:
        reason = _wrong_ids(bench, got)
        return f"{what}: {reason}" if reason else ""
    wanted = plain(bench)
    for number, (a, b) in enumerate(zip(got.ids, wanted.ids, strict=True)):
        if a != b:
            place = next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
            return (
                f"prompt {number} {what}: expected the ids of one request at a time, {b}, got {a} "
                f"(the first {place} are equal)"
            )
    return ""


def batched(bench: Bench) -> str:
    return _same(bench, serve(bench, prefix_cache=False), "in a batch")


def chunked(bench: Bench) -> str:
    got = serve(bench, prefix_cache=False, max_step_tokens=7, max_running=4)
    return _same(bench, got, "in steps of 7 tokens")


def cached(bench: Bench) -> str:
    got = serve(bench, one_by_one=True)
    least = 2 * bench.chip.target.page_size
    if got.num_cached < least:
        return f"expected {least} tokens or more from the prefix cache, got {got.num_cached}"
    return _same(bench, got, "with a prefix cache")


def crowded(bench: Bench) -> str:
    """Pages for two of the requests: others wait, or are preempted and computed again."""
    return _same(bench, serve(bench, pages=7), "with few pages")


RULES: dict[str, Callable[[Bench], str]] = {
    "greedy ids of the reference": right_ids,
    "batches": batched,
    "chunks": chunked,
    "resume from the prefix cache": cached,
    "few pages": crowded,
}

"""Many requests of random lengths, many of them aborted: nothing lost, nothing left, memory flat.

    python bench/soak.py [--requests 10000] [--seed 0] [--policy fcfs]

The engine serves a device that keeps the token of every slot and reads each context back through
the page table, so its answers show every wrong, stale or too early page. Prompts share prefixes;
requests come in bursts, with priorities and salts; a quarter is aborted at a random moment, some
run into deadlines, the cache is flushed now and then, and steps fail.

Checked: each answer is, token by token, what the prompt alone determines; no output comes after the
end; at the end free and cached pages are all there is; memory (RssAnon + VmSwap) of the last tenth
of the requests is within 5 % of that after the first.
"""

from __future__ import annotations

import argparse
import gc
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sglk.runtime.admission import Limits, Policy
from sglk.runtime.answer import Output
from sglk.runtime.engine import Engine
from sglk.runtime.executor import Executor
from sglk.runtime.request import SamplingParams
from sglk.targets.device import Int32s, StepBatch

VOCAB = 251
TOLERANCE = 0.05
_PRIME = np.uint64(0x9E3779B97F4A7C15)


def mixed(tokens: NDArray[np.int32], places: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A number for each token at its place; a context is known by their sum."""
    values = (tokens.astype(np.uint64) + np.uint64(1)) * _PRIME
    values ^= (places.astype(np.uint64) + np.uint64(1)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(32))


def next_token(context: np.uint64) -> int:
    """What follows a context."""
    return int((int(context) * 0xD6E8FEB86659FD93 >> 40) % VOCAB)


class SlotDevice:
    """An `Executable` whose tokens depend on every slot of their context."""

    vocab_size = VOCAB

    def __init__(self, limits: Limits) -> None:
        self.page_size, self.num_pages = limits.page_size, limits.num_pages
        self.max_tokens = limits.max_step_tokens
        self._tokens = np.zeros(self.num_pages * self.page_size, np.int32)
        self._logits = np.zeros((limits.max_running, VOCAB), np.float32)
        self._ids = np.zeros(0, np.int32)
        self.must_fail = False

    def step(self, batch: StepBatch) -> NDArray[np.float32]:
        if self.must_fail:
            self.must_fail = False
            raise OSError("the device failed")
        self._tokens[batch.slots] = batch.token_ids
        rows = np.searchsorted(batch.query_start, batch.logit_rows, side="right") - 1
        self._ids = np.array([self._next(batch, int(row)) for row in rows], np.int32)
        return self._logits[: len(rows)]

    def argmax(self, rows: Int32s) -> Int32s:
        return self._ids[rows]

    def run(self, entry: str, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        raise LookupError(entry)

    def close(self) -> None:
        pass

    def _next(self, batch: StepBatch, row: int) -> int:
        places = np.arange(batch.seq_lens[row])
        pages = batch.page_table[row, places // self.page_size]
        slots = pages * self.page_size + places % self.page_size
        return next_token(mixed(self._tokens[slots], places).sum(dtype=np.uint64))


@dataclass
class Sent:
    """A request and what has come back."""

    prompt: NDArray[np.int32]
    max_tokens: int
    abort_after: int | None
    """Tokens after which it is aborted; None: never, 0: while it waits."""
    tokens: list[int] = field(default_factory=list)
    reason: str = ""

    def expected(self) -> list[int]:
        """The whole answer, by the definition, without pages."""
        context = mixed(self.prompt, np.arange(len(self.prompt))).sum(dtype=np.uint64)
        found = []
        for place in range(len(self.prompt), len(self.prompt) + self.max_tokens):
            token = next_token(context)
            found.append(token)
            with np.errstate(over="ignore"):
                context += mixed(np.array([token], np.int32), np.array([place]))[0]
        return found


class Soak:
    """Drives one engine; `run` ends when all requests have ended."""

    def __init__(self, requests: int, seed: int, policy: Policy) -> None:
        self._rng = np.random.default_rng(seed)
        self._left = requests
        self._now = 0.0
        limits = Limits(
            page_size=16, num_pages=80, max_step_tokens=128, max_running=24, policy=policy,
            aging_steps=40, prefill_share=0.5, max_context=600,
        )  # fmt: skip
        self.device = SlotDevice(limits)
        self.engine = Engine(Executor(self.device, limits), limits, clock=lambda: self._now)
        self._roots = [self._rng.integers(0, VOCAB, 300, dtype=np.int32) for _ in range(12)]
        self._live: dict[str, Sent] = {}
        self._count = self.num_ended = 0
        self.reasons: dict[str, int] = {}
        self.memory: list[int] = []
        self.blocks: list[int] = []
        self._every = max(1, requests // 10)

    def run(self) -> None:
        """Serve everything, checking as it goes."""
        while self._left or self.engine.has_work:
            if self._left and len(self._live) < 60:
                for _ in range(min(self._left, int(self._rng.integers(1, 12)))):
                    self._send()
            self._disturb()
            self._now += 0.01
            try:
                outputs = self.engine.step()
            except OSError:
                continue
            for output in outputs:
                self._take(output)
            if self.engine.scheduler.num_steps % 64 == 0:
                self.engine.scheduler.check()
                assert not self.engine.scheduler.overdue(), "a request is overdue"
        self._check_end()

    def _send(self) -> None:
        rng, self._left = self._rng, self._left - 1
        root = self._roots[int(rng.integers(len(self._roots)))][: int(rng.integers(0, 300))]
        prompt = np.append(root, rng.integers(0, VOCAB, int(rng.integers(1, 60)))).astype(np.int32)
        most = int(rng.integers(1, 120))
        aborts = int(rng.integers(0, most)) if rng.random() < 0.25 else None
        sent = Sent(prompt, most, aborts)
        name = f"s{self._count}"
        self._count += 1
        self._live[name] = sent
        self.engine.add_request(
            name,
            prompt,
            SamplingParams(max_tokens=most),
            priority=int(rng.integers(-3, 4)),
            cache_salt="" if rng.random() < 0.8 else "other",
            deadline=self._now + 0.5 if rng.random() < 0.02 else None,
        )
        if aborts == 0:
            self._abort(name)

    def _disturb(self) -> None:
        draw = self._rng.random()
        if draw < 0.002:
            self.engine.flush_cache()
        elif draw < 0.01:
            self.device.must_fail = self.engine.scheduler.has_work

    def _take(self, output: Output) -> None:
        assert output.request_id in self._live, f"{output.request_id}: output after its end"
        sent = self._live[output.request_id]
        if output.token_id is not None:
            sent.tokens.append(output.token_id)
        if output.finish_reason is not None:
            self._end(output.request_id, output.finish_reason)
        elif sent.abort_after is not None and len(sent.tokens) == sent.abort_after:
            self._abort(output.request_id)

    def _abort(self, name: str) -> None:
        assert self.engine.abort(name) and not self.engine.abort(name)
        self._end(name, "abort")

    def _end(self, name: str, reason: str) -> None:
        sent = self._live.pop(name)
        expected = sent.expected()
        assert sent.tokens == expected[: len(sent.tokens)], f"{name}: wrong tokens"
        assert reason != "length" or len(sent.tokens) == sent.max_tokens, f"{name}: tokens lost"
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        self.num_ended += 1
        if self.num_ended % self._every == 0:
            gc.collect()
            self.memory.append(resident_bytes())
            self.blocks.append(sys.getallocatedblocks())

    def _check_end(self) -> None:
        engine = self.engine
        engine.scheduler.check()
        stats = engine.stats()
        assert not self._live and stats.pages_held == 0
        assert stats.pages_free + stats.pages_cached == stats.pages_total
        engine.flush_cache()
        assert engine.stats().pages_free == stats.pages_total, "a page is locked for ever"
        assert sum(self.reasons.values()) == self._count


def resident_bytes() -> int:
    """Memory of this process that is no file's: RssAnon and VmSwap."""
    text = Path("/proc/self/status").read_text()
    return sum(int(kb) * 1024 for kb in re.findall(r"(?:RssAnon|VmSwap):\s+(\d+)", text))


def growth(samples: list[int]) -> float:
    """By how much the last sample exceeds the first."""
    return samples[-1] / samples[0] - 1


def main() -> None:
    """Print what happened; status 1 if memory grew."""
    parser = argparse.ArgumentParser(description="serve and abort many requests")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policy", choices=("fcfs", "cache-aware"), default="fcfs")
    options = parser.parse_args()
    soak = Soak(options.requests, options.seed, options.policy)
    started = time.perf_counter()
    soak.run()
    stats = soak.engine.stats()
    seconds = time.perf_counter() - started
    print(f"{soak.num_ended} requests ended {soak.reasons} in {seconds:.0f} s, every token right")
    print(f"{stats.num_steps} steps, {stats.num_preemptions} preemptions, "
          f"{stats.cached_tokens / stats.prompt_tokens:.0%} of prompt tokens reused")  # fmt: skip
    print(f"memory {soak.memory[0] / 1e6:.1f} MB after the first tenth, {growth(soak.memory):+.1%} "
          f"at the end (at most {TOLERANCE:.0%})")  # fmt: skip
    raise SystemExit(int(growth(soak.memory) > TOLERANCE))


if __name__ == "__main__":
    main()

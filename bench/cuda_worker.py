"""One runtime on a GPU, asked for cells line by line: `bench/cuda_vs_vllm.py` starts it.

usage: python bench/cuda_worker.py sglk|vllm MODEL [--device cuda:0] [--memory-share 0.4]

Writes a line of JSON when the first token is there, then one for each cell named on standard input.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
# By path: vLLM's environment has no sglk.
from cuda_cells import (  # type: ignore[import-not-found]
    DecodeStep,
    Prompts,
    Serve,
    Served,
    all_cells,
    ids,
)
from processors import on_quietest  # type: ignore[import-not-found]

CONTEXT = 16384
CARD_BYTES = 140e9
RESERVE = 0.1
"""Of the card, besides the share that is asked for."""
FORBIDDEN = ("torch", "triton", "sympy", "transformers", "onnx")
"""Modules that serving an artifact never loads."""


def since_start() -> float:
    """Seconds since this process began."""
    fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    began = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return float(Path("/proc/uptime").read_text().split()[0]) - began


def memory_of(share: float) -> int:
    """Bytes for weights, keys and values and all else: as much as vLLM is given."""
    return int((share + RESERVE) * CARD_BYTES)


def open_sglk(model: str, device: str, share: float) -> tuple[Serve, int, Any]:
    """Our runtime: the engine itself, as the server drives it."""
    import sglk
    from sglk.runtime import SamplingParams
    from sglk.runtime.steps import StepRecord

    llm = sglk.load(
        model, device=device, memory=memory_of(share), max_running=256, max_step_tokens=8192,
        max_context=CONTEXT,
    )  # fmt: skip
    engine, count = llm.engine, 0
    steps: list[StepRecord] = []
    engine.on_step = steps.append

    def serve(prompts: Prompts, new: int, reuse: bool) -> Served:
        nonlocal count
        steps.clear()
        started = time.perf_counter()
        for prompt in prompts:
            count += 1
            params = SamplingParams(max_tokens=new, ignore_eos=True)
            salt = "" if reuse else f"alone {count}"
            engine.add_request(f"r{count}", prompt, params, cache_salt=salt)
        tokens = 0
        while engine.has_work:
            tokens += len(engine.step())
        if tokens != new * len(prompts):
            raise RuntimeError(f"expected {new * len(prompts)} tokens, got {tokens}")
        seconds = time.perf_counter() - started
        decoding = [s for s in steps if not s.load.prefill_tokens]
        return Served(
            seconds,
            tuple(DecodeStep(s.load.decode_rows, s.seconds - s.device_seconds) for s in decoding),
        )

    return serve, engine.vocab_size, llm


def open_vllm(model: str, device: str, share: float) -> tuple[Serve, int, Any]:
    """vLLM's offline engine, with dummy weights where the folder has none."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from vllm import LLM, SamplingParams

    has_weights = any(Path(model).glob("*.safetensors"))
    llm = LLM(
        model=model, load_format="auto" if has_weights else "dummy", skip_tokenizer_init=True,
        dtype="bfloat16", max_model_len=CONTEXT, gpu_memory_utilization=share + RESERVE,
        enable_prefix_caching=True, seed=0,
    )  # fmt: skip

    def serve(prompts: Prompts, new: int, reuse: bool) -> Served:
        params = SamplingParams(
            temperature=0, max_tokens=new, ignore_eos=True, detokenize=False,
            skip_reading_prefix_cache=not reuse,
        )  # fmt: skip
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        started = time.perf_counter()
        found = llm.generate(asked, params, use_tqdm=False)
        seconds = time.perf_counter() - started
        if any(len(each.outputs[0].token_ids) != new for each in found):
            raise RuntimeError(f"expected {new} tokens of each request")
        return Served(seconds)

    return serve, int(llm.model_config.get_vocab_size()), llm


OPENERS = {"sglk": open_sglk, "vllm": open_vllm}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runtime", choices=OPENERS)
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--memory-share", type=float, default=0.4)
    options = parser.parse_args()
    serve, vocab, _owner = OPENERS[options.runtime](
        options.model, options.device, options.memory_share
    )
    rng = random.Random(time.time_ns())
    serve([ids(rng, 16, vocab)], 1, True)
    loaded = [name for name in FORBIDDEN if name in sys.modules]
    say({"first_token_s": since_start(), "forbidden": loaded if options.runtime == "sglk" else []})
    cells = {cell.name: cell for cell in all_cells()}
    for line in sys.stdin:
        cell = cells[line.strip()]
        values = []
        for _ in range(cell.runs):
            with on_quietest() if cell.needs_steps else contextlib.nullcontext():
                values.append(cell.measure(serve, rng, vocab))
        say({"cell": cell.name, "value": min(values)})
    return 0


def say(record: dict[str, Any]) -> None:
    """A record that is told apart from what libraries print."""
    print("@@" + json.dumps(record), flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""How compile time and memory grow with layers: `python bench/compile_layers.py`.

One shape (Llama 3.1 8B's unless ``--config`` names another) in several depths, from its config
alone, every depth in a process of its own. Seconds are the processor's, all child processes
included, so that a busy machine changes them little; wall time stands beside. Equal layers are
lowered once if the number of kernels does not grow. With ``--cold`` every depth starts without
compiled kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
LIMIT_LAYERS, LIMIT_SECONDS, LIMIT_BYTES = 80, 60.0, 2e9
"""What is asked for: this depth captured and lowered in so much time and memory."""
FRONT = ("capture", "passes", "lower")
"""The stages that see every layer; kernels are compiled once for equal ones."""


def measure(config: Path, target: str, output: Path) -> dict[str, Any]:
    """One compile in this process: seconds by stage, memory, kernels, calls of the longest plan."""
    import sglk
    from sglk.targets.artifact import Artifact

    start = time.perf_counter()
    compiled = sglk.compile(config, target=target, output=output, weights="dummy")
    wall = time.perf_counter() - start
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    with Artifact.open(output) as artifact:
        program = artifact.program("step")
        kernels = len({call.kernel for bucket in program.buckets for call in bucket.calls})
        calls = max(len(bucket.calls) for bucket in program.buckets)
    return {
        "wall": wall,
        "cpu": own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime,
        "peak_bytes": own.ru_maxrss * 1024,
        "stages": compiled.report["seconds"],
        "kernels": kernels,
        "calls": calls,
    }


def in_process(config: dict[str, Any], layers: int, target: str, cache: str) -> dict[str, Any]:
    """`measure` in a new interpreter; ``cache`` is its kernel cache, empty for the user's."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps({**config, "num_hidden_layers": layers}))
        command = [sys.executable, __file__, "--one", str(file), "--target", target]
        settings = {**os.environ, **({"SGLK_CACHE": cache} if cache else {})}
        done = subprocess.run(command, env=settings, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def row(layers: int, result: dict[str, Any]) -> str:
    """One line of the table."""
    stages = result["stages"]
    front = sum(stages.get(name, 0.0) for name in FRONT)
    cells = [f"{layers:6}", *(f"{stages.get(name, 0.0):8.1f}" for name in FRONT), f"{front:8.1f}"]
    cells += [
        f"{stages.get('kernels', 0.0):8.1f}",
        f"{result['wall']:8.1f}",
        f"{result['cpu']:8.1f}",
    ]
    cells += [
        f"{result['peak_bytes'] / 1e6:8.0f}",
        f"{result['kernels']:8}",
        f"{result['calls']:8}",
    ]
    return " ".join(cells)


HEAD = " ".join(
    f"{name:>8}"
    for name in (
        *("capture", "passes", "lower", "in all", "kernels", "wall"),
        *("cpu (s)", "RSS (MB)", "kernels", "calls"),
    )
)


def main() -> int:
    """Print the table; 1 if the deepest misses what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 8, 32, 80])
    parser.add_argument("--config", type=Path, help="config.json of another shape")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--cold", action="store_true", help="without compiled kernels")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        with tempfile.TemporaryDirectory() as folder:
            result = measure(options.one, options.target, Path(folder) / "model.sglk")
        print(json.dumps(result))
        return 0
    config = json.loads(options.config.read_text()) if options.config else LLAMA_8B
    print(f"layers {HEAD}", flush=True)
    results: dict[int, dict[str, Any]] = {}
    for layers in options.layers:
        with tempfile.TemporaryDirectory() as folder:
            cache = folder if options.cold else ""
            results[layers] = in_process(config, layers, options.target, cache)
        print(row(layers, results[layers]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return verdict(results)


def verdict(results: dict[int, dict[str, Any]]) -> int:
    """Says whether the demand holds; 1 if it does not, 0 too where it was not measured."""
    if LIMIT_LAYERS not in results:
        return 0
    deep = results[LIMIT_LAYERS]
    seconds = sum(deep["stages"].get(name, 0.0) for name in FRONT)
    holds = seconds < LIMIT_SECONDS and deep["peak_bytes"] < LIMIT_BYTES
    print(
        f"{LIMIT_LAYERS} layers captured and lowered in {seconds:.1f} s (asked: "
        f"{LIMIT_SECONDS:.0f}) with {deep['peak_bytes'] / 1e9:.2f} GB (asked: "
        f"{LIMIT_BYTES / 1e9:.0f}): {'holds' if holds else 'missed'}"
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())

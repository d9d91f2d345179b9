"""TFLOP/s of the attention of a prompt, in the model, causal: half of what a square would take.

usage: python bench/cuda_attention.py llama8b.sglk [--tokens 8192] [--device cuda:0] [--least 450]

Runs the prompt as one step and times its launches one by one; 4 operations for each pair of a query
and a key that it sees, head and column. Ends with status 1 below ``--least``.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from typing import Any, cast

from sglk.cli.step_profile import KernelTime, pages_needed, profile_steps
from sglk.targets.artifact import Artifact
from sglk.targets.registry import open_device

OP = "paged_attention"


def rates(times: list[KernelTime], tokens: int, width: int) -> list[float]:
    """TFLOP/s of each kernel of attention; ``width`` is that of all heads of a query.

    >>> time = KernelTime(OP, "attention.prompt", 2, 0.002)
    >>> rates([time, KernelTime("linear", "matmul", 1, 1.0)], 999, 1000)
    [1.998]
    """
    pairs = tokens * (tokens + 1) // 2
    return [4 * pairs * width * t.calls / t.seconds / 1e12 for t in times if t.op == OP]


def measure(path: str, device: str, tokens: int, rounds: int) -> list[float]:
    """The rate in each round, of whichever kernel of attention took longest."""
    with Artifact.open(path) as artifact:
        model = cast("dict[str, Any]", artifact.manifest["model"])
        target = cast("dict[str, Any]", artifact.manifest["target"])
        pages = pages_needed(target["page_size"], tokens, 1, 1)
        loaded = open_device(device).load(artifact, num_pages=pages, max_tokens=tokens)
        with contextlib.closing(loaded) as executable:
            profiles = [profile_steps(executable, tokens, 1, 1)[0] for _ in range(rounds)]
    width = model["num_heads"] * model["head_dim"]
    return [min(rates(profile.kernels, tokens, width)) for profile in profiles]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--least", type=float, default=0.0)
    options = parser.parse_args()
    found = measure(options.artifact, options.device, options.tokens, options.rounds)
    rate = statistics.median(found)
    shown = " ".join(f"{value:.0f}" for value in found)
    print(f"attention of {options.tokens} tokens: {rate:.0f} TFLOP/s (rounds: {shown})")
    return 0 if rate >= options.least else 1


if __name__ == "__main__":
    sys.exit(main())

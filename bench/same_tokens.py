"""Does an artifact give the same tokens alone and in a batch, and from cached keys and values?

usage: python bench/same_tokens.py ARTIFACT.sglk --reference FILE [--device cuda:0] [--new 64]

Prompts come from a file of `bench/fidelity.py --reference`, so no model and no compiler is needed.
Greedy answers of each prompt alone without a prefix cache, of all at once in two batch sizes, and
of all at once again, now from the cache, must have equal ids. Artifacts for CUDA promise that with
``--batch-invariant``; others may differ where two tokens are about as likely. Status 1 if one does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import sglk
from sglk.bench.fidelity_file import read_reference
from sglk.runtime.llm import LLM

SOME = 5
"""Requests of the smaller batch."""
Ids = Sequence[int]


def answers(llm: LLM, prompts: Sequence[Ids], new: int) -> list[tuple[int, ...]]:
    """Greedy ids of each, computed side by side."""
    found = llm.generate(prompts, max_tokens=new, ignore_eos=True)
    return [tuple(answer.token_ids) for answer in found]


def ways(path: str, device: str | None, prompts: list[Ids], new: int) -> dict[str, list[Ids]]:
    """The answers in each way of computing them; the first is alone and uncached."""
    found: dict[str, list[Ids]] = {"alone": [], f"in batches of {SOME}": []}
    with sglk.load(path, device=device, prefix_cache=False) as llm:
        for prompt in prompts:
            found["alone"] += answers(llm, [prompt], new)
        for at in range(0, len(prompts), SOME):
            found[f"in batches of {SOME}"] += answers(llm, prompts[at : at + SOME], new)
    with sglk.load(path, device=device) as llm:
        found["in one batch"] = [*answers(llm, prompts, new)]
        before = llm.engine.stats().cached_tokens
        found["in one batch, cached"] = [*answers(llm, prompts, new)]
        cached = llm.engine.stats().cached_tokens - before
    print(f"{cached} of {sum(map(len, prompts))} prompt tokens came from the cache")
    if not cached:
        raise SystemExit("expected some prompt tokens from the cache, got none")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact")
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--device")
    parser.add_argument("--new", type=int, default=64)
    options = parser.parse_args()
    prompts = [prompt.ids for prompt in read_reference(options.reference)[0]]
    found = ways(options.artifact, options.device, list(prompts), options.new)
    alone, different = found["alone"], 0
    for name, others in found.items():
        same = sum(a == b for a, b in zip(alone, others, strict=True))
        different += len(alone) - same
        print(f"{name}: {same} of {len(alone)} answers as alone")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())

"""SmolLM2 itself, its Q4_1 weights kept: transformers' tokens and logits, whatever runs beside.

`smollm2_reference.json` is what transformers computes in fp32 on the dequantized weights, made by

    python bench/fidelity.py MODEL.gguf --prompts 6 --new 16 --only keep --save FILE
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sglk
from sglk.runtime import LLM, Generation

pytestmark = pytest.mark.slow
REFERENCE = json.loads(Path(__file__).with_name("smollm2_reference.json").read_text())
ERROR = 1e-2
"""Relative L2 error of the logits of a prompt's last token."""
PAGE_BYTES = 30 * 2 * 3 * 64 * 32 * 2
"""Layers, K and V, KV heads, head dim, tokens of a page, bytes of f16."""


@pytest.fixture
def artifact(smollm2_artifact: Path) -> Path:
    return smollm2_artifact


def answers(llm: LLM, prompts: list[list[int]], new: int = 16) -> list[Generation]:
    found = llm.generate(prompts, max_tokens=new, ignore_eos=True, logprobs=2)
    assert isinstance(found, list)
    return found


def test_greedy_ids_equal_those_of_transformers(artifact: Path) -> None:
    with sglk.load(artifact) as llm:
        found = answers(llm, [each["ids"] for each in REFERENCE])
        for answer, wanted in zip(found, REFERENCE, strict=True):
            assert answer.token_ids == wanted["greedy"], wanted["prompt"]


def test_logits_are_within_the_bound(artifact: Path, lab: Any) -> None:
    with lab.stepping(artifact) as stepper:
        for wanted in REFERENCE:
            ids, parts = wanted["ids"], range(0, len(wanted["ids"]), lab.MAX_TOKENS)
            for start in parts:
                chunk = (wanted["prompt"], ids[start : start + lab.MAX_TOKENS], start)
                (logits,) = stepper.step(chunk)
            found, reference = logits[-1][wanted["columns"]], np.array(wanted["logits"])
            error = np.linalg.norm(found - reference) / np.linalg.norm(reference)
            assert error <= ERROR, f"{wanted['prompt']}: {error:.1e}"


def test_text_of_a_chat(artifact: Path) -> None:
    with sglk.load(artifact) as llm:
        answer = llm.chat([{"role": "user", "content": "What is the capital of France?"}])
        assert "Paris" in answer.text
        assert answer.finish_reason == "stop"


def test_batch_chunks_cache_preemption_and_threads_change_nothing(artifact: Path) -> None:
    """Twelve prompts of 26 to 37 tokens, each alone at first; then in every other way."""
    with sglk.load(artifact, prefix_cache=False) as llm:
        text = "The harbour was quiet in the early morning; boats lay side by side. " * 3
        ids = llm.tokenizer.encode(text, context=999) if llm.tokenizer else []
        prompts = [ids[2 * n : 3 * n + 26] for n in range(12)]
        alone = [answers(llm, [prompt], 8)[0] for prompt in prompts]
    for options in (
        {"max_step_tokens": 512},
        {"max_step_tokens": 7},
        {"max_step_tokens": 32, "num_threads": 1},
        {"kv_memory": 6 * PAGE_BYTES},
    ):
        with sglk.load(artifact, **options) as llm:
            for state in ("cold", "warm"):
                found = answers(llm, prompts, 8)
                for number, (a, b) in enumerate(zip(found, alone, strict=True)):
                    assert a.token_ids == b.token_ids, f"{options}, {state}, prompt {number}"
                    assert a.logprobs == b.logprobs, f"{options}, {state}, prompt {number}"
            if "kv_memory" in options:
                assert llm.engine.stats().num_preemptions > 0

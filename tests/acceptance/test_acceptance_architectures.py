"""Random models of many architectures in fp32: transformers' logits in every kind of step."""

from __future__ import annotations

from typing import Any

import pytest
from sglk.errors import SglkError
from sglk.runtime.selftest import relative_error

MODEL_TYPES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "granite",
    "smollm3",
    "olmo2",
    "starcoder2",
    "stablelm",
    "cohere",
    "glm4",
    "phi",
    "gpt2",
    "mixtral",
    "bloom",
)
ERROR = 1e-4
"""Relative L2 error of the worst row."""


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_logits_equal_those_of_transformers(lab: Any, model_type: str) -> None:
    """1, 17 and 130 tokens: alone, chunked, in a mixed batch, resumed, and decoded side by side."""
    model, path = lab.compile(model_type)
    ids = {name: lab.random_ids(n, n) for name, n in (("a", 1), ("b", 17), ("c", 130))}
    wanted = {name: lab.logits_of(model, each) for name, each in ids.items()}
    a, b, c = ids["a"], ids["b"], ids["c"]
    steps = (
        [("c", c[:70], 0)],
        [("a", a, 0), ("c", c[70:100], 70), ("b", b[:9], 0)],
        [("b", b[9:], 9)],
        [("c", c[100:129], 100)],
        [("c", c[129:], 129)],
        [("b", b[16:], 16), ("a", a, 0), ("c", c[129:], 129)],
    )
    with lab.stepping(path) as stepper:
        for number, chunks in enumerate(steps):
            found = stepper.step(*chunks)
            for (name, tokens, start), logits in zip(chunks, found, strict=True):
                error = relative_error(logits, wanted[name][start : start + len(tokens)])
                assert error <= ERROR, f"step {number}, sequence {name}: error {error:.1e}"


def test_what_cannot_run_is_refused_in_a_sentence(lab: Any) -> None:
    with pytest.raises(SglkError, match=r"attention mask: .*chunked"):
        lab.compile("llama4_text")


@pytest.mark.parametrize(("kv_dtype", "bound"), [("f32", ERROR), ("f16", 5e-3)])
def test_bf16_weights_and_the_cache_are_the_only_loss(
    lab: Any, kv_dtype: str, bound: float
) -> None:
    model, path = lab.compile("llama", dtype="bf16", kv_dtype=kv_dtype)
    ids = lab.random_ids(60, 7)
    with lab.stepping(path) as stepper:
        (logits,) = stepper.step(("a", ids, 0))
    assert relative_error(logits, lab.logits_of(lab.rounded(model), ids)) < bound
    assert relative_error(logits, lab.logits_of(model, ids)) > ERROR

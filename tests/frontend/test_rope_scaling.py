"""Every kind of rope scaling gives transformers' logits, before and beyond the original context."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sglk.frontend.capture import capture_causal_lm
from sglk.frontend.hf import context_length
from sglk.frontend.rope_length import fixed_frequencies
from sglk.ir.interpret import interpret
from sglk.ir.rewrite import clone
from sglk.ir.testing import assert_close
from transformers import AutoConfig, AutoModelForCausalLM

ORIGINAL, CONTEXT = 16, 64
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
}
FACTORS = {
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.5 * i for i in range(8)],
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "llama3": LLAMA3 | {"original_max_position_embeddings": ORIGINAL},
    "dynamic": {"factor": 4.0},
    "longrope": FACTORS | {"factor": 4.0, "original_max_position_embeddings": ORIGINAL},
}
EXACT = {"dynamic": ORIGINAL, "longrope": ORIGINAL}
"""Contexts of those whose frequencies depend on the length; dynamic's is the config's own."""


def config_of(kind: str, model_type: str = "llama") -> Any:
    rope = {"rope_type": kind, "rope_theta": 1e4, **SCALINGS[kind]}
    limit = {"max_position_embeddings": ORIGINAL} if kind == "dynamic" else {}
    if kind == "longrope":
        limit["original_max_position_embeddings"] = ORIGINAL
    return AutoConfig.for_model(model_type, **SIZES | limit, rope_parameters=rope)


def random_model(config: Any) -> Any:
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(noise * 0.3 if parameter.dim() > 1 else parameter + noise * 0.2)
    return model.eval()


@pytest.mark.parametrize("kind", SCALINGS)
def test_logits_are_those_of_transformers_at_every_length(kind: str) -> None:
    config = config_of(kind)
    graph, model = capture_causal_lm(config), random_model(config)
    weights = model.state_dict()
    assert context_length(config) == EXACT.get(kind, CONTEXT)
    for count in (9, ORIGINAL, *(() if kind in EXACT else (40,))):
        ids = torch.randint(3, 96, (1, count))
        with torch.no_grad():
            wanted = model(input_ids=ids, use_cache=False).logits.numpy()
        arrays = {
            "token_ids": ids.numpy().astype(np.int32),
            "position_ids": np.arange(count, dtype=np.int32)[None],
        }
        given = clone(graph, {"tokens": count})
        (logits,) = interpret(given, arrays, lambda n: weights[n].numpy())
        assert_close(logits, wanted, 1e-5, f"{kind} at {count}")


def test_a_longer_sequence_would_have_other_frequencies() -> None:
    """Why the context ends there: the first tokens' logits change when more follow."""
    model = random_model(config_of("longrope"))
    ids = torch.randint(3, 96, (1, 40))
    with torch.no_grad():
        longer = model(input_ids=ids, use_cache=False).logits[0, :9].numpy()
        alone = model(input_ids=ids[:, :9], use_cache=False).logits[0].numpy()
        with fixed_frequencies(model):
            fixed = model(input_ids=ids, use_cache=False).logits[0, :9].numpy()
    assert np.abs(longer - alone).max() > 1e-2
    np.testing.assert_allclose(fixed, alone, atol=1e-4)
    assert {getattr(m, "rope_type", "longrope") for m in model.modules()} == {"longrope"}

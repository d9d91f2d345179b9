"""Model types by rule, one for each mechanism: the step graph gives transformers' logits.

The board (`bench/coverage_hf.py`) has every type; these run its cheap tier, without kernels. More
types, whose kernels run too, are in `test_acceptance_architectures.py` and in the tests of the
frontend.
"""

from __future__ import annotations

import pytest
from sglk.bench.coverage_case import check
from sglk.bench.tiny_config import causal_types, tiny_config

RIGHT = {
    "apertus": "an activation of its own",
    "bart": "a decoder of an encoder-decoder, learned positions from an offset",
    "bert": "an encoder's layers as a decoder, token types by position",
    "bloom": "ALiBi, one matrix for q, k and v by head",
    "camembert": "positions that skip padding",
    "codegen": "rotation of pairs, one matrix for q, k and v in parts",
    "ctrl": "attention and masks of its own, positions by sines",
    "deepseek_v3": "latent attention, groups of experts",
    "deepseek_v32": "an indexer that ranks keys, up to the context where it takes all",
    "exaone4": "layers without positions, norms after",
    "falcon": "one key head for all, layers side by side",
    "gemma4_text": "heads of two sizes, keys shared by layers",
    "glm4_moe": "rotation of a part, sigmoid routing",
    "gpt_bigcode": "one key head, learned positions",
    "gpt_neo": "a window from a table of pairs",
    "gpt_neox": "rotation of a part, layers side by side",
    "gpt_oss": "sinks, experts with biases",
    "gptj": "rotation of pairs",
    "hunyuan_v1_dense": "norms of heads after the rotation",
    "jamba": "a selective scan beside attention and experts",
    "lfm2": "short convolutions beside attention",
    "mamba": "no attention at all",
    "mamba2": "a state for each head, by scalar decays",
    "nemotron": "norms with weights around one, squared activations",
    "olmoe": "norms across heads, many experts",
    "opt": "positions from an offset",
    "qwen3_next": "a gated delta rule beside attention and experts",
    "recurrent_gemma": "a real-gated recurrence, a window",
    "xglm": "attention spelled out, positions by sines",
}
"""What each type shows that others do not."""


@pytest.mark.parametrize("model_type", RIGHT)
def test_type_gives_the_logits_of_transformers(model_type: str) -> None:
    row = check(model_type)
    assert (row.status, row.reason) == ("pass", "")


def test_loops_that_are_no_known_scan_are_refused_by_name() -> None:
    row = check("xlstm")
    assert row.status == "refused"
    assert "loops over tokens or chunks that are no scan known here" in row.reason
    assert "code that" in row.reason and "TORCH_LOGS" not in row.reason


def test_code_that_asks_for_values_is_refused_by_what_it_asks() -> None:
    row = check("dbrx")
    assert row.status == "refused"
    assert "Eq(u0, 0)" in row.reason and "asks for values while it runs" in row.reason


def test_tiny_configurations_keep_what_matters() -> None:
    config = tiny_config("gemma2")
    assert config.layer_types == ["sliding_attention", "full_attention"]
    assert (config.hidden_size, config.sliding_window, config.vocab_size) == (64, 40, 128)
    assert tiny_config("bert").is_decoder
    dory = tiny_config("dory")
    assert (dory.n_input_layers, dory.n_recurrent_layers, dory.n_output_layers) == (1, 1, 1)
    assert dory.layer_types == ["sliding_attention", "sliding_attention", "full_attention"]
    assert len(causal_types()) > 190

"""The table of compile time by layers, on a small shape."""

import pytest
from sglk.bench.compile_layers import LLAMA_8B, in_process, row, verdict

SMALL = {
    **LLAMA_8B,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
}


def test_equal_layers_share_their_kernels() -> None:
    two, four = (in_process(SMALL, layers, "cpu", "") for layers in (2, 4))
    assert two["kernels"] == four["kernels"]
    per_layer = (four["calls"] - two["calls"]) // 2
    assert four["calls"] == two["calls"] + 2 * per_layer and per_layer > 0
    assert len(row(2, two).split()) == 11


def test_the_verdict_looks_at_time_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    result = {"stages": {"capture": 20.0, "passes": 2.0, "lower": 7.0}, "peak_bytes": 6e8}
    assert verdict({80: result}) == 0
    assert verdict({80: {**result, "peak_bytes": 3e9}}) == 1
    assert verdict({80: {**result, "stages": {"capture": 61.0}}}) == 1
    assert "missed" in capsys.readouterr().out

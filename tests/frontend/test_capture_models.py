"""Tiny random models of many architectures: the captured graph gives transformers' f32 logits."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sglk.errors import FrontendError
from sglk.frontend import load_model
from sglk.frontend.attention import MaskKind, mask_kind
from sglk.frontend.capture import capture_causal_lm
from sglk.frontend.model_files import open_model
from sglk.ir.graph import Graph
from sglk.ir.interpret import interpret
from sglk.ir.ops.attention import Attention
from sglk.ir.ops.linear import dense
from sglk.ir.parser import parse_graph
from sglk.ir.rewrite import clone
from sglk.ir.testing import assert_close
from sglk.ir.verify import verify
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, masking_utils

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WIDE = {"head_dim": 16}
TWO = {"num_hidden_layers": 2}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
MLA = {
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": TWO | {"tie_word_embeddings": True},
    "llama-3-rope": {"rope_parameters": LLAMA3_ROPE},
    "llama-yarn": {"rope_parameters": YARN},
    "mistral": {"sliding_window": 4},
    "qwen2": TWO | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "qwen3": WIDE,
    "gemma": WIDE,
    "gemma2": WIDE | TWO | {"sliding_window": 4, "query_pre_attn_scalar": 16},
    "gemma3_text": WIDE
    | TWO
    | {
        "sliding_window": 4,
        "query_pre_attn_scalar": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "phi3": {},
    "granite": {
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.7,
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.0,
    },
    "olmo2": {},
    "smollm3": TWO | {"no_rope_layers": [1, 0]},
    "starcoder2": {},
    "stablelm": {},
    "cohere": {},
    "glm4": WIDE,
    "gpt2": {"n_positions": 64},
    "deepseek_v3": MLA,
}
"""By model type, up to the first "-"."""


def config_of(name: str) -> Any:
    return AutoConfig.for_model(name.split("-")[0], **SIZES | MODELS[name])


def random_model(config: Any) -> PreTrainedModel:
    """Weights large enough that every path matters; norms and biases random too."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(noise * 0.3 if parameter.dim() > 1 else parameter + noise * 0.2)
    return model.eval()  # type: ignore[no-any-return, no-untyped-call]


@functools.cache
def captured_graph(name: str) -> Graph:
    return capture_causal_lm(config_of(name))


def run(graph: Graph, ids: torch.Tensor, read: Any) -> np.ndarray:
    count = ids.shape[1]
    arrays = {
        "token_ids": ids.numpy().astype(np.int32),
        "position_ids": np.arange(count, dtype=np.int32)[None],
    }
    (logits,) = interpret(clone(graph, {"tokens": count}), arrays, read)
    return np.asarray(logits)


@pytest.mark.parametrize("name", MODELS)
def test_captured_graph_gives_the_logits_of_transformers(name: str) -> None:
    model = random_model(config_of(name))
    graph = captured_graph(name)
    verify(graph)
    assert [str(v) for v in graph.inputs] == [
        "%token_ids: i32[1, tokens]",
        "%position_ids: i32[1, tokens]",
    ]
    weights = model.state_dict()
    for count in (1, 9):
        ids = torch.randint(3, 96, (1, count))
        with torch.no_grad():
            wanted = model(input_ids=ids, use_cache=False).logits.numpy()
        assert_close(run(graph, ids, lambda n: weights[n].numpy()), wanted, 1e-5, name)


def attention_ops(name: str) -> list[Attention]:
    graph = captured_graph(name)
    return [node.op for node in graph.nodes if isinstance(node.op, Attention)]


def test_attention_arrives_as_one_op_with_the_kind_of_its_mask() -> None:
    sliding, full = attention_ops("gemma2")
    assert sliding == Attention(scale=0.25, window=4, softcap=50.0)
    assert full == Attention(scale=0.25, softcap=50.0)


def test_tied_parameters_are_one() -> None:
    graph = captured_graph("llama")
    names = [v.name for v in graph.params]
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names


def test_captured_graph_reads_back_from_its_text() -> None:
    text = captured_graph("llama-3-rope").as_text()
    assert parse_graph(text).as_text() == text


def test_nodes_know_their_line_of_the_model() -> None:
    graph = captured_graph("llama")
    sources = {node.source.split(":")[0] for node in graph.nodes}
    assert sources == {"modeling_llama.py", "activations.py"}


def test_a_70b_config_takes_no_memory_for_weights() -> None:
    """80 billion parameters in two layers' time: an allocation would not fit any machine."""
    config = AutoConfig.for_model(
        "llama",
        vocab_size=128256,
        hidden_size=1 << 16,
        intermediate_size=1 << 18,
        num_hidden_layers=1,
        num_attention_heads=512,
        num_key_value_heads=8,
    )
    graph = capture_causal_lm(config)
    assert sum(int(v.type.size) for v in graph.params) > 70e9


def test_progress_tells_every_layer() -> None:
    calls: list[tuple[str, int, int]] = []
    capture_causal_lm(config_of("qwen2"), lambda *call: calls.append(call))
    assert [c for c in calls if c[0] == "capture"] == [("capture", 1, 2), ("capture", 2, 2)]
    assert {c[0] for c in calls} == {"build", "capture", "convert"}


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        (
            "reformer",
            {},
            r"reformer: expected a model that can be captured",
        ),
        ("llama4_text", WIDE | {"attention_chunk_size": 4}, r"attention mask: .*chunked"),
    ],
)
def test_what_cannot_be_captured_is_refused_in_a_sentence(
    model_type: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(FrontendError, match=message):
        capture_causal_lm(AutoConfig.for_model(model_type, **SIZES | changes))


# Folders and files -------------------------------------------------------------------------


def test_folder_is_loaded_with_weights_and_facts(tmp_path: Path) -> None:
    model = random_model(config_of("qwen3"))
    model.save_pretrained(tmp_path)
    captured = load_model(tmp_path)
    ids = torch.randint(3, 96, (1, 6))
    with torch.no_grad():
        wanted = model(input_ids=ids).logits.numpy()
    assert_close(run(captured.graph, ids, captured.weights.read), wanted, 1e-5)
    info = captured.info
    assert (info.architecture, info.vocab_size, info.context_length) == ("qwen3", 96, 64)
    assert (info.num_layers, info.hidden_size) == (1, 32)
    assert (info.num_heads, info.num_kv_heads, info.head_dim) == (4, 2, 16)
    assert captured.tokenizer is None


def test_weights_that_do_not_fit_the_config_are_refused(tmp_path: Path) -> None:
    model = random_model(config_of("qwen3"))
    model.config.intermediate_size = 40
    model.save_pretrained(tmp_path)
    message = r"gate_proj\.weight has shape \[48, 32\] instead of \[40, 32\]"
    with pytest.raises(FrontendError, match=message):
        load_model(tmp_path)


def test_model_that_is_no_causal_lm_is_refused(tmp_path: Path) -> None:
    AutoConfig.for_model("t5").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    with pytest.raises(FrontendError, match="expected a causal language model, got t5"):
        load_model(tmp_path)


def test_module_of_transformers_needs_no_example() -> None:
    model = random_model(config_of("llama"))
    captured = load_model(model)
    ids = torch.randint(3, 96, (1, 6))
    with torch.no_grad():
        wanted = model(input_ids=ids).logits.numpy()
    assert_close(run(captured.graph, ids, captured.weights.read), wanted, 1e-5)
    assert captured.weights.info("lm_head.weight").alias_of == "model.embed_tokens.weight"


@pytest.mark.slow
def test_smollm2_gives_the_logits_of_transformers(smollm2_gguf: Path) -> None:
    captured = load_model(smollm2_gguf)
    config = open_model(smollm2_gguf).config
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    values = {n: torch.tensor(dense(captured.weights.read(n))) for n in captured.weights.names()}
    model.load_state_dict(values)
    ids = torch.tensor([[1, 504, 3575, 282, 4649, 314]])
    with torch.no_grad():
        wanted = model.eval()(input_ids=ids).logits.numpy()
    assert_close(run(captured.graph, ids, captured.weights.read), wanted, 1e-4)


def _prefix(b: Any, h: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return (k <= q) | (k < 4)


def test_kind_of_a_mask_is_found_from_its_values() -> None:
    causal, window = masking_utils.causal_mask_function, 4096
    sliding = masking_utils.sliding_window_causal_mask_function(window)
    both = masking_utils.bidirectional_mask_function
    assert mask_kind(mask_function=causal) == MaskKind(causal=True)
    assert mask_kind(mask_function=causal, local_size=window) == MaskKind(causal=True)
    assert mask_kind(mask_function=sliding, local_size=window) == MaskKind(True, window)
    assert mask_kind(mask_function=both) == MaskKind(causal=False)


def test_mask_of_another_kind_is_refused() -> None:
    off_by_one = masking_utils.sliding_window_causal_mask_function(4095)
    for function in (off_by_one, _prefix):
        with pytest.raises(FrontendError, match="expected causal, sliding-window or full"):
            mask_kind(mask_function=function, local_size=4096)


def test_checkpoint_that_keeps_experts_one_by_one(tmp_path: Path) -> None:
    """As published: w1, w2, w3 of each expert; the model has two tensors for all experts."""
    config = AutoConfig.for_model("mixtral", **SIZES, num_local_experts=4)
    model = random_model(config)
    model.save_pretrained(tmp_path)
    captured = load_model(tmp_path)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    assert name not in open_model(tmp_path).source.names()
    assert captured.weights.info(name).shape == (4, 96, 32)
    np.testing.assert_array_equal(captured.weights.read(name), model.state_dict()[name].numpy())
    ids = torch.randint(3, 96, (1, 6))
    with torch.no_grad():
        wanted = model(input_ids=ids).logits.numpy()
    assert_close(run(captured.graph, ids, captured.weights.read), wanted, 1e-5)

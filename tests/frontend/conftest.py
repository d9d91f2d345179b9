"""Tiny models as GGUF files, written the way llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import quantize
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.convert_slow_tokenizer import bytes_to_unicode

Arrays = dict[str, NDArray[np.float32]]
SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": None,
}
BYTES = list(bytes_to_unicode().values())  # type: ignore[no-untyped-call]
TOKENS = [*BYTES, "<s>", "</s>", "ab", "abc", "<think>"]
TYPES = [1] * 256 + [3, 3, 1, 1, 4]
MERGES = ["a b", "ab c"]


def _tiny_model(model_type: str, **changes: Any) -> PreTrainedModel:
    """A random model; norm weights are random too, so that a forgotten offset shows."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **SIZES | changes)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.eval()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        scale = 0.2 if "norm" in name else 0.05
        torch.nn.init.normal_(parameter, 0.0, scale)
    return model


def _add_metadata(writer: gguf.GGUFWriter, config: Any) -> None:
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    head_dim = getattr(config, "head_dim", None)
    if head_dim and head_dim != config.hidden_size // config.num_attention_heads:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
        if original := rope.get("original_max_position_embeddings"):
            writer.add_rope_scaling_orig_ctx_len(original)
    if "gemma" in config.model_type and getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types(TYPES)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_chat_template("{{ messages[0].content }}")


def _interleave(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """convert_hf_to_gguf.py, LlamaModel.permute."""
    shape = (heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return weight.reshape(shape).swapaxes(1, 2).reshape(weight.shape)


def _converted(arch: str, config: Any, name: str, array: NDArray[np.float32]) -> Any:
    if arch == "llama" and "q_proj" in name:
        return _interleave(array, config.num_attention_heads)
    if arch == "llama" and "k_proj" in name:
        return _interleave(array, config.num_key_value_heads)
    if arch.startswith("gemma") and name.endswith("norm.weight"):
        return array + np.float32(1)
    return array


def _stored(array: NDArray[np.float32], kind: gguf.GGMLQuantizationType) -> NDArray[Any]:
    """The bytes of `array`; random ones for the K types, which the package cannot quantize to."""
    if not kind.name.endswith("_K"):
        return quantize(array, kind)
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    shape = (array.shape[0], array.shape[1] // elements * size)
    return np.random.default_rng(0).integers(0, 100, shape, np.uint8)  # so that scales are finite


def _write_model(
    path: Path,
    model: PreTrainedModel,
    arch: str,
    kind: str = "F32",
    extra: Arrays | None = None,
    tokenizer: bool = True,
) -> Path:
    """Write `model` as GGUF; matrices of `kind`, vectors in f32."""
    config = model.config
    writer = gguf.GGUFWriter(path, arch)
    _add_metadata(writer, config)
    if tokenizer:
        _add_tokenizer(writer)
    arch_id = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(arch_id, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = _converted(arch, config, name, tensor.numpy())
        as_kind = gguf.GGMLQuantizationType[kind if array.ndim == 2 else "F32"]
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        writer.add_tensor(stored, _stored(array, as_kind), raw_dtype=as_kind)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., PreTrainedModel]:
    """``tiny_model("llama", **config changes)``: a random transformers model."""
    return _tiny_model


@pytest.fixture(scope="session")
def write_gguf() -> Callable[..., Path]:
    """``write_gguf(path, model, arch, kind="F32")``: the model as a GGUF file."""
    return _write_model


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of two layers with Q8_0 matrices and a tokenizer, about 150 KB."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    model = _tiny_model("llama", tie_word_embeddings=True)
    return _write_model(path, model, "llama", kind="Q8_0")

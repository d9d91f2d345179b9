"""GGUF metadata -> a transformers config.

Facts that the converter drops from the metadata are recovered where they are certain: the layer and
vocabulary sizes from the tensors, Llama 3's rope scaling from its frequency factors, Gemma's
attention scale from the rule in llama.cpp. What cannot be recovered is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import FrontendError
from .gguf_header import GgufHeader
from .gguf_names import Architecture
from .weights import as_float32

# Metadata that changes the computation in ways these models do not have.
_REFUSED = (
    "attention.scale",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
)


@dataclass(frozen=True)
class Facts:
    """Typed, checked access to the metadata and the tensors of one file."""

    header: GgufHeader
    arch: Architecture

    def error(self, text: str) -> FrontendError:
        return FrontendError(f"{self.header.path}: {text}")

    def get(self, key: str) -> object:
        """A value of the architecture's namespace; a list of equal values counts as one."""
        value = self.header.metadata.get(f"{self.arch.gguf}.{key}")
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            return value[0]
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(
                f"{self.arch.gguf}.{key}: expected a positive whole number, got {value!r}"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not 0 < value < math.inf
        ):
            raise self.error(f"{self.arch.gguf}.{key}: expected a positive number, got {value!r}")
        return float(value)

    def token_id(self, name: str) -> int | None:
        """A special token's id, or None when the file names none."""
        value = self.header.metadata.get(f"tokenizer.ggml.{name}_token_id")
        return (
            value
            if isinstance(value, int) and 0 <= value < self.rows("token_embd.weight")
            else None
        )

    def has(self, tensor: str) -> bool:
        return tensor in self.header.tensors

    def rows(self, tensor: str) -> int:
        if not self.has(tensor):
            raise self.error(
                f"expected a tensor {tensor}, got none (an incomplete file, or no language model)"
            )
        return self.header.tensors[tensor].shape[0]

    def vector(self, tensor: str) -> list[float]:
        """A small float tensor."""
        entry = self.header.tensors[tensor]
        if entry.dtype not in ("f32", "f16", "bf16"):
            raise self.error(f"{tensor}: expected a float tensor, got {entry.dtype}")
        values = as_float32(self.header.raw(tensor), entry.dtype, entry.shape).reshape(-1)
        return [float(str(value)) for value in values]


def heads(facts: Facts) -> tuple[int, int]:
    """Numbers of query heads and of key and value heads."""
    count = facts.integer("attention.head_count")
    kv = facts.integer("attention.head_count_kv", count)
    if count % kv:
        raise facts.error(
            f"expected query heads to be a multiple of key heads, got {count} and {kv}"
        )
    return count, kv


def build_config(facts: Facts) -> Any:
    """The transformers config of the file's model."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    _check(facts)
    fields = _shared_fields(facts) | _OWN_FIELDS[facts.arch.gguf](facts)
    try:
        return AutoConfig.for_model(facts.arch.model_type, **fields)
    except (StrictDataclassError, ValueError, TypeError, KeyError) as error:
        raise facts.error(
            f"expected metadata of a {facts.arch.model_type} model, got: {error}"
        ) from error


def _check(facts: Facts) -> None:
    for key in _REFUSED:
        if facts.get(key) not in (None, 0, 1):
            raise facts.error(
                f"expected no {facts.arch.gguf}.{key}, got {facts.get(key)!r} "
                "(a variant whose config cannot be recovered; use its Hugging Face folder)"
            )
    layers = {name.split(".")[1] for name in facts.header.tensors if name.startswith("blk.")}
    count = facts.integer("block_count")
    if len(layers) != count or not all(
        index.isdecimal() and int(index) < count for index in layers
    ):
        raise facts.error(
            f"expected tensors of layers 0 to {count - 1}, got {len(layers)} layers "
            "(the file is incomplete)"
        )
    key_length, value_length = (
        facts.get("attention.key_length"),
        facts.get("attention.value_length"),
    )
    if None not in (key_length, value_length) and key_length != value_length:
        raise facts.error(f"expected keys as long as values, got {key_length} and {value_length}")


def _shared_fields(facts: Facts) -> dict[str, Any]:
    count, kv = heads(facts)
    return {
        "vocab_size": facts.rows("token_embd.weight"),
        "hidden_size": facts.integer("embedding_length"),
        "intermediate_size": facts.integer("feed_forward_length"),
        "num_hidden_layers": facts.integer("block_count"),
        "num_attention_heads": count,
        "num_key_value_heads": kv,
        "max_position_embeddings": facts.integer("context_length"),
        "rms_norm_eps": facts.number("attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(facts),
        # llama.cpp writes the output projection only when it is not the embedding
        "tie_word_embeddings": not facts.has("output.weight"),
        "bos_token_id": facts.token_id("bos"),
        "eos_token_id": facts.token_id("eos"),
        "pad_token_id": facts.token_id("padding"),
    }


def _rope(facts: Facts) -> dict[str, Any]:
    base = {"rope_theta": facts.number("rope.freq_base", 10000.0)}
    kind = facts.get("rope.scaling.type")
    if facts.has("rope_freqs.weight"):
        return base | _llama3_scaling(facts, base["rope_theta"])
    if facts.has("rope_factors_long.weight"):
        return base | _longrope_scaling(facts)
    if kind in (None, "none"):
        return base | {"rope_type": "default"}
    if kind == "linear":
        return base | {"rope_type": "linear", "factor": facts.number("rope.scaling.factor")}
    if kind == "yarn":
        original = facts.integer("rope.scaling.original_context_length")
        factor = facts.number("rope.scaling.factor")
        scaling = {"rope_type": "yarn", "factor": factor}
        return base | scaling | {"original_max_position_embeddings": original}
    raise facts.error(f"expected rope scaling of none, linear, yarn or factors, got {kind!r}")


def _llama3_scaling(facts: Facts, theta: float) -> dict[str, Any]:
    """Llama 3's scaling; the file keeps its factors only, so those must come out equal."""
    factors = np.array(facts.vector("rope_freqs.weight"))
    scaling = {
        "rope_type": "llama3",
        "factor": round(float(factors.max()), 3),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    half = factors.size
    wavelength = 2 * math.pi * theta ** (np.arange(half) / half)
    smooth = np.clip((8192 / wavelength - 1) / 3, 0, 1)
    expected = 1 / ((1 - smooth) / factors.max() + smooth)
    if not np.allclose(factors, expected, rtol=1e-4):
        raise facts.error(
            "rope_freqs.weight: expected the factors of Llama 3's rope scaling, got others "
            "(use the model's Hugging Face folder)"
        )
    return scaling


def _longrope_scaling(facts: Facts) -> dict[str, Any]:
    scaling: dict[str, Any] = {
        "rope_type": "longrope",
        "long_factor": facts.vector("rope_factors_long.weight"),
        "short_factor": facts.vector("rope_factors_short.weight"),
        "original_max_position_embeddings": facts.integer("rope.scaling.original_context_length"),
    }
    if facts.get("rope.scaling.attn_factor") is not None:
        scaling["attention_factor"] = facts.number("rope.scaling.attn_factor")
    return scaling


def _head_dim(facts: Facts) -> int:
    """From the rows of q, which cannot be wrong; the metadata has it only when it is unusual."""
    count, _ = heads(facts)
    rows = facts.rows("blk.0.attn_q.weight")
    if rows % count:
        raise facts.error(f"blk.0.attn_q.weight: expected rows for {count} heads, got {rows}")
    return facts.integer("attention.key_length", rows // count)


def _llama(facts: Facts) -> dict[str, Any]:
    return {
        "head_dim": _head_dim(facts),
        "attention_bias": facts.has("blk.0.attn_q.bias"),
        "mlp_bias": facts.has("blk.0.ffn_up.bias"),
    }


def _qwen2(facts: Facts) -> dict[str, Any]:
    return {"use_sliding_window": False}


def _qwen3(facts: Facts) -> dict[str, Any]:
    bias = facts.has("blk.0.attn_q.bias")
    return {"head_dim": _head_dim(facts), "attention_bias": bias, "use_sliding_window": False}


def _phi3(facts: Facts) -> dict[str, Any]:
    count, _ = heads(facts)
    head_dim = facts.integer("embedding_length") // count
    fields: dict[str, Any] = {}
    rotary = facts.integer("rope.dimension_count", head_dim)
    fields["rope_parameters"] = _rope(facts) | {"partial_rotary_factor": rotary / max(head_dim, 1)}
    if facts.has("rope_factors_long.weight"):
        original = facts.integer("rope.scaling.original_context_length")
        fields["original_max_position_embeddings"] = original
    if facts.get("attention.sliding_window"):
        fields["sliding_window"] = facts.integer("attention.sliding_window")
    return fields


def _gemma(facts: Facts) -> dict[str, Any]:
    return {"head_dim": _head_dim(facts)}


def _gemma2(facts: Facts) -> dict[str, Any]:
    return {
        "head_dim": _head_dim(facts),
        "query_pre_attn_scalar": _query_scale(facts, layers_of_27b=46),
        "sliding_window": facts.integer("attention.sliding_window", 4096),
        "attn_logit_softcapping": facts.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": facts.number("final_logit_softcapping", 30.0),
    }


def _gemma3(facts: Facts) -> dict[str, Any]:
    local = {"rope_type": "default", "rope_theta": facts.number("rope.freq_base_swa", 10000.0)}
    fields: dict[str, Any] = {
        "head_dim": _head_dim(facts),
        "query_pre_attn_scalar": _query_scale(facts, layers_of_27b=62),
        "sliding_window": facts.integer("attention.sliding_window"),
        "rope_parameters": {"full_attention": _rope(facts), "sliding_attention": local},
    }
    if facts.get("final_logit_softcapping"):
        fields["final_logit_softcapping"] = facts.number("final_logit_softcapping")
    return fields


def _query_scale(facts: Facts, layers_of_27b: int) -> int:
    """llama.cpp knows this number by the size of the model alone; so do we."""
    if facts.integer("block_count") == layers_of_27b:
        return facts.integer("embedding_length") // heads(facts)[0]
    return _head_dim(facts)


_OWN_FIELDS: dict[str, Callable[[Facts], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "phi3": _phi3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
}

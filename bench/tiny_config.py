"""A tiny configuration of any transformers model type, made by rule from the type's own default.

Sizes go down by the names of attributes, and per-layer lists keep one layer of each kind, so the
small model still has every mechanism of the large one: windows that a prompt of 130 tokens leaves,
more experts than are chosen, groups of experts, heads in groups.

>>> config = tiny_config("qwen3_moe")                                     # doctest: +SKIP
>>> config.num_hidden_layers, config.hidden_size, config.num_experts      # doctest: +SKIP
(2, 64, 16)
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

HIDDEN, HEADS, HEAD_DIM, VOCAB, CONTEXT, WINDOW, LAYERS = 64, 4, 16, 128, 256, 40, 2
FIRST_ID = 32
"""Prompts use ids from here on: below lie the special ones."""
RULES: tuple[tuple[str, int], ...] = (
    (r"(decoder_|unpadded_)?vocab_size(_per_layer_input)?", VOCAB),
    (r"(hidden|embedding|text_hidden|backbone_hidden|attention_hidden)_size", HIDDEN),
    (r"hidden_size_global|adapter_(in|out)_dim|adapter_input_size", HIDDEN),
    (r"d_model|n_embd|dim_model|lru_width|emb_dim|word_embed_proj_dim|ple_embed_dim", HIDDEN),
    (r"hidden_size_per_layer_input", HEAD_DIM),
    (r"(\w+_)?(num_attention_heads|attention_heads)|n_heads?|num_heads|index_n_heads", HEADS),
    (r"(\w+_)?num_key_heads|(\w+_)?num_value_heads|linear_num_heads", HEADS),
    (r"qk_head_dim", 2 * HEAD_DIM),
    (r"(\w+_)?head_dim|kv_channels|dim_head|attention_head_dim|mamba_d_head", HEAD_DIM),
    (r"rotary_dim", HEAD_DIM // 2),
    (r"(\w+_)?moe_intermediate_size|shared_intermediate_size|expert_ffn_hidden_size", HIDDEN),
    (r"(\w+_)?intermediate_size(_mlp)?|(\w+_)?ffn_dim|ffn_hidden_size|n_inner", 2 * HIDDEN),
    (r"dim_ff|dff", 2 * HIDDEN),
    (r"(\w+_)?lora_rank|laurel_rank|mamba_dt_rank|time_step_rank|gated_norm_rank", HIDDEN // 2),
    (r"(num|n_routed|num_local|moe_num)_experts", 16),
    (r"num_experts_per_tok(en)?|moe_topk|moe_k|top_k|top_k_experts|n_group|num_expert_group", 4),
    (r"topk_group", 2),
    (r"original_max_position_embeddings", CONTEXT // 2),
    (r"attention_chunk_size", CONTEXT),
    (r"sliding_window(_size)?|window_size|attention_window_size", WINDOW),
    (r"local_attention(_window_len)?|local_window_size", WINDOW),
    (r"n_groups", 2),
    (r"mamba_n_heads|n_mamba_heads|mamba_num_heads", 8),
    (r"mamba_d_state|ssm_state_size|state_size|mamba_chunk_size|chunk_size", 16),
    (r"first_k_dense_replace|num_dense_layers|attn_layer_offset|expert_layer_offset", 1),
    (r"attn_layer_period|expert_layer_period|layer_group_size|global_attn_every_n_layers", 2),
    (r"num_kv_shared_layers|num_nextn_predict_layers", 0),
    (r"image_size|patch_size", 16),
    (r"\w+_hash_byte_group_vocab|ngram_vocab_size_base", VOCAB),
)
CONTEXTS = re.compile(
    r"max_position_embeddings|n_positions|n_ctx|max_seq_len|max_sequence_length|model_max_length|"
    r"max_(target|source)_positions"
)
UNSET: dict[str, float] = {
    "head_dim": HEAD_DIM,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 4,
    "n_group": 4,
}
UNSET |= {"topk_group": 2, "n_routed_experts": 16, "n_shared_experts": 1}
UNSET |= {"indexer_n_heads": HEADS, "indexer_kv_heads": 1, "indexer_head_dim": HEAD_DIM}
UNSET |= {"indexer_budget": CONTEXT, "indexer_compress_ratio": 4, "clip_qkv": 2.0}
"""What a default leaves open and some models cannot be built without."""
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LAYER_COUNTS = re.compile(
    r"(num_|n_)(hidden_|encoder_|decoder_)?layers?|n_layers?|(de|en)coder_layers"
)
PARTS = re.compile(r"n_\w+_layers")
"""Parts of a model by their layers, if they add up."""
TOKENS = re.compile(r"\w+_token_(id|index)|token_id|eod_token_id")
KNOWN_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_PATTERNS = tuple((re.compile(pattern), size) for pattern, size in RULES)


def causal_types() -> list[str]:
    """Every model type that transformers has a causal language model for."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny_config(model_type: str) -> Any:
    """The shrunken default configuration; a decoder where the type can be one or not."""
    default = default_config(model_type)
    changes = shrink(default)
    if "is_decoder" in default.to_dict():
        changes["is_decoder"] = True
    if languages := getattr(default, "languages", None):
        changes["default_language"] = languages[0]
    return type(default)(**changes)


def default_config(model_type: str) -> Any:
    from transformers import AutoConfig

    auto: Any = AutoConfig
    return auto.for_model(model_type)


def shrink(default: Any) -> dict[str, Any]:
    """Attributes to build the same kind of configuration with, only smaller."""
    subs = {n: getattr(default, n) for n in getattr(default, "sub_configs", {})}
    kept = vars(default)  # `to_dict` may say a value otherwise
    plain = {k: kept[k] for k in default.to_dict() if k not in subs and k in kept}
    changes: dict[str, Any] = {n: shrink(sub) for n, sub in subs.items() if sub is not None}
    layers = _layers(plain)
    for name, value in plain.items():
        new = _shrunk(name, value, plain, layers)
        if new != value:
            changes[name] = new
    return changes | _mixers(plain) | _parts(plain, layers) | _positions(plain, changes)


def _mixers(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Layers beside attention: short convolutions, which defaults leave out; heads of a state that
    make up the expanded width."""
    if "conv_L_cache" in plain:
        return {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2}
    if plain.keys() >= {"expand", "num_heads", "head_dim"}:
        return {"head_dim": HIDDEN * plain["expand"] // HEADS}
    return {}


def _parts(plain: Mapping[str, Any], layers: list[int]) -> dict[str, int]:
    """One layer for each part of a model, the rest for the second, which may be run in a loop."""
    parts = _named_parts(plain)
    sizes = dict.fromkeys(parts, 1)
    return sizes | {parts[1]: len(layers) - len(parts) + 1} if parts else {}


def _named_parts(plain: Mapping[str, Any]) -> list[str]:
    parts = {k: v for k, v in plain.items() if PARTS.fullmatch(k) and isinstance(v, int)}
    count = next((v for k, v in plain.items() if _counts_layers(k, v)), 0)
    return list(parts) if len(parts) > 1 and sum(parts.values()) == count else []


def _positions(plain: Mapping[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """What positions are made of: rotations that defaults leave out, by kind of layer or in a part
    of the configuration; factors of an axial table, which make up the width and the context."""
    found: dict[str, Any] = {}
    if plain.get("rope_parameters") == {} and plain.get("layer_types"):
        found["rope_parameters"] = {kind: dict(ROPE) for kind in set(plain["layer_types"])}
    if "attn_config" in changes and "rope_parameters" in plain:
        found["attn_config"] = {**changes["attn_config"], "rope_theta": ROPE["rope_theta"]}
    if "axial_pos_shape" in plain:
        found |= {"axial_pos_shape": [16, CONTEXT // 16], "axial_pos_embds_dim": [16, HIDDEN - 16]}
    return found


def _layers(plain: Mapping[str, Any]) -> list[int]:
    """The layers that stay: the first of each kind, two where they share weights (hybrid), and at
    least two in all."""
    count = next((v for k, v in plain.items() if _counts_layers(k, v)), 0)
    lists = [v for v in plain.values() if isinstance(v, list) and len(v) == count]
    found: dict[str, list[int]] = {}
    for i in range(count):
        found.setdefault(str([each[i] for each in lists]), []).append(i)
    kept = sorted(i for kind, ids in found.items() for i in ids[: 1 + ("hybrid" in kind)])
    least = max(LAYERS, len(_named_parts(plain)))
    more = (i for i in range(count) if i not in kept)
    return sorted([*kept, *itertools.islice(more, max(least - len(kept), 0))])


def _counts_layers(name: str, value: Any) -> bool:
    return isinstance(value, int) and LAYER_COUNTS.fullmatch(name) is not None


def _shrunk(name: str, value: Any, plain: Mapping[str, Any], layers: list[int]) -> Any:
    count = next((v for k, v in plain.items() if _counts_layers(k, v)), 0)
    if _counts_layers(name, value):
        return min(value, len(layers)) if value == count else min(value, LAYERS)
    if isinstance(value, list) and count and len(value) == count:
        return [_number(name, value[i], plain) for i in layers]
    if isinstance(value, dict):
        return _nested(value)
    if TOKENS.fullmatch(name):
        return _token(name, value)
    return _number(name, value, plain)


def _number(name: str, value: Any, plain: Mapping[str, Any]) -> Any:
    """A size made smaller; anything else as it is."""
    if value is None and name in UNSET:
        return UNSET[name]
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if re.fullmatch(r"(\w+_)?(num_key_value_heads|num_kv_heads)", name):
        heads = {v for k, v in plain.items() if k.endswith(("num_attention_heads", "n_head"))}
        return HEADS if value in heads else min(value, HEADS // 2)
    if CONTEXTS.fullmatch(name):
        return CONTEXT
    if name in ("attention_hidden_size", "attention_head_dim") and "hidden_size" in plain:
        count = plain["num_attention_heads"] if name == "attention_head_dim" else 1
        return value * count // plain["hidden_size"] * HIDDEN // (HEADS if count > 1 else 1)
    for pattern, size in _PATTERNS:
        if pattern.fullmatch(name):
            return min(value, size)
    return value


def _nested(value: Mapping[str, Any]) -> dict[str, Any]:
    """Rope parameters, perhaps per kind of layer: the original context shrinks with the context."""
    result: dict[str, Any] = {}
    for name, each in value.items():
        if isinstance(each, dict):
            result[name] = _nested(each)
        elif name == "mrope_section":
            result[name] = [HEAD_DIM // 2 - 2 * (HEAD_DIM // 8), HEAD_DIM // 8, HEAD_DIM // 8]
        elif name == "original_max_position_embeddings":
            result[name] = min(each, CONTEXT // 2)
        else:
            result[name] = each
    return result


def _token(name: str, value: Any) -> Any:
    """Ids below `FIRST_ID`, different ones for different names."""
    if value is None:
        return None
    number = KNOWN_TOKENS.get(name, 3 + sum(map(ord, name)) % (FIRST_ID - 3))
    return [number] if isinstance(value, list) else number

"""Per GGUF architecture: which Hugging Face parameter a tensor is, and what to undo on it.

llama.cpp's converter renames tensors, interleaves the rows of q and k for its rotary kernel (llama)
and stores Gemma's norm weights plus one. To add an architecture: a row in `ARCHITECTURES`, a config
rule in `gguf_config` if its metadata has more than the shared keys, and a case in the tests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import FrontendError

_ROOT = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_GATED_MLP = {
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LLAMA = _ATTENTION | _GATED_MLP
_QK_NORM = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_SANDWICH = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_PHI3 = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}

# Tensors that hold facts of the config (frequency factors of rope scaling), not weights.
CONFIG_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


@dataclass(frozen=True)
class Architecture:
    """A GGUF architecture and the transformers model that computes the same."""

    gguf: str
    model_type: str
    layer: dict[str, str] = field(default_factory=lambda: _LLAMA)
    """Stem of a tensor of ``blk.N.`` -> module of ``model.layers.N.``."""
    interleaves_qk: bool = False
    """Rows of q and k come in pairs (i, i + head_dim/2) instead of halves."""
    adds_one_to_norms: bool = False


ARCHITECTURES = {
    row.gguf: row
    for row in (
        Architecture("llama", "llama", interleaves_qk=True),  # Mistral and SmolLM are "llama" too
        Architecture("qwen2", "qwen2"),
        Architecture("qwen3", "qwen3", _LLAMA | _QK_NORM),
        Architecture("phi3", "phi3", _PHI3),
        Architecture("gemma", "gemma", adds_one_to_norms=True),
        Architecture("gemma2", "gemma2", _LLAMA | _SANDWICH, adds_one_to_norms=True),
        Architecture(
            "gemma3", "gemma3_text", _LLAMA | _SANDWICH | _QK_NORM, adds_one_to_norms=True
        ),
    )
}


@dataclass(frozen=True)
class Binding:
    """A parameter of the model: the tensor it is read from and what is undone on the way."""

    name: str
    tensor: str
    heads: int | None = None
    """Rows are deinterleaved in this many heads."""
    minus_one: bool = False


def architecture(path: Path, metadata: dict[str, object]) -> Architecture:
    """The row of the file's architecture, or `FrontendError` with the known ones."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise FrontendError(
            f"{path}: expected a GGUF architecture of {known}, got {name!r} "
            "(use the model's Hugging Face folder instead)"
        )
    return ARCHITECTURES[name]


def bind(
    path: Path, arch: Architecture, tensors: Sequence[str], heads: int, kv_heads: int
) -> dict[str, Binding]:
    """Parameters by name, in file order; a tensor foreign to the architecture is refused."""
    bindings = {}
    unknown = []
    for tensor in tensors:
        if tensor in CONFIG_TENSORS:
            continue
        name, stem = _parameter(arch, tensor)
        if name is None:
            unknown.append(tensor)
            continue
        rows = {"attn_q": heads, "attn_k": kv_heads}.get(stem) if arch.interleaves_qk else None
        minus_one = arch.adds_one_to_norms and stem.endswith("norm")
        bindings[name] = Binding(name, tensor, rows, minus_one)
    if unknown:
        raise FrontendError(
            f"{path}: expected the tensors of a {arch.gguf} model, got also {', '.join(unknown)} "
            "(a variant whose computation is not known; use its Hugging Face folder)"
        )
    return bindings


def _parameter(arch: Architecture, tensor: str) -> tuple[str | None, str]:
    """Hugging Face name (None: no such parameter) and stem of a GGUF tensor."""
    if match := _LAYER.fullmatch(tensor):
        index, stem, suffix = match.groups()
        module = arch.layer.get(stem)
        return (f"model.layers.{index}.{module}.{suffix}" if module else None), stem
    stem, _, suffix = tensor.rpartition(".")
    module = _ROOT.get(stem)
    return (f"{module}.{suffix}" if module and suffix in ("weight", "bias") else None), stem


def deinterleave(rows: int, heads: int) -> NDArray[np.int64]:
    """``hf[i] = file[index[i]]``: pairs (j, j + half) back to two halves, in each head.

    >>> deinterleave(4, 1).tolist()
    [0, 2, 1, 3]
    """
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)

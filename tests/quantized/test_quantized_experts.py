"""Experts stored one by one in few bits: joined as plain numbers, and named in the notes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sglk.frontend.hf import load_hf
from sglk.frontend.weights import notes_of
from sglk.ir.quantized import Quantized
from transformers import AutoConfig, AutoModelForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 64,
}


def test_experts_are_expanded_and_the_rest_is_kept(writers: Any, tmp_path: Path) -> None:
    auto: Any = AutoModelForCausalLM
    auto.from_config(AutoConfig.for_model("qwen3_moe", **SIZES)).save_pretrained(tmp_path / "plain")
    tensors = load_file(tmp_path / "plain" / "model.safetensors")
    rng = torch.Generator().manual_seed(0)
    plain, stored = dict(tensors), dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight"):
            plain[name], parts = writers.fp8(*tensor.shape, rng, per_channel=True)
            stored |= {name.removesuffix("weight") + part: each for part, each in parts.items()}
    assert any(".experts.3.down_proj.weight_scale" in name for name in stored)
    save_file(plain, tmp_path / "plain" / "model.safetensors")
    (tmp_path / "few").mkdir()
    save_file(stored, tmp_path / "few" / "model.safetensors")
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fbgemm_fp8"}
    (tmp_path / "few" / "config.json").write_text(json.dumps(config))
    few, wanted = load_hf(tmp_path / "few"), load_hf(tmp_path / "plain").weights
    kept = set()
    for param in few.graph.params:
        array = few.weights.read(param.name)
        if isinstance(array, Quantized):
            kept.add(param.name.rpartition(".self_attn.")[2])
            array = array.dequantize()
        np.testing.assert_array_equal(array, wanted.read(param.name))
    assert kept == {f"{part}_proj.weight" for part in "qkvo"}
    (note,) = notes_of(few.weights)
    assert note.startswith("expanded to --dtype") and "mlp.experts.gate_up_proj" in note

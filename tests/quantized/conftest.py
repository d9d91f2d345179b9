"""Checkpoints of quantized models, and the formats that tests go through."""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch


def _load() -> Any:
    path = Path(__file__).with_name("checkpoint_writers.py")
    spec = importlib.util.spec_from_file_location("quantized_checkpoint_writers", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


WRITERS = _load()
_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False, "sym": False}
_FP8 = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "modules_to_not_convert": ["lm_head"],
}
_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}


def _formats() -> dict[str, Any]:
    w, make = WRITERS, WRITERS.Format
    args = w.weights_args
    e4m3, inv = torch.float8_e8m0fnu, "weight_scale_inv"
    dynamic = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"}
    int8 = args(num_bits=8, strategy="channel") | {"format": "int-quantized"}
    int8["config_groups"]["group_0"]["input_activations"] = dynamic
    float8 = args(num_bits=8, type="float", strategy="channel") | {"format": "float-quantized"}
    blocks = _FP8 | {"weight_block_size": [128, 128]}
    order = {"desc_act": True}
    return {
        "awq": make(_AWQ, w.awq, 4.4),
        "gptq": make(_GPTQ, w.gptq, 4.4),
        "gptq-v2": make(_GPTQ | {"checkpoint_format": "gptq_v2"}, partial(w.gptq, version=2), 4.4),
        "gptq-sym": make(_GPTQ | {"sym": True}, partial(w.gptq, symmetric=True), 4.4),
        "gptq-8-row": make(
            _GPTQ | {"bits": 8, "group_size": -1}, partial(w.gptq, bits=8, size=-1), 8.4
        ),
        "gptq-order": make(_GPTQ | order, partial(w.gptq, shuffled=True), 4.8),
        "packed": make(args(group_size=64), w.packed, 4.4),
        "packed-asym": make(
            args(symmetric=False),
            partial(w.packed, symmetric=False, size=32, kind=torch.float16),
            5.0,
        ),
        "packed-8": make(args(num_bits=8), partial(w.packed, bits=8), 8.4),
        "packed-order": make(args(actorder="group"), partial(w.packed, shuffled=True), 4.8),
        "int8": make(int8, w.int8, 8.3),
        "int8-asym": make(int8, partial(w.int8, symmetric=False), 8.3),
        "fp8-channel": make(float8, partial(w.fp8, per_channel=True, kind=torch.bfloat16), 8.3),
        "fp8-tensor": make(_FP8 | {"quant_method": "modelopt", "quant_algo": "FP8"}, w.fp8, 8.4),
        "fp8-blocks": make(blocks, partial(w.fp8, block=(128, 128), name=inv), 8.4),
        "fp8-powers": make(blocks, partial(w.fp8, block=(128, 128), name=inv, kind=e4m3), 8.4),
    }  # fmt: skip


FORMATS = _formats()


@pytest.fixture(scope="session")
def writers() -> Any:
    return WRITERS


@pytest.fixture(scope="session")
def formats() -> dict[str, Any]:
    return FORMATS

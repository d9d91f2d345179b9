"""Layers have the exact values of their formats' formulas; damaged and unknown ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sglk.errors import FrontendError
from sglk.frontend.hf import load_hf
from sglk.frontend.model_files import open_model
from sglk.frontend.weights import columns_of, notes_of
from sglk.ir.groups import GroupArray

FORMS = {
    "awq": {"i4_g64_f16_z"},
    "gptq": {"i4_g64_f16_z"},
    "gptq-v2": {"i4_g64_f16_z"},
    "gptq-sym": {"i4_g64_f16"},
    "gptq-8-row": {"i8_row_f16_z"},
    "gptq-order": {"i4_g64_f16_z"},
    "packed": {"i4_g64_bf16"},
    "packed-asym": {"i4_g32_f16_z"},
    "packed-8": {"i8_g64_bf16"},
    "packed-order": {"i4_g64_bf16"},
    "int8": {"i8_row_bf16"},
    "int8-asym": {"i8_row_bf16_z"},
    "fp8-channel": {"e4m3_row_bf16"},
    "fp8-tensor": {"e4m3_row_f32"},
    "fp8-blocks": {"e4m3_row_f32", "e4m3_g128_f32"},
    "fp8-powers": {"e4m3_row_bf16", "e4m3_g128_bf16"},
}


def test_every_format_is_written(formats: dict[str, Any]) -> None:
    assert set(formats) == set(FORMS)


@pytest.mark.parametrize("name", FORMS)
def test_values_are_those_of_the_formula(
    writers: Any, formats: dict[str, Any], tmp_path: Path, name: str
) -> None:
    model = writers.write_checkpoint(tmp_path / "m", formats[name], shard=name == "packed-asym")
    source = open_model(tmp_path / "m").source
    state = model.state_dict()
    assert set(source.names()) == set(state)
    columns, found = columns_of(source), set()
    for key, tensor in state.items():
        array = source.read(key)
        if isinstance(array, GroupArray):
            found.add(array.dtype)
            assert source.info(key).dtype == array.dtype and source.info(key).shape == array.shape
            values = array.dequantize()
            wanted = tensor.numpy()[:, columns[key]] if key in columns else tensor.numpy()
            np.testing.assert_array_equal(values.view(np.uint32), wanted.view(np.uint32))
        else:
            np.testing.assert_array_equal(array, tensor.numpy())
    assert found == FORMS[name]
    assert bool(columns) == name.endswith("order")


def edit(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Replace tensors of a checkpoint, or drop those given as None."""
    stored = load_file(folder / "model.safetensors") | tensors
    kept = {name: tensor for name, tensor in stored.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors")


def configure(folder: Path, **settings: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= settings
    (folder / "config.json").write_text(json.dumps(config))


LAYER = "model.layers.0.mlp.down_proj"


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("awq", {"quant_method": "bitsandbytes"}, "expected a quant_method among awq.*got bitsand"),
        ("awq", {"version": "gemv"}, "bits 4 in version 'gemv'"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ("packed", {"format": "nvfp4-pack-quantized"}, "format nvfp4-pack-quantized"),
        ("fp8-tensor", {"quant_algo": "NVFP4"}, "got modelopt NVFP4"),
        ("packed", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask"),
        ("packed", {"transform_config": {"config_groups": {"u": {}}}}, "rotations while"),
        ("fp8-blocks", {"weight_block_size": [64, 64]}, r"\[128, 256\] has scales of \[1, 2\]"),
    ],
)
def test_what_is_not_read_is_refused_by_name(
    writers: Any,
    formats: dict[str, Any],
    tmp_path: Path,
    name: str,
    settings: dict[str, Any],
    sentence: str,
) -> None:
    writers.write_checkpoint(tmp_path / "m", formats[name])
    configure(tmp_path / "m", **settings)
    with pytest.raises(FrontendError, match=sentence):
        open_model(tmp_path / "m")


def test_layers_of_other_widths_are_refused_together(
    writers: Any, formats: dict[str, Any], tmp_path: Path
) -> None:
    """Two bits: half as many words, for weights as for zero points."""
    writers.write_checkpoint(tmp_path / "m", formats["gptq"])
    words = {f"{LAYER}.qzeros": torch.zeros(4, 8, dtype=torch.int32)}
    gone: dict[str, Any] = {"model.layers.0.mlp.up_proj.scales": None}
    edit(tmp_path / "m", **words, **gone)
    with pytest.raises(FrontendError, match=r"integers of 2 bits.*up_proj has no scales"):
        open_model(tmp_path / "m")


def test_uneven_groups_are_refused(writers: Any, formats: dict[str, Any], tmp_path: Path) -> None:
    writers.write_checkpoint(tmp_path / "m", formats["gptq"])
    index = torch.arange(256, dtype=torch.int32) // 64
    index[70] = 0
    edit(tmp_path / "m", **{f"{LAYER}.g_idx": index})
    with pytest.raises(FrontendError, match=r"down_proj has groups of unequal size"):
        open_model(tmp_path / "m")


def test_nan_is_refused_when_it_is_read(
    writers: Any, formats: dict[str, Any], tmp_path: Path
) -> None:
    writers.write_checkpoint(tmp_path / "m", formats["fp8-tensor"])
    weight = load_file(tmp_path / "m" / "model.safetensors")[f"{LAYER}.weight"]
    weight.view(torch.uint8)[3, 5] = 0xFF
    edit(tmp_path / "m", **{f"{LAYER}.weight": weight})
    source = open_model(tmp_path / "m").source
    with pytest.raises(FrontendError, match=r"down_proj.weight holds NaN"):
        source.read(f"{LAYER}.weight")


def test_small_floats_without_scales_are_refused(
    writers: Any, formats: dict[str, Any], tmp_path: Path
) -> None:
    writers.write_checkpoint(tmp_path / "m", formats["fp8-tensor"])
    edit(tmp_path / "m", **{f"{LAYER}.weight_scale": None})
    with pytest.raises(FrontendError, match=r"down_proj.weight has no scales"):
        open_model(tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    with pytest.raises(FrontendError, match=r"expected a quantization_config in config.json"):
        open_model(tmp_path / "m")


def test_activation_schemes_are_noted(
    writers: Any, formats: dict[str, Any], tmp_path: Path
) -> None:
    writers.write_checkpoint(tmp_path / "m", formats["int8"])
    (note,) = notes_of(open_model(tmp_path / "m").source)
    assert "activations are not quantized" in note


@pytest.mark.parametrize(
    ("name", "file", "wrap"),
    [("gptq", "quantize_config.json", ""), ("fp8-tensor", "hf_quant_config.json", "quantization")],
)
def test_settings_may_lie_in_a_file_of_their_own(
    writers: Any, formats: dict[str, Any], tmp_path: Path, name: str, file: str, wrap: str
) -> None:
    folder = tmp_path / "m"
    writers.write_checkpoint(folder, formats[name])
    config = json.loads((folder / "config.json").read_text())
    settings = config.pop("quantization_config")
    del settings["quant_method"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(FrontendError, match=r"expected a quantization_config in config\.json"):
        open_model(folder)
    (folder / file).write_text(json.dumps({wrap: settings} if wrap else settings))
    assert open_model(folder).source.info(f"{LAYER}.weight").dtype in FORMS[name]


def test_biases_that_the_model_lacks_are_zeros_or_refused(
    writers: Any, formats: dict[str, Any], tmp_path: Path
) -> None:
    folder, bias = tmp_path / "m", torch.zeros(128, dtype=torch.float16)
    writers.write_checkpoint(folder, formats["gptq"])
    edit(folder, **{f"{LAYER}.bias": bias})
    load_hf(folder)
    bias[3] = 1
    edit(folder, **{f"{LAYER}.bias": bias})
    with pytest.raises(FrontendError, match=r"expected zeros in .*down_proj\.bias"):
        load_hf(folder)


@pytest.mark.parametrize("name", ["fp8-blocks", "fp8-powers"])
def test_blocks_are_scaled_as_transformers_scales_them(
    writers: Any, formats: dict[str, Any], tmp_path: Path, name: str
) -> None:
    """By the operation that its loader runs; the loader itself needs more packages."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    writers.write_checkpoint(tmp_path / "m", formats[name])
    stored = load_file(tmp_path / "m" / "model.safetensors")
    source = open_model(tmp_path / "m").source
    scales = [key for key in stored if key.endswith("_scale_inv")]
    assert len(scales) == 7
    for key in scales:
        weight = key.removesuffix("_scale_inv")
        operation: Any = Fp8Dequantize
        scaled = operation(None)._dequantize_one(stored[weight], stored[key], torch.float32)
        array = source.read(weight)
        assert isinstance(array, GroupArray)
        np.testing.assert_array_equal(array.dequantize(), scaled.numpy())

"""GGUF files give back the model they were made from: config, names, numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize
from numpy.typing import NDArray
from sglk.errors import FrontendError
from sglk.frontend.gguf_header import read_header
from sglk.frontend.model_files import ModelFiles, open_model
from sglk.ir.blocks import BlockArray
from transformers import AutoModelForCausalLM, PreTrainedModel

GEMMA = {"tie_word_embeddings": True, "head_dim": 32, "sliding_window": 16}
LOCAL = {"rope_type": "default", "rope_theta": 10000.0}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "llama", {}),
    ("llama", "llama", {"tie_word_embeddings": True, "attention_bias": True, "head_dim": 8}),
    ("llama", "llama", {"rope_parameters": LOCAL | {"rope_type": "linear", "factor": 2.0}}),
    ("qwen2", "qwen2", {"rope_parameters": LOCAL | {"rope_theta": 1e6}}),
    (
        "qwen2",
        "qwen2",
        {
            "rope_parameters": LOCAL
            | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
        },
    ),
    ("qwen3", "qwen3", {"head_dim": 32}),
    ("phi3", "phi3", {}),
    ("gemma", "gemma", {"tie_word_embeddings": True, "head_dim": 32}),
    ("gemma2", "gemma2", GEMMA | {"query_pre_attn_scalar": 32}),
    (
        "gemma3",
        "gemma3_text",
        GEMMA
        | {
            "query_pre_attn_scalar": 32,
            "rope_parameters": {
                "full_attention": LOCAL | {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
                "sliding_attention": LOCAL,
            },
        },
    ),
]


def read_all(files: ModelFiles) -> dict[str, NDArray[np.float32]]:
    arrays: dict[str, NDArray[np.float32]] = {}
    for name in files.source.names():
        value = files.source.read(name)
        arrays[name] = value if isinstance(value, np.ndarray) else value.dequantize()
        assert arrays[name].shape == files.source.info(name).shape
    return arrays


def logits(model: PreTrainedModel) -> NDArray[np.float32]:
    ids = torch.arange(3, 45).reshape(1, -1)
    with torch.no_grad():
        return model(ids).logits.numpy()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("arch", "model_type", "changes"), CASES)
def test_the_same_model_comes_back(
    arch: str,
    model_type: str,
    changes: dict[str, Any],
    tmp_path: Path,
    tiny_model: Callable[..., PreTrainedModel],
    write_gguf: Callable[..., Path],
) -> None:
    model = tiny_model(model_type, **changes)
    files = open_model(write_gguf(tmp_path / "tiny.gguf", model, arch))
    assert files.config.model_type == model_type
    arrays = read_all(files)
    assert set(arrays) == set(model.state_dict())
    again = AutoModelForCausalLM.from_config(files.config)  # type: ignore[no-untyped-call]
    again.float().eval()
    again.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})
    for name, array in again.state_dict().items():
        expected = model.state_dict()[name].numpy()
        if arch.startswith("gemma") and "norm" in name:  # stored plus one: rounded in the file
            np.testing.assert_allclose(array.numpy(), expected, atol=1e-7)
        else:
            np.testing.assert_array_equal(array.numpy(), expected)
    np.testing.assert_allclose(logits(again), logits(model), atol=1e-4)


KINDS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_keeps_its_values(
    kind: str,
    tmp_path: Path,
    tiny_model: Callable[..., PreTrainedModel],
    write_gguf: Callable[..., Path],
) -> None:
    model = tiny_model("qwen2", hidden_size=256, intermediate_size=256)
    path = write_gguf(tmp_path / "tiny.gguf", model, "qwen2", kind)
    source = open_model(path).source
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for name, tensor_name in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.1.mlp.down_proj.weight", "blk.1.ffn_down.weight"),
    ):
        got = source.read(name)
        assert source.info(name).dtype == kind.lower()
        tensor = stored[tensor_name]
        expected = dequantize(tensor.data, tensor.tensor_type).reshape(source.info(name).shape)
        values = got.dequantize() if isinstance(got, BlockArray) else got
        np.testing.assert_array_equal(values, expected)


def test_a_tied_head_is_an_alias_of_the_embedding(tiny_gguf: Path) -> None:
    source = open_model(tiny_gguf).source
    info = source.info("lm_head.weight")
    assert (info.dtype, info.alias_of) == ("q8_0", "model.embed_tokens.weight")
    assert "lm_head.weight" in source.names()


def test_llama3_rope_scaling_is_recovered_from_its_factors(
    tmp_path: Path,
    tiny_model: Callable[..., PreTrainedModel],
    write_gguf: Callable[..., Path],
) -> None:
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    model = tiny_model("llama", head_dim=64, max_position_embeddings=16384, rope_parameters=scaling)
    plain = 1 / 500000.0 ** (np.arange(0, 64, 2) / 64)
    scaled = model.model.rotary_emb.inv_freq.numpy()
    factors = (plain / scaled).astype(np.float32)
    path = write_gguf(tmp_path / "a.gguf", model, "llama", extra={"rope_freqs.weight": factors})
    got = open_model(path).config.rope_parameters
    assert got == scaling
    odd = {"rope_freqs.weight": factors * np.linspace(1, 2, 32, dtype=np.float32)}
    path = write_gguf(tmp_path / "b.gguf", model, "llama", extra=odd)
    with pytest.raises(FrontendError, match="factors of Llama 3's rope scaling"):
        open_model(path)


def excerpt(path: Path, whole: Path, layers: tuple[int, ...], vocab_size: int) -> Path:
    """A file of some layers and the first rows of the embedding, bytes as in the whole file."""
    header = read_header(whole)
    changed: dict[str, Any] = {"llama.block_count": 2, "llama.vocab_size": vocab_size}
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in header.metadata.items():
        if key.startswith("llama.") and isinstance(value, (int, float)):
            add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
            add(key, changed.get(key, value))
    for name, tensor in header.tensors.items():
        parts = name.split(".")
        if parts[0] == "blk" and int(parts[1]) not in layers:
            continue
        parts[1] = str(layers.index(int(parts[1]))) if parts[0] == "blk" else parts[1]
        kind = gguf.GGMLQuantizationType[tensor.dtype.upper()]
        raw: NDArray[Any] = header.raw(name).reshape(tensor.shape[0], -1)
        if kind == gguf.GGMLQuantizationType.F32:
            raw = raw.reshape(-1).view(np.float32)
        rows = raw[:vocab_size] if name == "token_embd.weight" else raw
        writer.add_tensor(".".join(parts), rows, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_smollm2_weights_equal_what_transformers_loads(smollm2_gguf: Path, tmp_path: Path) -> None:
    """Two of its layers, so that transformers takes a second and not a minute."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path = excerpt(tmp_path / "excerpt.gguf", smollm2_gguf, layers=(0, 29), vocab_size=512)
    files = open_model(path)
    with torch.device("meta"):
        shell = AutoModelForCausalLM.from_config(files.config)  # type: ignore[no-untyped-call]
    loaded = load_gguf_checkpoint(  # type: ignore[no-untyped-call]
        str(path), return_tensors=True, model_to_load=shell
    )
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        assert getattr(files.config, key) == loaded["config"][key]
    expected = loaded["tensors"]
    assert set(files.source.names()) == {*expected, "lm_head.weight"}
    for name, tensor in expected.items():
        got = files.source.read(name)
        values = got.dequantize() if isinstance(got, BlockArray) else got
        np.testing.assert_array_equal(values, tensor.numpy(), err_msg=name)


def test_smollm2_opens(smollm2_gguf: Path) -> None:
    files = open_model(smollm2_gguf)
    kinds = Counter(files.source.info(name).dtype for name in files.source.names())
    assert kinds == {"q4_1": 210, "q8_0": 2, "f32": 61}  # two names for one embedding
    assert files.config.max_position_embeddings == 8192
    assert files.config.rms_norm_eps == 1e-5
    assert files.config.rope_parameters == {"rope_type": "default", "rope_theta": 100000.0}

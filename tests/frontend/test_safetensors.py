"""Hugging Face folders: exact numbers from every float type, and one sentence for each fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from sglk.errors import FrontendError
from sglk.frontend.hf import check_is_causal, load_hf
from sglk.frontend.model_files import open_model
from sglk.frontend.safetensors_source import open_weights
from transformers import AutoConfig, PreTrainedModel


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Callable[..., PreTrainedModel]) -> Path:
    tiny_model("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def shards_of(folder: Path) -> dict[str, str]:
    places: dict[str, str] = json.loads(index_of(folder).read_text())["weight_map"]
    return places


def index_of(folder: Path) -> Path:
    return folder / "model.safetensors.index.json"


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_saved_model_comes_back(folder: Path, tiny_model: Callable[..., PreTrainedModel]) -> None:
    files = open_model(folder)
    state = tiny_model("llama").state_dict()
    assert files.name == "model" and files.config.hidden_size == 64
    assert files.tokenizer is None
    assert set(files.source.names()) == set(state)
    for name, tensor in state.items():
        np.testing.assert_array_equal(files.source.read(name), tensor.numpy())


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.float32, "f32"), (torch.float16, "f16"), (torch.bfloat16, "bf16")]
)
def test_every_float_type_is_read_exactly(dtype: torch.dtype, name: str, tmp_path: Path) -> None:
    bits = torch.arange(-(2**15), 2**15).to(torch.int16)
    values = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    tensors = {"w": values} if name == "f32" else {"w": values, "all": bits.view(dtype)}
    save_file(tensors, tmp_path / "model.safetensors")
    source = open_weights(tmp_path)
    assert source.info("w").dtype == name and source.info("w").shape == (7, 5)
    for key, tensor in tensors.items():
        np.testing.assert_array_equal(source.read(key), tensor.float().numpy())


def test_shards_are_read(folder: Path, tmp_path: Path, tiny_model: Callable[..., Any]) -> None:
    sharded = tmp_path / "sharded"
    tiny_model("llama").save_pretrained(sharded, max_shard_size="100KB")
    whole, parts = open_model(folder).source, open_model(sharded).source
    assert len(set(shards_of(sharded).values())) > 1
    assert set(whole.names()) == set(parts.names())
    for name in whole.names():
        np.testing.assert_array_equal(whole.read(name), parts.read(name))
    gone = sorted(set(shards_of(sharded).values()))[1]
    (sharded / gone).unlink()
    with pytest.raises(FrontendError, match=rf"shards, got no {gone} \(the download"):
        open_model(sharded)


def test_a_wrong_index_is_refused(tmp_path: Path, tiny_model: Callable[..., Any]) -> None:
    tiny_model("llama").save_pretrained(tmp_path, max_shard_size="100KB")
    places = shards_of(tmp_path)
    edit_json(index_of(tmp_path), weight_map=places | {"model.extra": places["lm_head.weight"]})
    with pytest.raises(FrontendError, match=r"in its shard, got none of model\.extra"):
        open_model(tmp_path)
    edit_json(index_of(tmp_path), weight_map=places | {"lm_head.weight": "../../etc/passwd"})
    with pytest.raises(FrontendError, match="expected file names, got"):
        open_model(tmp_path)
    index_of(tmp_path).write_text("{")
    with pytest.raises(FrontendError, match="expected a JSON file"):
        open_model(tmp_path)


def test_a_tied_head_is_an_alias_of_the_embedding(
    tmp_path: Path, tiny_model: Callable[..., PreTrainedModel]
) -> None:
    tiny_model("llama", tie_word_embeddings=True).save_pretrained(tmp_path)
    source = open_model(tmp_path).source
    assert source.info("lm_head.weight").alias_of == "model.embed_tokens.weight"
    embedding = source.read("model.embed_tokens.weight")
    np.testing.assert_array_equal(source.read("lm_head.weight"), embedding)


def test_a_head_that_comes_before_its_embedding_is_found_under_the_stored_name(
    tmp_path: Path, tiny_model: Callable[..., PreTrainedModel]
) -> None:
    model = tiny_model("camembert", is_decoder=True, pad_token_id=1)
    model.save_pretrained(tmp_path)
    captured = load_hf(tmp_path)
    (head,) = (v.name for v in captured.graph.params if v.name == "lm_head.decoder.weight")
    assert captured.weights.info(head).alias_of == "roberta.embeddings.word_embeddings.weight"
    wanted = model.state_dict()[head].numpy()
    np.testing.assert_array_equal(captured.weights.read(head), wanted)


def test_folders_that_are_no_model_are_refused(folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FrontendError, match=r"empty: expected a .* folder, got one without config"):
        open_model(empty)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(FrontendError, match=r"got pytorch_model\.bin \(save the model"):
        open_model(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(FrontendError, match="got no weights"):
        open_model(folder)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("not json", "expected a JSON file"),
        ("[]", "expected a JSON object, got list"),
        ('{"hidden_size": 4}', "expected a config that transformers knows"),
        ('{"model_type": "nonsense"}', "expected a config that transformers knows"),
        ('{"model_type": "llama", "hidden_size": "big"}', "expected a config that"),
    ],
)
def test_a_wrong_config_is_refused(folder: Path, content: str, sentence: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(FrontendError, match=sentence):
        open_model(folder)


def test_other_types_are_refused_by_name(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(2, dtype=torch.float64), "b": torch.zeros(2, dtype=torch.int16)}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(FrontendError, match=r"expected tensors of F32, F16, .*, got F64, I16"):
        open_weights(tmp_path)


def test_integers_and_small_floats_are_read_as_they_lie(tmp_path: Path) -> None:
    bits = torch.arange(6, dtype=torch.uint8)
    tensors = {
        "i8": bits.view(torch.int8),
        "u8": bits,
        "i32": torch.tensor([[-(2**31), 5]], dtype=torch.int32),
        "i64": torch.tensor([2**40]),
        "bool": torch.tensor([True, False]),
        "e4m3": bits.view(torch.float8_e4m3fn),
        "e5m2": bits.view(torch.float8_e5m2),
        "e8m0": bits.view(torch.float8_e8m0fnu),
    }
    save_file({n: t.clone() for n, t in tensors.items()}, tmp_path / "model.safetensors")
    source = open_weights(tmp_path)
    for name, tensor in tensors.items():
        assert source.info(name).dtype == name
        wanted = bits if name.startswith("e") else tensor
        np.testing.assert_array_equal(source.stored(name), wanted.numpy())
        if not name.startswith("e"):
            np.testing.assert_array_equal(source.read(name), tensor.numpy())
    with pytest.raises(FrontendError, match="e4m3: expected scales that config"):
        source.read("e4m3")


def test_integers_do_not_pass_for_weights(folder: Path, tiny_model: Callable[..., Any]) -> None:
    state = {n: t.clone() for n, t in tiny_model("llama").state_dict().items()}
    name = "model.layers.0.mlp.up_proj.weight"
    state[name] = state[name].mul(100).to(torch.int8)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(FrontendError, match=rf"expected floats, .*got {name} of i8"):
        load_hf(folder)


def test_every_truncation_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for length in [*range(0, 4000, 131), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(FrontendError, match=r"model\.safetensors: .*expected"):
            open_weights(folder)


def with_header(path: Path, header: object) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
    return path.parent


@pytest.mark.parametrize(
    "header",
    [
        [],
        {"w": 3},
        {"w": {"dtype": "F32"}},
        {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
        {"w": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}},
        {"w": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 16]}},
        {"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}},
        {"w": {"dtype": "F32", "shape": ["2"], "data_offsets": [0, 8]}},
    ],
)
def test_a_wrong_header_is_refused(tmp_path: Path, header: object) -> None:
    with pytest.raises(FrontendError, match=r"model\.safetensors: .*damaged"):
        open_weights(with_header(tmp_path / "model.safetensors", header))


@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(edits=st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_mutated_file_opens_or_is_refused(tmp_path: Path, edits: list[tuple[int, int]]) -> None:
    path = tmp_path / "model.safetensors"
    save_file({f"layer.{i}": torch.ones(3, 4) for i in range(4)}, path)
    content = bytearray(path.read_bytes())
    for position, value in edits:
        content[position % len(content)] = value
    path.unlink()
    path.write_bytes(content)
    try:
        source = open_weights(tmp_path)
    except FrontendError:
        return
    for name in source.names():
        source.read(name)


def test_a_decoder_whose_class_has_a_name_of_another_kind_is_a_language_model() -> None:
    config = AutoConfig.for_model("bert-generation", architectures=["BertGenerationDecoder"])
    check_is_causal(config, "here")
    config.architectures = ["BertGenerationEncoder"]
    with pytest.raises(FrontendError, match="here: expected a causal language model, got Bert"):
        check_is_causal(config, "here")

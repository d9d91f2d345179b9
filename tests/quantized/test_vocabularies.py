"""Quantized heads and embeddings, tables longer than the vocabulary, and tokens beyond it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import sglk
import torch
from safetensors.torch import load_file, save_file
from sglk.errors import FrontendError, RequestError
from sglk.frontend.model_files import open_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers.convert_slow_tokenizer import bytes_to_unicode

BYTES = list(bytes_to_unicode().values())  # type: ignore[no-untyped-call]
ROWS, FAR = 328, 5000
"""The table's rows: more than the 256 bytes and a special token, and no multiple of 64."""


def write_tokenizer(folder: Path) -> None:
    """Bytes, an end token, and a token that the model has no row for."""
    vocab = {b: i for i, b in enumerate(BYTES)} | {"</s>": 256, "<far>": FAR}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("</s>"), AddedToken("<far>")])
    tokenizer.save(str(folder / "tokenizer.json"))


def greedy(model: Any, ids: list[int], count: int) -> list[int]:
    found = model.generate(
        torch.tensor([ids]), max_new_tokens=count, do_sample=False, eos_token_id=None
    )
    return list(found[0, len(ids) :].tolist())


def test_a_quantized_head_of_a_padded_table(
    writers: Any, formats: dict[str, Any], tmp_path: Path
) -> None:
    kind = dataclasses.replace(formats["awq"], plain=("none",))
    model = writers.write_checkpoint(
        tmp_path / "m", kind, vocab_size=ROWS, bos_token_id=None, eos_token_id=256
    )
    write_tokenizer(tmp_path / "m")
    made = sglk.compile(tmp_path / "m", output=tmp_path / "m.sglk", dtype="fp32", selftest=False)
    assert made.report["weights"]["forms"]["i4_g64_f16_z"]["count"] == 5  # qkv, o, gate-up, down
    llm = sglk.load(made.path)
    prompts = ["hello world", "a", "quantized heads"]
    found = llm.generate(prompts, max_tokens=24, ignore_eos=True)
    answers = [list(answer.token_ids) for answer in found]
    assert llm.tokenizer is not None
    ids = [llm.tokenizer.encode(text, context=99) for text in prompts]
    assert answers == [greedy(model, each, 24) for each in ids]
    assert any(token > 256 for answer in answers for token in answer), (
        "no row without a token was met"
    )
    with pytest.raises(RequestError, match=rf"expected ids in \[0, {ROWS}\), got {FAR}"):
        llm.generate("so <far> away", max_tokens=2)


def test_a_quantized_table_that_is_the_head_too(
    writers: Any, formats: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    model = writers.write_checkpoint(folder, formats["fp8-tensor"], tie_word_embeddings=True)
    tensors = load_file(folder / "model.safetensors")
    name = "model.embed_tokens.weight"
    small, scale = (tensors[name] * 64).to(torch.float8_e4m3fn), torch.tensor(1.3 / 64)
    save_file(tensors | {name: small, f"{name}_scale": scale}, folder / "model.safetensors")
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(small.float() * scale)
    made = sglk.compile(folder, output=tmp_path / "m.sglk", dtype="fp32", selftest=False)
    assert set(made.report["weights"]["forms"]) == {"e4m3_row_f32"}
    ids = [5, 90, 17, 44]
    found = sglk.load(made.path).generate(ids, max_tokens=16, ignore_eos=True)
    assert list(found.token_ids) == greedy(model, ids, 16)


def test_a_head_quantized_apart_from_a_tied_table_is_refused(
    writers: Any, formats: dict[str, Any], tmp_path: Path
) -> None:
    kind = dataclasses.replace(formats["awq"], plain=("none",))
    writers.write_checkpoint(tmp_path / "m", kind, vocab_size=ROWS)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    with pytest.raises(FrontendError, match=r"expected no quantized head, .*of i4_g64_f16_z"):
        open_model(tmp_path / "m")

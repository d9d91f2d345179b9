"""Tokenizer files of a Hugging Face folder: copied or converted, with eos, bos and template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sglk.errors import FrontendError
from sglk.frontend.tokenizer_files import TokenizerFiles, tokenizer_from_folder
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from transformers.convert_slow_tokenizer import bytes_to_unicode

BYTES = list(bytes_to_unicode().values())  # type: ignore[no-untyped-call]
VOCAB = {token: index for index, token in enumerate([*BYTES, "ab"])}


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def byte_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=VOCAB, merges=[("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken("<s>"), AddedToken("</s>"), AddedToken("<|end|>")])
    return tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    write(tmp_path / "config.json", {"model_type": "llama", "bos_token_id": 257})
    return tmp_path


def files_of(folder: Path) -> TokenizerFiles:
    files = tokenizer_from_folder(folder)
    assert files is not None
    return files


def test_a_tokenizer_json_is_copied(folder: Path) -> None:
    files = files_of(folder)
    assert files.tokenizer_json == (folder / "tokenizer.json").read_bytes()
    assert files.chat_template is None
    expected = {"eos_token_ids": [], "bos_token_id": 257, "add_bos": False, "defaults": {}}
    assert files.generation == expected


def test_a_folder_without_tokenizer_gives_none(tmp_path: Path) -> None:
    assert tokenizer_from_folder(tmp_path) is None


def test_end_tokens_come_from_every_file(folder: Path) -> None:
    write(folder / "config.json", {"eos_token_id": 258, "bos_token_id": None})
    assert files_of(folder).generation["eos_token_ids"] == [258]
    write(folder / "generation_config.json", {"eos_token_id": [258, 259], "bos_token_id": 257})
    assert files_of(folder).generation["eos_token_ids"] == [258, 259]
    write(folder / "generation_config.json", {"eos_token_id": 258})
    write(folder / "tokenizer_config.json", {"eos_token": {"content": "<|end|>"}})
    assert files_of(folder).generation["eos_token_ids"] == [258, 259]
    write(folder / "tokenizer_config.json", {"eos_token": "<|end|>", "bos_token": "<s>"})
    write(folder / "generation_config.json", {})
    write(folder / "config.json", {})
    generation = files_of(folder).generation
    assert (generation["eos_token_ids"], generation["bos_token_id"]) == ([259], 257)


def test_bos_is_added_when_the_post_processor_does(folder: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 257)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    assert files_of(folder).generation["add_bos"] is True


def test_truncation_and_padding_of_training_are_dropped(folder: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8, pad_id=0, pad_token="<s>")
    tokenizer.save(str(folder / "tokenizer.json"))
    ours = Tokenizer.from_buffer(files_of(folder).tokenizer_json)
    assert len(ours.encode("x" * 20).ids) == 20 and len(ours.encode("x").ids) == 1


def test_chat_templates(folder: Path) -> None:
    named = [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]
    write(folder / "tokenizer_config.json", {"chat_template": named})
    assert files_of(folder).chat_template == "D"
    write(folder / "tokenizer_config.json", {"chat_template": "T"})
    assert files_of(folder).chat_template == "T"
    (folder / "chat_template.jinja").write_text("J\n")
    assert files_of(folder).chat_template == "J\n"


def test_sampling_defaults_count_only_when_sampling_is_the_default(folder: Path) -> None:
    chosen = {"temperature": 0.6, "top_p": 0.9, "top_k": 50, "max_length": 20}
    write(folder / "generation_config.json", chosen | {"do_sample": True})
    expected = {"temperature": 0.6, "top_p": 0.9, "top_k": 50}
    assert files_of(folder).generation["defaults"] == expected
    write(folder / "generation_config.json", chosen)
    assert files_of(folder).generation["defaults"] == {}


def test_vocabulary_and_merges_are_converted(tmp_path: Path) -> None:
    write(tmp_path / "config.json", {"model_type": "gpt2"})
    write(tmp_path / "tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer"})
    write(tmp_path / "vocab.json", VOCAB | {"<|endoftext|>": 257})
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    ours = Tokenizer.from_buffer(files_of(tmp_path).tokenizer_json)
    assert ours.encode("ab<|endoftext|>").ids == [256, 257]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("tokenizer.json", "{", r"tokenizer\.json: expected a JSON file"),
        ("tokenizer.json", "{}", r"tokenizer\.json: expected a tokenizer\.json, got"),
        (
            "tokenizer_config.json",
            "[1]",
            r"tokenizer_config\.json: expected a JSON object, got list",
        ),
        ("generation_config.json", "\x00", r"generation_config\.json: expected a JSON file"),
    ],
)
def test_malformed_files_are_refused(folder: Path, name: str, content: str, sentence: str) -> None:
    (folder / name).write_text(content)
    with pytest.raises(FrontendError, match=sentence):
        tokenizer_from_folder(folder)


def test_a_tokenizer_that_does_not_convert_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "config.json", {"model_type": "llama"})
    (tmp_path / "tokenizer.model").write_bytes(b"no sentencepiece model")
    with pytest.raises(FrontendError, match="expected a tokenizer that converts"):
        tokenizer_from_folder(tmp_path)

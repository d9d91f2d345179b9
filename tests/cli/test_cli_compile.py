"""``sglk compile``: its output, and bad models, options, outputs and compilers."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import resource
import shutil
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sglk.frontend
from safetensors.numpy import load_file, save_file
from sglk import driver, knobs
from sglk.runtime.selftest import CaseResult
from sglk.targets.tilec import compiler

Refusal = Callable[..., str]
Compile = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tiny_llama_folder: Path, tmp_path: Path) -> Path:
    """A copy of the tiny Llama to spoil."""
    return Path(shutil.copytree(tiny_llama_folder, tmp_path / "spoilt"))


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """The C++ compiler is looked for anew, before and after."""
    compiler.find_compiler.cache_clear()
    yield
    compiler.find_compiler.cache_clear()


def refuse_model(refusal: Refusal, model: object, *options: object) -> str:
    """The sentence for a model that cannot be compiled; nothing may appear at the output."""
    output = Path(str(model)).parent / "out"
    output.mkdir(exist_ok=True)
    sentence = refusal("compile", model, "-o", output / "model.sglk", "-q", *options)
    assert list(output.iterdir()) == []
    return sentence


def change_weights(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


UP = "model.layers.1.mlp.up_proj.weight"


def test_nothing_there(refusal: Refusal, tmp_path: Path) -> None:
    assert "no such path" in refuse_model(refusal, tmp_path / "none")


def test_an_empty_folder(refusal: Refusal, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    sentence = refuse_model(refusal, tmp_path / "empty")
    assert "empty: expected a Hugging Face folder, got one without config.json" in sentence


def test_an_empty_path(refusal: Refusal) -> None:
    assert "model: expected a path, got an empty text" in refusal("compile", "")
    assert "--output: expected a path, got an empty text" in refusal("compile", "x", "-o", "")


@pytest.mark.parametrize("name", ["notes.txt", "notes.gguf"])
def test_a_text_file(refusal: Refusal, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("hello")
    sentence = refuse_model(refusal, tmp_path / name)
    assert f"{name}: expected a GGUF file, got one that starts with b'hell'" in sentence


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ("{", "config.json: expected a JSON file, got"),
        ("[]", "config.json: expected a JSON object, got list"),
        ('{"model_type": "wombat"}', "expected a config that transformers knows, got: The check"),
    ],
)
def test_a_bad_config(refusal: Refusal, folder: Path, config: str, sentence: str) -> None:
    (folder / "config.json").write_text(config)
    assert sentence in refuse_model(refusal, folder)


def test_a_config_with_a_wrong_value(refusal: Refusal, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_attention_heads": 5}))
    sentence = refuse_model(refusal, folder)
    assert "hidden size (64) is not a multiple of the number of attention heads (5)" in sentence


def test_no_weights(refusal: Refusal, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "expected model.safetensors or" in refuse_model(refusal, folder)


def test_truncated_weights(refusal: Refusal, folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-1000])
    assert "the file is damaged or its download incomplete" in refuse_model(refusal, folder)


def test_a_missing_tensor(refusal: Refusal, folder: Path) -> None:
    change_weights(folder, lambda weights: weights.pop(UP))
    assert f"got: {UP} is missing" in refuse_model(refusal, folder)


def test_a_wrong_shape(refusal: Refusal, folder: Path) -> None:
    change_weights(folder, lambda w: w.update({UP: np.zeros((95, 64), np.float32)}))
    sentence = refuse_model(refusal, folder)
    assert f"got: {UP} has shape [95, 64] instead of [96, 64]" in sentence


def test_a_bad_tokenizer(refusal: Refusal, folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    assert "tokenizer.json: expected a tokenizer.json, got" in refuse_model(refusal, folder)


def test_an_unknown_gguf_type(refusal: Refusal, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "odd.gguf", kind=16)  # IQ2_XXS
    sentence = refuse_model(refusal, path)
    assert "odd.gguf: expected tensors of" in sentence and "got iq2_xxs" in sentence


def test_a_truncated_gguf(refusal: Refusal, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "cut.gguf", kind=0, missing=100)
    sentence = refuse_model(refusal, path)
    assert "w: expected its 1024 bytes inside the file" in sentence
    path.write_bytes(path.read_bytes()[:30])
    assert "(the file is damaged or incomplete)" in refuse_model(refusal, path)


def write_gguf(path: Path, kind: int, missing: int = 0) -> Path:
    """One tensor of 256 elements with this type number, `missing` bytes short."""
    data = struct.pack("<4sIQQQ1sIQIQ", b"GGUF", 3, 1, 0, 1, b"w", 1, 256, kind, 0)
    path.write_bytes(data.ljust(-(-len(data) // 32) * 32, b"\0") + bytes(1024 - missing))
    return path


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--target", "abacus", "--target: expected one of cpu, cuda, kunlun, got 'abacus'"),
        ("--dtype", "fp7", "--dtype: expected one of bf16, fp16, fp32, "),
        ("--quant", "q2", "--quant: expected one of keep, none, got 'q2'"),
        ("--kv-dtype", "int4", "--kv-dtype: expected one of f16, bf16, f32, got 'int4'"),
        ("--cpu-isa", "z80", "--cpu-isa: expected names among native, "),
        ("--cpu-isa", "", "--cpu-isa: expected names among native, "),
    ],
)
def test_unknown_options(
    refusal: Refusal, tiny_llama_folder: Path, option: str, value: str, sentence: str
) -> None:
    assert sentence in refuse_model(refusal, tiny_llama_folder, option, value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--round-weights",), "--round-weights: expected --activations bf16 or int8, got f32"),
        (("--dtype", "fp32", "--activations", "bf16"), "--activations: expected f32 with --dtype"),
        (("--activations", "fp4"), "--activations: expected one of f32, bf16, int8, got 'fp4'"),
    ],
)
def test_options_that_do_not_go_together(
    refusal: Refusal, tiny_llama_folder: Path, options: tuple[str, ...], sentence: str
) -> None:
    assert sentence in refuse_model(refusal, tiny_llama_folder, *options)


def test_unwritable_outputs(refusal: Refusal, tiny_llama_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for output, sentence in (
        (tmp_path / "none" / "x.sglk", "x.sglk: the folder does not exist"),
        (tmp_path / "file" / "x.sglk", "x.sglk: the folder does not exist"),
        (tmp_path, ": something is in the way (remove it, or choose another output)"),
    ):
        assert sentence in refusal("compile", tiny_llama_folder, "-o", output)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission(refusal: Refusal, tiny_llama_folder: Path, tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    sentence = refusal("compile", tiny_llama_folder, "-o", tmp_path / "x.sglk")
    assert "no permission to write here" in sentence


@pytest.mark.usefixtures("fresh_compiler")
def test_no_compiler_is_refused_before_the_capture(
    refusal: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sglk.frontend, "load_model", None)
    sentence = refusal("compile", tmp_path, "-o", tmp_path / "x.sglk")
    assert "expected a C++ compiler, got none on PATH (install g++ or clang++" in sentence


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("command", ["/none/g++", "false", "'g++"])
def test_a_compiler_that_is_none(
    refusal: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("CXX", command)
    assert "CXX: expected a" in refusal("compile", tmp_path, "-o", tmp_path / "x.sglk")


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiler_that_fails(
    compile_tiny: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "broken-g++"
    script.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo g++ 1 || { echo error: no >&2; false; }'
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    with knobs.override(cache=str(tmp_path / "cache")):
        status, _, err = compile_tiny("-o", tmp_path / "x.sglk", "-q")
    assert status == 1
    assert "broken-g++ to succeed, got status 1" in err and "error: no" in err
    assert not (tmp_path / "x.sglk").exists()
    kept = {path.suffix for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert kept <= {".ttir", ".h"}, "only text that was made before a compiler ran"


def test_summary_and_stages(compile_tiny: Compile, tmp_path: Path) -> None:
    status, out, err = compile_tiny("-o", tmp_path / "x.sglk")
    assert status == 0
    assert "packing weights: " in err
    for line in (
        r"x\.sglk: \d+\.\d kB",
        r"  weights      159\.0 kB \(the source holds 316\.7 kB\)",
        r"  step memory  [\d.]+ kB for tokens=512, rows=1",
        r"  self-test    5 passed, largest relative error \d\.\de-\d\d \(at most 0\.01\)",
        r"  compiled in  [\d.]+ s \(capture [\d.]+, passes",
        r"  peak memory  [\d.]+ [MG]B",
    ):
        assert re.search(line, out), out


def test_quiet_prints_nothing(compile_tiny: Compile, tmp_path: Path) -> None:
    assert compile_tiny("-o", tmp_path / "x.sglk", "-q", "--no-selftest") == (0, "", "")


def test_disk_full_leaves_the_old_artifact(compile_tiny: Compile, tmp_path: Path) -> None:
    output = tmp_path / "x.sglk"
    output.write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
    try:
        status, _, err = compile_tiny("-o", output, "-q")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert status == 1
    assert "x.sglk: the file system takes no file of this size" in err
    assert [p.name for p in tmp_path.iterdir()] == ["x.sglk"] and output.read_text() == "old"


def test_a_failed_self_test_removes_the_artifact(
    compile_tiny: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = [CaseResult("decode", 0.5, 0.01)]
    monkeypatch.setattr("sglk.runtime.selftest.run_selftest", lambda artifact, device: wrong)
    status, _, err = compile_tiny("-o", tmp_path / "x.sglk", "-q")
    assert status == 1 and list(tmp_path.iterdir()) == []
    assert "self-test: decode: expected an error of at most 0.01, got 0.5" in err


@pytest.mark.parametrize("stage", ["run_selftest", "write_artifact"])
def test_interrupt_leaves_nothing(
    compile_tiny: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    home = {"run_selftest": "sglk.runtime.selftest", "write_artifact": "sglk.targets.assemble"}
    monkeypatch.setattr(f"{home[stage]}.{stage}", interrupt)
    status, _, err = compile_tiny("-o", tmp_path / "x.sglk", "-q")
    assert status == 130 and err.strip() == "sglk-compile: interrupted"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named(refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    def slim(*args: object, **kwargs: object) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(sglk.frontend, "load_model", slim)
    sentence = refusal("compile", "model.gguf", "-q")
    assert "expected the package torch, got none (pip install 'sglk[compile]'" in sentence


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("models/Qwen3-0.6B", "Qwen3-0.6B"),
        ("models/Qwen3-0.6B/", "Qwen3-0.6B"),
        ("tiny.Q4_1.gguf", "tiny.Q4_1"),
        (".", Path.cwd().name),
    ],
)
def test_default_name_of_the_output(model: str, name: str) -> None:
    assert driver._name(model) == name

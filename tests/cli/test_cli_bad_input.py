"""Bad input to run, show, verify, bench and opt: one sentence, exit status 1, no traceback."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sglk.errors import ArtifactError
from sglk.runtime.selftest import CaseResult

Cli = Callable[..., tuple[int, str, str]]
Refusal = Callable[..., str]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--temperature", "-1"], "--temperature: expected a number >= 0, got -1.0"),
        (["--temperature", "nan"], "--temperature: expected a number >= 0, got nan"),
        (["--top-p", "0"], r"--top-p: expected a number in (0, 1], got 0.0"),
        (["--top-k", "-5"], "--top-k: expected a whole number >= 0, got -5"),
        (["--min-p", "2"], "--min-p: expected a number in [0, 1], got 2.0"),
        (["--repetition-penalty", "0"], "--repetition-penalty: expected a number > 0, got 0.0"),
        (["--max-tokens", "0"], "--max-tokens: expected a whole number >= 1, got 0"),
        (["--seed", "-1"], "--seed: expected a whole number in"),
        (["--stop", ""], "--stop: expected texts of 1 to"),
        (["--threads", "0"], "num_threads: expected a whole number >= 1, got 0"),
        (["--device", "abacus"], "target: expected one of ['cpu'"),
    ],
)
def test_invalid_option_of_run(
    refusal: Refusal, tiny_artifact: Path, options: list[str], sentence: str
) -> None:
    assert sentence in refusal("run", tiny_artifact, "hello", *options)


@pytest.mark.parametrize("prompt", ["", " \n"])
def test_empty_prompt(refusal: Refusal, tiny_artifact: Path, prompt: str) -> None:
    assert "prompt: expected text, got an empty prompt" in refusal("run", tiny_artifact, prompt)


def test_prompt_longer_than_the_context(refusal: Refusal, tiny_artifact: Path) -> None:
    sentence = refusal("run", tiny_artifact, "word " * 60)
    assert "prompt: expected fewer tokens than the context of 256, got 3" in sentence


def test_ten_megabytes_are_refused_before_the_tokenizer_reads_them(
    refusal: Refusal, tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglk.runtime.tokenizer import Tokenizer

    def only_by_length(self: Tokenizer, text: str, context: int) -> bool:
        assert len(text) > context * self._longest_token, "expected a refusal by length alone"
        return True

    monkeypatch.setattr(Tokenizer, "_is_too_long", only_by_length)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"word " * 2_000_000)))
    sentence = refusal("run", tiny_artifact, "-")
    assert "prompt: expected text that fits the context of 256 tokens, got 10000" in sentence


def test_prompt_that_is_no_utf8(
    refusal: Refusal, tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff")))
    sentence = refusal("run", tiny_artifact, "-")
    assert "standard input: expected UTF-8 text, got byte 0xff at position 2" in sentence


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--prompt", "x"], "--prompt: expected a whole number >= 1, got 'x'"),
        (["--new", "0"], "--new: expected a whole number >= 1, got '0'"),
        (["--rounds", "0"], "--rounds: expected a whole number >= 1, got '0'"),
        (["--prompt", "8", "--shared", "8"], "--shared: expected fewer tokens than the prompt"),
        (["--prompt", "4000"], "prompt: expected fewer tokens than the context of 256, got 4000"),
    ],
)
def test_invalid_option_of_bench(
    refusal: Refusal, tiny_artifact: Path, options: list[str], sentence: str
) -> None:
    assert sentence in refusal("bench", tiny_artifact, *options)


@pytest.mark.parametrize("command", ["run", "show", "verify", "bench"])
def test_no_artifact_there(refusal: Refusal, tmp_path: Path, command: str) -> None:
    sentence = refusal(command, tmp_path / "none.sglk")
    assert "none.sglk: cannot open the artifact: No such file or directory" in sentence


def test_a_file_that_is_no_artifact(refusal: Refusal, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    assert "model.gguf: not an sglk artifact, or cut short" in refusal("show", path)
    path.write_bytes(b"")
    assert "model.gguf: not an sglk artifact, or cut short" in refusal("show", path)


def test_a_folder_that_is_no_artifact(refusal: Refusal, tiny_llama_folder: Path) -> None:
    assert "not an sglk artifact (expected a folder with" in refusal("show", tiny_llama_folder)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_truncated_artifact(
    refusal: Refusal, tiny_artifact: Path, tmp_path: Path, share: float
) -> None:
    data = tiny_artifact.read_bytes()
    path = tmp_path / "cut.sglk"
    path.write_bytes(data[: int(len(data) * share)])
    for command in ("show", "run", "verify"):
        assert "cut.sglk: not an sglk artifact, or cut short" in refusal(command, path)


@pytest.mark.parametrize(
    "member", ["manifest.json", "programs/step.json", "kernels/", "graph.txt", "tokenizer/"]
)
def test_edited_byte_is_found_at_once(
    refusal: Refusal, edited_byte: Callable[[str], Path], member: str
) -> None:
    path = edited_byte(member)
    for command in ("show", "run", "verify"):
        assert "the file is damaged or edited" in refusal(command, path)


def test_edited_byte_in_weights_is_found_by_verify(
    refusal: Refusal, edited_byte: Callable[[str], Path]
) -> None:
    sentence = refusal("verify", edited_byte("weights/"))
    assert "expected sha256" in sentence and "the file is damaged or edited" in sentence


def test_other_format_version(refusal: Refusal, rewritten: Callable[..., Path]) -> None:
    sentence = refusal("run", rewritten(format=[2, 0]), "hello")
    assert "format 2.0: this sglk reads format 1.x (upgrade sglk)" in sentence


def test_unknown_feature(refusal: Refusal, rewritten: Callable[..., Path]) -> None:
    sentence = refusal("run", rewritten(features=["telepathy"]), "hello")
    assert "needs the feature 'telepathy', which this sglk lacks (upgrade sglk)" in sentence


def test_code_for_another_processor(
    refusal: Refusal, rewritten: Callable[..., Path], tiny_artifact: Path
) -> None:
    from sglk.targets.artifact import Artifact

    with Artifact.open(tiny_artifact) as artifact:
        target = artifact.manifest["target"]
        assert isinstance(target, dict)
        variants = [{**target["variants"][0], "isa": "riscv64"}]
    sentence = refusal("run", rewritten(target={**target, "variants": variants}), "hello")
    assert "expected code for this machine" in sentence and "['riscv64']" in sentence


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("SGLK_DEBUG", "loud", "SGLK_DEBUG: expected a whole number, got 'loud'"),
        ("SGLK_THREADS", "-1", "SGLK_THREADS: expected a whole number, got '-1'"),
        ("SGLK_VERIFY", "maybe", "SGLK_VERIFY: expected one of 0, 1, on, off, true, false"),
        ("SGLK_TURBO", "1", "SGLK_TURBO: no such switch (known: SGLK_CACHE, "),
    ],
)
@pytest.mark.parametrize("command", ["run", "show", "compile"])
def test_malformed_switch(
    refusal: Refusal,
    tiny_artifact: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    variable: str,
    value: str,
    sentence: str,
) -> None:
    monkeypatch.setenv(variable, value)
    assert sentence in refusal(command, tiny_artifact)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "graph.txt: graph text: expected a line 'return ...'"),
        ("hello", "graph.txt: line 1: expected a header 'graph NAME("),
        ("graph g(%x: f32[n]) {\n  %y: f32[n] = wiggle(%x)\n", "graph.txt: line 2: "),
        ("graph g(%x: f32[n]) {\n  %y: f32[m] = silu(%x)\n", "graph.txt: line 2: "),
        ("graph g(%x: f32[n]) {\n\n  return %z\n}\n", "graph.txt: line 3: "),
    ],
)
def test_graph_text_errors_have_line_numbers(
    refusal: Refusal, tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "graph.txt"
    path.write_text(text)
    assert sentence in refusal("opt", path)


def test_opt_without_a_graph(refusal: Refusal, tmp_path: Path) -> None:
    assert "graph: expected a file, or - for standard input" in refusal("opt", "-p", "canonicalize")
    sentence = refusal("opt", tmp_path / "none.txt")
    assert "none.txt: cannot read the graph: No such file or directory" in sentence
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "binary: expected a graph in text form" in refusal("opt", tmp_path / "binary")


@pytest.mark.parametrize(
    ("passes", "sentence"),
    [
        ("speed-up", "pass 'speed-up': expected one of canonicalize, "),
        ("canonicalize{loudness=1}", "pass canonicalize: expected options among"),
        ("", "pipeline: expected at least one pass"),
        ("canonicalize;", "pipeline: expected 'name' or 'name{option=value}'"),
    ],
)
def test_unknown_passes(refusal: Refusal, tmp_path: Path, passes: str, sentence: str) -> None:
    path = tmp_path / "graph.txt"
    path.write_text("graph g(%x: f32[n]) {\n  return %x\n}\n")
    assert sentence in refusal("opt", path, "-p", passes)


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    from sglk.cli import main

    with pytest.raises(ArtifactError, match="cannot open the artifact"):
        main(["show", str(tmp_path / "none.sglk"), "--debug"])


def test_self_test_of_another_form(run_cli: Cli, rewritten: Callable[..., Path]) -> None:
    record = b'{"num_pages": 2, "tolerance": 0.1, "cases": [{"name": "a", "inputs": {}}]}'
    status, _, err = run_cli("verify", rewritten(members={"selftest.json": record}))
    assert status == 1 and err.count("\n") == 1
    assert "selftest.json: case: expected the key 'outputs'" in err


def test_a_self_test_that_fails(
    run_cli: Cli, tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [CaseResult("prefill", 0.001, 0.01), CaseResult("decode", 0.5, 0.01)]
    monkeypatch.setattr("sglk.cli.verify.run_selftest", lambda artifact, **options: results)
    status, out, _ = run_cli("verify", tiny_artifact)
    assert status == 1
    assert "ok   prefill: error 1.00e-03" in out and "FAIL decode: error 5.00e-01" in out

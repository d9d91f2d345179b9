"""Loading: members of the artifact, the page budget, options; and what serving imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
from sglk import runtime
from sglk.errors import ArtifactError, SglkError
from sglk.targets.artifact import FORMAT, ArtifactWriter

PAGE_BYTES = 1000
GENERATION = (
    b'{"eos_token_ids": [1], "bos_token_id": 0, "add_bos": false, "defaults": {"top_p": 0.9}}'
)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch, fake: SimpleNamespace) -> list[Any]:
    """Devices are hash devices; what they were asked for is in the list."""
    calls: list[Any] = []

    class Device:
        name = "hash"

        def load(self, artifact: Any, **asked: Any) -> Any:
            calls.append(asked)
            model = artifact.manifest["model"]
            calls.append(
                fake.HashDevice(asked["num_pages"], 32, asked["max_tokens"], model["vocab_size"])
            )
            return calls[-1]

        def kv_bytes_per_page(self, artifact: Any) -> int:
            return PAGE_BYTES

    def open_device(name: str) -> Device:
        calls.append(name)
        return Device()

    monkeypatch.setattr("sglk.runtime.executor.open_device", open_device)
    return calls


def write(path: Path, members: dict[str, bytes]) -> Path:
    with ArtifactWriter(path) as writer:
        writer.add_bytes("programs/step.json", b"{}")  # the hash device reads no program
        for name, data in members.items():
            writer.add_bytes(f"tokenizer/{name}", data)
        writer.finish(
            {
                "format": FORMAT,
                "features": [],
                "producer": "test",
                "model": {
                    "name": "tiny",
                    "architecture": "none",
                    "vocab_size": 340,
                    "context_length": 100,
                },
                "target": {"name": "cpu", "page_size": 32, "variants": []},
                "programs": {"step": "programs/step.json"},
                "weights": {},
            }
        )
    return path


def test_an_artifact_with_everything(
    tmp_path: Path, loaded: list[Any], byte_level: tokenizers.Tokenizer
) -> None:
    members = {
        "tokenizer.json": byte_level.to_str().encode(),
        "chat_template.jinja": b"{{ messages[0].content }}{{ eos_token }}",
        "generation.json": GENERATION,
    }
    with runtime.load(write(tmp_path / "a.sglk", members)) as llm:
        assert loaded[:2] == ["cpu", {"num_pages": 257, "max_tokens": 512, "num_threads": None}]
        assert llm.recommended == {"top_p": 0.9}
        assert llm.chat_ids([{"role": "user", "content": "hello"}])[-1] == 1
        found = llm.generate("hello", max_tokens=None)
        assert found.finish_reason in ("stop", "length") and found.text
        assert found.num_prompt_tokens + len(found.token_ids) <= 100
    assert llm.engine._executor.executable.is_closed  # type: ignore[attr-defined]


def test_an_artifact_without_a_tokenizer_takes_ids(tmp_path: Path, loaded: list[Any]) -> None:
    with runtime.load(write(tmp_path / "a.sglk", {}), device="other") as llm:
        assert loaded[0] == "other"
        assert len(llm.generate([1, 2], max_tokens=3).token_ids) == 3


def test_the_budget_sets_the_pages(tmp_path: Path, loaded: list[Any]) -> None:
    path = write(tmp_path / "a.sglk", {})
    options: dict[str, Any] = {
        "kv_memory": 5 * PAGE_BYTES + 1,
        "max_step_tokens": 8,
        "num_threads": 2,
    }
    with runtime.load(path, max_context=50, **options) as llm:
        assert loaded[1] == {"num_pages": 5, "max_tokens": 8, "num_threads": 2}
        assert llm.engine.limits.max_context == 50
        assert llm.engine.limits.max_running == 8
    with pytest.raises(SglkError, match=r"kv_memory: expected at least 2000 bytes .*, got 1999"):
        runtime.load(path, kv_memory=1999)


@pytest.mark.parametrize("option", ["kv_memory", "max_step_tokens", "max_running", "max_context"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "4", True])
def test_invalid_options_are_refused(tmp_path: Path, option: str, value: Any) -> None:
    with pytest.raises(SglkError, match=f"{option}: expected a whole number >= 1, got"):
        runtime.load(tmp_path / "nothing.sglk", **{option: value})


def test_damaged_members_are_refused(tmp_path: Path, loaded: list[Any]) -> None:
    for name, message in (
        ("generation.json", "generation.json: expected JSON"),
        ("tokenizer.json", "tokenizer.json: expected a tokenizer"),
    ):
        with pytest.raises(ArtifactError, match=message):
            runtime.load(write(tmp_path / f"{name}.sglk", {name: b"{"}))
    assert loaded[-1].is_closed, "the device was kept although loading failed"


def test_a_file_that_is_no_artifact_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.sglk"
    path.write_bytes(b"not a zip")
    with pytest.raises(ArtifactError):
        runtime.load(path)


def test_importing_the_runtime_is_light() -> None:
    """No NumPy, no tokenizers, no jinja2 before something is used; no compiler at all."""
    code = (
        "import sys, time; start = time.perf_counter(); import sglk.runtime; "
        "print(time.perf_counter() - start, *sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, *modules = run.stdout.split()
    assert float(seconds) < 0.3
    assert not {"numpy", "tokenizers", "jinja2"} & set(modules)


def test_serving_loads_no_compiler() -> None:
    code = "import sys, sglk.runtime; sglk.runtime.load; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(run.stdout.split())
    heavy = {"torch", "triton", "sympy", "transformers", "onnx", "sglk.ir", "sglk.passes"}
    assert not heavy & modules


def test_every_name_resolves() -> None:
    for name in runtime.__all__:
        assert getattr(runtime, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        runtime.nothing  # noqa: B018

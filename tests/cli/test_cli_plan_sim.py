"""`sglk plan` and `sglk sim`: tables, JSON, and refusals in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Refusal = Callable[..., str]
RunCli = Callable[..., tuple[int, str, str]]


def test_plan_prints_the_table(run_cli: RunCli, tiny_artifact: Path) -> None:
    status, out, _ = run_cli("plan", tiny_artifact, "--memory", "180MiB", "--max-running", "3")
    assert status == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:5]] == [
        "weights",
        "intermediate",
        "logits",
        "host",
        "pages",
    ]
    assert "side by side   tokens each (prompt and answer)" in lines
    assert lines[-2:] == ["        128    3", "        256    3"]


def test_plan_as_json_holds_the_same(run_cli: RunCli, tiny_artifact: Path) -> None:
    status, out, _ = run_cli("plan", tiny_artifact, "--memory", "180 MiB", "--json")
    record = json.loads(out)
    assert status == 0 and record["memory"] == 180 * 2**20
    assert record["by_concurrency"][0] == {"requests": 1, "tokens": 256}
    assert record["num_tokens"] == (record["num_pages"] - 1) * record["page_size"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--memory", "lots"], "--memory: expected a size such as 32GiB or 512MiB, got 'lots'"),
        (["--memory", "1MB"], "memory: expected at least"),
        (["--memory", "1GB", "--max-running", "0"], "--max-running: expected a whole number >= 1"),
    ],
)
def test_plan_refuses_in_a_sentence(
    refusal: Refusal, tiny_artifact: Path, arguments: list[str], message: str
) -> None:
    assert message in refusal("plan", tiny_artifact, *arguments)

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


STEPS = [
    {
        "started": 0,
        "seconds": 0.01 + 0.002 * rows + 0.0005 * tokens,
        "device_seconds": 0,
        "load": {
            "prefill_tokens": tokens,
            "decode_rows": rows,
            "logit_rows": rows + (tokens > 0),
            "decode_context": 100 * rows,
            "prefill_pairs": 50 * tokens,
        },
        "num_running": rows,
        "num_waiting": 0,
        "num_preempted": 0,
    }
    for rows in range(1, 9)
    for tokens in (0, 0, 0, 16, 48, 64)
]


@pytest.fixture
def traced(tmp_path: Path) -> tuple[Path, Path]:
    """A trace in Mooncake's form with a shared first block, and timed steps."""
    trace, steps = tmp_path / "trace.jsonl", tmp_path / "steps.jsonl"
    requests = [
        {
            "timestamp": 40 * number,
            "input_length": 100 + number,
            "output_length": 5,
            "hash_ids": [7, 100 + number],
            "block_tokens": 64,
        }
        for number in range(20)
    ]
    requests.append({"timestamp": 900, "input_length": 400, "output_length": 5})
    trace.write_text("\n".join(map(json.dumps, requests)))
    steps.write_text("\n".join(map(json.dumps, STEPS)))
    return trace, steps


def test_sim_replays_a_trace(
    run_cli: RunCli, tiny_artifact: Path, traced: tuple[Path, Path]
) -> None:
    trace, steps = traced
    arguments = ["sim", trace, "--artifact", tiny_artifact, "--steps", steps, "--max-running", "8"]
    status, out, err = run_cli(*arguments, "--json")
    assert status == 0, err
    record = json.loads(out)
    assert (record["requests"], record["refused"], record["starved"]) == (20, 1, 0)
    assert record["cache_hit_rate"] > 0.5 and record["preemptions"] == 0
    assert 0.01 < record["itl_s"]["p50"] < 0.08 and record["ttft_s"]["p50"] < 0.2
    assert record["longest_steps_without_token"] < record["its_bound"]
    assert max(record["fit"].values()) < 0.01
    status, out, _ = run_cli(*arguments, "--speed", "2")
    assert status == 0
    assert "20 ended, 1 refused at the door" in out and "between tokens, ms" in out
    assert "expected a prompt shorter than the context of 256 tokens, got 400" in out


def test_sim_obeys_the_options_of_a_server(
    run_cli: RunCli, tiny_artifact: Path, traced: tuple[Path, Path]
) -> None:
    trace, steps = traced
    found = {}
    for name, options in {
        "plain": [],
        "no cache": ["--no-prefix-cache"],
        "few pages": ["--kv-memory", "48k"],
        "small chunks": ["--itl-target-ms", "20"],
        "held back": ["--batch-wait-ms", "150", "--policy", "cache-aware"],
    }.items():
        arguments = [trace, "--artifact", tiny_artifact, "--steps", steps, "--max-running", "8"]
        status, out, err = run_cli("sim", *arguments, *options, "--json")
        assert status == 0, err
        found[name] = json.loads(out)
    plain = found["plain"]
    assert found["no cache"]["cache_hit_rate"] == 0
    assert found["no cache"]["ttft_s"]["p50"] > plain["ttft_s"]["p50"]
    assert found["few pages"]["ttft_s"]["p90"] > plain["ttft_s"]["p90"]
    assert found["small chunks"]["itl_s"]["p99"] < plain["itl_s"]["p99"]
    assert found["held back"]["ttft_s"]["p50"] > 0.1


@pytest.mark.parametrize(
    ("trace", "steps", "message"),
    [
        ("", None, "trace.jsonl: expected a request per line, got none"),
        ("{}", None, "trace.jsonl: line 1: expected a request with arrival_s"),
        ('{"arrival_s": 0, "prompt_tokens": 0, "output_tokens": 1}', None, "no whole number >= 1"),
        ('{"timestamp": -5, "input_length": 3, "output_length": 1}', None, "arrival at -0.005 s"),
        (
            '{"timestamp": 5, "input_length": 3, "output_length": 1, "hash_ids": [1, 2]}',
            None,
            "2 hash_ids for 3 tokens of 512 each",
        ),
        (None, "", "steps.jsonl: expected at least 16 timed steps with prefill, got 0"),
        (None, "hello", "steps.jsonl: line 1: expected a step record, got hello"),
    ],
)
def test_sim_refuses_in_a_sentence(
    refusal: Refusal,
    tiny_artifact: Path,
    traced: tuple[Path, Path],
    trace: str | None,
    steps: str | None,
    message: str,
) -> None:
    for path, text in zip(traced, (trace, steps), strict=True):
        if text is not None:
            path.write_text(text)
    assert message in refusal("sim", traced[0], "--artifact", tiny_artifact, "--steps", traced[1])


def test_bench_records_the_steps_that_sim_reads(
    run_cli: RunCli, tiny_artifact: Path, traced: tuple[Path, Path], tmp_path: Path
) -> None:
    steps = tmp_path / "recorded.jsonl"
    shape = ["--prompt", "8,40,100", "--new", "4", "--concurrency", "1,3", "--rounds", "4"]
    status, _, err = run_cli("bench", tiny_artifact, *shape, "--record-steps", steps)
    assert status == 0, err
    arguments = [traced[0], "--artifact", tiny_artifact, "--steps", steps]
    status, out, err = run_cli("sim", *arguments, "--json")
    assert status == 0, err
    assert json.loads(out)["requests"] == 20

"""Shares of measured limits, by the bytes and operations that the work needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sglk.bench import contest, machine_limits, shares
from sglk.bench.contest import Contender, Scenario
from sglk.cli.limits import Limits, read_limits
from sglk.errors import SglkError
from sglk.targets.tilec.compiler import find_compiler

LIMITS = Limits("test", 2, {"1": 100.0, "1024": 10.0}, {"f32_fma": 0.5, "bf16_tile": 1.0})
SIZE = shares.ModelSize(
    body=10**8, head=2 * 10**7, layers=2, query_width=64, kv_bytes_per_token=512
)


def test_the_bandwidth_is_that_of_the_nearest_working_set() -> None:
    assert LIMITS.bandwidth(2e6) == 100e9
    assert LIMITS.bandwidth(900e6) == 10e9
    assert LIMITS.rate() == 1e12
    assert LIMITS.rate(("int8_dot",)) == 0


def test_a_shared_prefix_is_computed_once() -> None:
    apart = SIZE.prefill_flops(Scenario(100, 8, 4))
    shared = SIZE.prefill_flops(Scenario(100, 8, 4, shared=90))
    assert 2 * 10**8 * 130 < shared < apart / 2.5
    alone = SIZE.prefill_flops(Scenario(100, 8, 1))
    assert SIZE.prefill_flops(Scenario(100, 8, 1, shared=50)) == pytest.approx(alone)


def test_decoding_is_bound_by_bytes_and_prefill_by_operations(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(bytes(10**6))
    (tmp_path / "notes.txt").write_bytes(bytes(500))
    empty = dict.fromkeys(contest.FIGURES)
    row = {**empty, "decode_tokens_per_s": 1000.0, "prefill_tokens_per_s": 2000.0}
    comparison = {"scenario": vars(Scenario(256, 2, 1)), "medians": {"a": row}}
    for path in (model, tmp_path):
        got = shares.shares(comparison, [Contender("a", str(path), "p")], SIZE, LIMITS)["a"]
        # 0.24 GFLOP a token at 1 TFLOP/s are slower than 1 MB at 100 GB/s
        assert got["decode_limit_tokens_per_s"] == pytest.approx(4164, rel=0.01)
        assert got["prefill"] == pytest.approx(2000 / 4990, rel=0.01)
    slow = Limits("test", 2, {"1": 0.1}, {"f32_fma": 1.0})
    got = shares.shares(comparison, [Contender("a", str(model), "p")], SIZE, slow)["a"]
    assert got["decode"] == pytest.approx(1000 * (10**6 + 257 * 512) / 0.1e9)


def test_limits_are_read_back_and_damaged_files_refused(tmp_path: Path) -> None:
    path = tmp_path / "limits.json"
    path.write_text(json.dumps(vars(LIMITS)))
    assert read_limits(path) == LIMITS
    assert any("bf16_tile" in line for line in machine_limits.table_lines(LIMITS))
    path.write_text("{}")
    with pytest.raises(SglkError, match="expected measured limits"):
        read_limits(path)


def test_the_program_that_measures_the_machine_compiles() -> None:
    check = [*machine_limits.FLAGS, "-fsyntax-only", str(machine_limits.SOURCE)]
    find_compiler().run(check, "machine limits")

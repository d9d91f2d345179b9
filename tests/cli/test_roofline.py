"""Work of kernels against the limits of a machine, in the profile and in the compile report."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sglk.cli.limits import Limits, known_limits
from sglk.cli.report import report_lines
from sglk.cli.roofline import Roofline, moved_bytes
from sglk.cli.step_profile import StepProfile, profile_lines, with_work

Cli = Callable[..., tuple[int, str, str]]
LIMITS = Limits("test", 2, {"1": 100.0, "1024": 10.0}, {"f32_fma": 0.5, "bf16_tile": 1.0})
SIZES = {"tokens": 2, "seqs": 1, "pages": 1, "rows": 1}
COSTS = {
    "groups": [
        {"op": "linear", "row": "packed", "flops": "tokens * 1000000", "bytes": "tokens * 100",
         "kernels": ["quantize", "multiply"]},
        {"op": "add", "row": "generic", "flops": "tokens", "bytes": "1000000", "kernels": ["add"]},
        {"op": "odd", "row": "generic", "flops": "", "bytes": "", "kernels": ["odd"]},
    ],
    "buckets": [
        {"tokens_max": 1, "calls": [1]},
        {"tokens_max": None, "calls": [0, 0, 1, 0, 0, 2]},
    ],
}  # fmt: skip


@dataclass(frozen=True)
class CallTime:
    bucket: int
    kernel: str
    op: str
    nanoseconds: int


def test_work_is_of_the_bucket_that_the_step_takes() -> None:
    roofline = Roofline(COSTS, LIMITS)
    works = roofline.step(SIZES)
    assert {n: (w.nodes, w.flops, w.bytes) for n, w in works.items()} == {
        0: (2, 4_000_000, 400),
        1: (1, 2, 1_000_000),
        2: (1, None, None),
    }
    assert works[0].name == "quantize +1"
    assert moved_bytes(works) == 1_000_400
    assert list(roofline.step({**SIZES, "tokens": 1})) == [1]


def test_the_slower_of_moving_and_computing_bounds() -> None:
    roofline = Roofline(COSTS, LIMITS)
    works = roofline.step(SIZES)
    product, add = (roofline.bound(works[n], moved_bytes(works)) for n in (0, 1))
    assert product and product.by == "bf16_tile" and product.seconds == pytest.approx(4e-6)
    assert add and add.by == "memory" and add.seconds == pytest.approx(1e-5)
    assert roofline.bound(works[2], 1) is None
    assert Roofline(COSTS).bound(works[0], 1) is None


def test_times_are_held_against_the_limits() -> None:
    calls = [CallTime(0, "add", "add", 0)]
    calls += [CallTime(1, k, "linear", 4000) for k in ("quantize", "multiply")]
    calls += [CallTime(1, "add", "add", 20_000)]
    calls += [CallTime(1, k, "linear", 4000) for k in ("quantize", "multiply")]
    calls += [CallTime(1, "odd", "odd", 1000), CallTime(1, "later", "new", 500)]
    times = with_work(calls, 1, Roofline(COSTS, LIMITS), SIZES)
    assert [t.op for t in times] == ["add", "linear", "odd", "new"]
    assert times[0].limit_s == pytest.approx(1e-5) and times[0].bound_by == "memory"
    assert times[1].calls == 4 and times[1].seconds == pytest.approx(16e-6)
    assert times[3].flops is None
    lines = profile_lines(StepProfile("decode", 2, 8, 1e-4, times))
    assert "of limit" in lines[1]
    assert re.search(r"50%  memory +add +add", lines[2])
    assert re.search(r"25%  bf16_tile +linear +quantize \+1", lines[3])


def test_the_profile_and_the_report_of_an_artifact_name_the_work(
    run_cli: Cli, tiny_artifact: Path, tmp_path: Path
) -> None:
    path = tmp_path / "limits.json"
    path.write_text(json.dumps(vars(LIMITS)))
    shape = ("--prompt=4", "--new=2", "--profile", "--threads=1", f"--limits={path}")
    status, out, _ = run_cli("bench", tiny_artifact, *shape)
    assert status == 0 and "of limit  bound by" in out and "limits of test, 2 threads" in out
    status, out, _ = run_cli("bench", tiny_artifact, *shape[:-1], "--json")
    kernels: list[dict[str, Any]] = json.loads(out)[0]["kernels"]
    assert all(k["bytes"] > 0 for k in kernels if k["op"] == "linear")
    status, out, _ = run_cli("show", tiny_artifact, "--report", "--limits", path)
    assert status == 0
    assert re.search(r"work of a decode step .*: [\d.]+ MB, [\d.]+ GFLOP, at least", out)
    assert re.search(r" memory +x\d+ +linear", out)


def test_a_report_without_costs_or_of_another_form_has_no_work() -> None:
    report: dict[str, Any] = {
        "model": {"name": "m"}, "target": "cpu", "isas": ["generic"], "weight_bytes": 1,
        "source_bytes": 1, "graph": {"captured_nodes": 1, "final_nodes": 1, "fusions": {}},
        "kernels": [], "rows": [], "passes": [], "seconds": {"capture": 1.0},
        "peak_rss_bytes": 1, "memory": {"arena_text": "0", "unshared_text": "0", "symbols": []},
    }  # fmt: skip
    assert not [line for line in report_lines(report) if "work of" in line]
    other = {"groups": [{"flops": "batch", "bytes": "batch"}], "buckets": []}
    assert not [line for line in report_lines({**report, "costs": other}) if "work of" in line]


def test_limits_of_a_gpu_come_from_what_it_was_built_for() -> None:
    known = known_limits("cuda:0", {"isas": ["sm_90"]})
    assert known is not None and known.processor == "H200"
    assert known.bandwidth(16e9) == 4.6e12
    assert known_limits("cuda:0", {"isas": ["sm_1"]}) is None
    assert known_limits("cpu", {"isas": ["x86_64_v4"]}) is None

"""What the commands print when all is well."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sglk import __version__
from sglk.cli import COMMANDS
from sglk.cli.compile import main as compile_main
from sglk.cli.report import report_lines, size_text
from sglk.cli.step_profile import profile_steps

Cli = Callable[..., tuple[int, str, str]]
PASSES = ("canonicalize", "flat-tokens", "recognise-rmsnorm", "fuse-add-rmsnorm")


class Standard(io.TextIOWrapper):
    """Standard input with these bytes."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")


def test_no_command_prints_help_and_fails(run_cli: Cli) -> None:
    status, out, err = run_cli()
    assert status == 2 and out == ""
    assert all(name in err for name in COMMANDS)


def test_version(run_cli: Cli) -> None:
    assert run_cli("--version") == (0, f"sglk {__version__}\n", "")


def test_unknown_command_names_the_known_ones(run_cli: Cli) -> None:
    status, _, err = run_cli("frobnicate")
    assert status == 2
    assert "frobnicate" in err and "compile" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(run_cli: Cli, command: str) -> None:
    status, out, _ = run_cli(command, "--help")
    assert status == 0
    assert out.startswith(f"usage: sglk {command}")
    assert all(len(line) <= 80 for line in out.splitlines())


def test_sglk_compile_is_the_compile_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        compile_main(["--help"])
    assert capsys.readouterr().out.startswith("usage: sglk-compile")


def test_run_prints_the_answer_and_nothing_else(run_cli: Cli, tiny_artifact: Path) -> None:
    status, out, err = run_cli("run", tiny_artifact, "hello", "--max-tokens", 8)
    assert status == 0 and err == ""
    assert out.endswith("\n") and len(out) > 1
    assert run_cli("run", tiny_artifact, "hello", "--max-tokens", 8)[1] == out


def test_run_reads_the_prompt_from_standard_input(
    run_cli: Cli, tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected, _ = run_cli("run", tiny_artifact, "hé", "--max-tokens", 8)
    monkeypatch.setattr(sys, "stdin", Standard("hé".encode()))
    assert run_cli("run", tiny_artifact, "-", "--max-tokens", 8) == (0, expected, "")


def test_run_samples_by_seed(run_cli: Cli, tiny_artifact: Path) -> None:
    options = ["run", tiny_artifact, "hello", "--max-tokens", 12, "--temperature", 2, "--raw"]
    first = run_cli(*options, "--seed", 1)[1]
    assert run_cli(*options, "--seed", 1)[1] == first
    assert run_cli(*options, "--seed", 2)[1] != first


def test_run_prints_times_to_standard_error(run_cli: Cli, tiny_artifact: Path) -> None:
    _, out, err = run_cli("run", tiny_artifact, "hello", "--max-tokens", 4, "--stats")
    form = r"\[loaded in [\d.]+ s; \d+ prompt tokens in [\d.]+ s; 4 tokens at \d+/s, length\]\n"
    assert re.fullmatch(form, err) and "loaded" not in out


def test_lines_of_standard_input_are_a_chat(
    run_cli: Cli, tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Standard(b"hello\n\nagain\n"))
    status, _, err = run_cli("run", tiny_artifact, "--max-tokens", 3, "--stats")
    assert status == 0
    assert [int(n) for n in re.findall(r"\((\d+) more cached\)", err)] in ([], [32])
    assert err.count("3 tokens at") == 2


def test_show_in_short(run_cli: Cli, tiny_artifact: Path) -> None:
    status, out, err = run_cli("show", tiny_artifact)
    assert status == 0 and err == ""
    assert out.splitlines()[0] == f"{tiny_artifact}: tiny-llama (llama)"
    assert "2 layers, context 256, vocabulary 272" in out
    assert "f16, 256 B a token" in out  # 2 layers x K and V x 2 heads x 16 x 2 bytes


@pytest.mark.parametrize(
    ("form", "start"),
    [("--graph", "graph llama("), ("--program", "program step("), ("--kernels", "")],
)
def test_show_a_form(run_cli: Cli, tiny_artifact: Path, form: str, start: str) -> None:
    status, out, _ = run_cli("show", tiny_artifact, form)
    assert status == 0
    assert out.startswith(start) and len(out.splitlines()) > 10


def test_report_has_numbers_for_sizes(run_cli: Cli, tiny_artifact: Path) -> None:
    _, out, _ = run_cli("show", tiny_artifact, "--report")
    line = next(text for text in out.splitlines() if "step memory" in text)
    assert re.search(r"step memory +[\d.]+ kB for tokens=512, rows=1 \([\d.]+ MB if", line)
    assert "max(" not in out


def test_report_of_tiles_is_in_the_order_of_sizes() -> None:
    def kernel(rows: int) -> dict[str, object]:
        tile = f"BLOCK_M={rows}: memory-bound"
        return {"source": "linear.linear", "constants": {"N": 64, "K": 32}, "tile": tile}

    report = {
        "model": {"name": "m"}, "target": "cpu", "isas": ["generic"], "weight_bytes": 1,
        "source_bytes": 1, "graph": {"captured_nodes": 1, "final_nodes": 1, "fusions": {}},
        "kernels": [kernel(16), kernel(4)], "rows": [], "passes": [], "seconds": {"capture": 1.0},
        "peak_rss_bytes": 1, "memory": {"arena_text": "0", "unshared_text": "0", "symbols": []},
    }  # fmt: skip
    tiles = [line.split()[2] for line in report_lines(report) if "BLOCK_M" in line]
    assert tiles == ["BLOCK_M=4:", "BLOCK_M=16:"]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2.5e9, "2.50 GB")]
)
def test_size_text(count: float, text: str) -> None:
    assert size_text(count) == text


def test_verify(run_cli: Cli, tiny_artifact: Path) -> None:
    status, out, err = run_cli("verify", tiny_artifact)
    assert status == 0 and err == ""
    assert out.splitlines()[0] == f"{tiny_artifact}: all hashes are right"
    assert out.count("ok   ") == 5


def test_bench_as_table_and_json(run_cli: Cli, tiny_artifact: Path) -> None:
    options = ["bench", tiny_artifact, "--prompt", "4,40", "--new", 3, "--rounds", 1]
    status, table, _ = run_cli(*options, "--concurrency", 2, "--shared", 2)
    assert status == 0
    assert len(table.splitlines()) == 4 and "TTFT s" in table
    _, text, _ = run_cli(*options, "--json")
    record = json.loads(text)
    assert [s["prompt"] for s in record["scenarios"]] == [4, 40]
    assert all(s["decode_tokens_per_s"] > 0 for s in record["scenarios"])


def test_bench_profile_sums_to_the_whole(run_cli: Cli, tiny_artifact: Path) -> None:
    options = ["bench", tiny_artifact, "--profile", "--prompt", 40, "--new", 4]
    status, table, _ = run_cli(*options)
    assert status == 0
    shares = [float(share) for share in re.findall(r"^ +([\d.]+)% ", table, re.MULTILINE)]
    assert "paged_attention" in table and 190 < sum(shares) <= 201  # two tables
    prefill, decode = json.loads(run_cli(*options, "--json")[1])
    assert (prefill["tokens"], decode["tokens"]) == (40, 1)
    assert all(each["seconds"] > 0 for each in decode["kernels"])


def test_a_device_without_clocks_is_named() -> None:
    with pytest.raises(Exception, match="--profile: this device does not time its kernels"):
        profile_steps(object(), 4, 1, 1)  # type: ignore[arg-type]


def test_opt_lists_passes_with_a_line_each(run_cli: Cli) -> None:
    status, out, _ = run_cli("opt", "--list")
    assert status == 0
    lines = dict(line.split(maxsplit=1) for line in out.splitlines() if line[0] != " ")
    assert all(lines[name].endswith(".") for name in PASSES)
    assert "options: page_size=32" in out


def test_opt_runs_passes_on_what_show_prints(
    run_cli: Cli, tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, graph, _ = run_cli("show", tiny_artifact, "--graph")
    monkeypatch.setattr(sys, "stdin", Standard(graph.encode()))
    assert run_cli("opt", "-") == (0, graph, "")
    monkeypatch.setattr(sys, "stdin", Standard(graph.encode()))
    assert run_cli("opt", "-", "-p", "canonicalize,eliminate-dead") == (0, graph, "")

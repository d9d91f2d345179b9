"""The lowering report: every decision as data and as a page, from a config alone."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from sglk import knobs
from sglk.cli import dry_run, main
from sglk.cli.dry_run import lowering_report, write_report
from sglk.cli.report_page import page_text
from sglk.errors import SglkError

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is nothing but its config."""
    path = tmp_path_factory.mktemp("config-only") / "small-llama"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


@pytest.fixture(scope="module")
def captured(folder: Path) -> Any:
    return dry_run._capture(str(folder), {})


@pytest.fixture(scope="module")
def kunlun(captured: Any, folder: Path) -> dict[str, Any]:
    patch = pytest.MonkeyPatch()
    patch.setattr(dry_run, "_capture", lambda *_: captured)
    with knobs.override(verify=False), patch.context():
        report = lowering_report(str(folder), "kunlun", dtype="fp16")
    patch.undo()
    return report


def test_every_op_has_a_row_and_every_kernel_an_op(kunlun: dict[str, Any]) -> None:
    assert kunlun["schema"] == 1
    assert kunlun["missing"] == []
    rows = {op["op"]: op["row"] for op in kunlun["ops"]}
    assert rows["linear"] == "sdnn-linear"
    assert rows["paged_attention"] == "sdnn-attention"
    assert rows["rmsnorm"] == "cluster-rmsnorm"
    symbols = {kernel["symbol"] for kernel in kunlun["kernels"]}
    assert {symbol for op in kunlun["ops"] for symbol in op["kernels"]} == symbols
    assert sum(op["count"] for op in kunlun["ops"] if op["op"] == "paged_attention") == 2


def test_vendor_rows_are_listed_with_the_reason_they_are_not_chosen(kunlun: dict[str, Any]) -> None:
    linear = next(op for op in kunlun["ops"] if op["op"] == "linear")
    over = {each["row"]: each["reason"] for each in linear["passed_over"]}
    assert over["vendor-matmul"].startswith(
        "unavailable: no adapter is named for kunlun_ops.matmul"
    )
    assert "fp8 operators are registered but empty" in over["vendor-fp8-linear"]


def test_each_tile_says_what_it_takes_and_what_it_beat(kunlun: dict[str, Any]) -> None:
    tiles = [k["tile"] for k in kunlun["kernels"] if k["function"] == "whole_linear.linear"]
    assert tiles
    for tile in tiles:
        assert 0 < tile["on_chip_bytes"] <= tile["on_chip_limit"] == 1_605_632
        assert tile["on_chip_name"] == "uni_sram"
        assert tile["per_unit"] == -(-tile["programs"] // 12)
        assert tile["bound"] in ("compute", "memory", "transfer set-up")
        assert tile["runner_up"].startswith("BLOCK_M=")
        assert tile["refused_count"] >= len(tile["refused"]) > 0


def test_facts_of_low_confidence_are_marked(kunlun: dict[str, Any]) -> None:
    facts = {fact["name"]: fact for fact in kunlun["facts"]}
    assert facts["hbm_bytes_per_second"]["confidence"] == "low"
    assert facts["clusters"]["value"] == 12


def test_a_configured_fact_moves_the_tiles(captured: Any, tmp_path: Path) -> None:
    file = tmp_path / "less.json"
    file.write_text(json.dumps({"uni_sram_bytes": 100_000}))
    with knobs.override(kunlun_config=str(file), verify=False):
        report = dry_run._lowered(captured, "kunlun", {"dtype": "fp16"})
    tiles = [k["tile"] for k in report["kernels"] if k["function"] == "whole_linear.linear"]
    assert all(tile["on_chip_bytes"] <= 100_000 for tile in tiles)


def test_the_older_architecture_lists_what_it_lacks(captured: Any) -> None:
    with knobs.override(verify=False):
        report = dry_run._lowered(captured, "kunlun:xpu2", {"dtype": "fp16"})
    assert report["on_host"] == []  # products there would depend on the batch
    found = {op["op"]: op for op in report["missing"]}
    assert set(found) == {"linear", "gated_linear", "paged_attention"}
    reasons = [over["reason"] for over in found["linear"]["passed_over"]]
    assert any("row kernels only" in reason for reason in reasons)
    missing = found["paged_attention"]
    assert missing["count"] == 2
    assert "modeling_llama.py:" in missing["source"]
    assert missing["todo"].startswith("compile for cpu or cuda, with rows for paged_attention; ")
    assert any(op["op"] == "rmsnorm" for op in report["ops"])
    page = page_text({**report, "path": "m", "model": vars(captured.info), "producer": "p",
                      "seconds": 1.0})  # fmt: skip
    assert "ops that nothing here can do" in page


@pytest.mark.parametrize("target", ["kunlun:xpu2", "cuda:sm90", "cpu:x86_64_v3"])
def test_strict_lists_all_ops_without_a_row_on_any_target(
    captured: Any, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = target.partition(":")[0]
    module = importlib.import_module(f"sglk.targets.{name}.compile")
    rows = tuple(row for row in module.TABLE if row.op != "rmsnorm")
    monkeypatch.setattr(module, "TABLE", rows)
    with knobs.override(verify=False):
        report = dry_run._lowered(captured, target, {"strict": True})
    missing = {op["op"]: op for op in report["missing"]}
    assert report["on_host"] == []
    assert missing["rmsnorm"]["passed_over"] == []
    assert "modeling_llama.py:" in missing["rmsnorm"]["source"]
    assert "compile for" in missing["rmsnorm"]["todo"]


def test_the_report_works_for_the_cpu_too(captured: Any) -> None:
    with knobs.override(verify=False):
        report = dry_run._lowered(captured, "cpu:x86_64_v3", {"dtype": "bf16"})
    assert report["target"]["name"] == "cpu"
    assert report["missing"] == []
    assert "facts" not in report


def test_the_page_stands_alone(kunlun: dict[str, Any], tmp_path: Path) -> None:
    written = write_report(kunlun, tmp_path / "report.html")
    assert [path.name for path in written] == ["report.json", "report.html"]
    assert json.loads(written[0].read_text())["model"]["name"] == "small-llama"
    page = written[1].read_text()
    for word in ("<script", "http:", "https:", "src=", "@import"):
        assert word not in page
    for word in ("sdnn-attention", "uni_sram", "Facts of the chip", "flaggems-mm"):
        assert word in page


def test_a_report_of_another_kind_is_refused(kunlun: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SglkError, match=r"--report: expected a name ending in .html or .json"):
        write_report(kunlun, tmp_path / "report.txt")


def test_a_model_that_is_not_captured_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    page = tmp_path / "out.html"
    arguments = ["compile", str(tmp_path), "--target", "kunlun", "--dry-run", "--report", str(page)]
    assert main(arguments) == 1
    assert "not captured: " in capsys.readouterr().out
    assert "The model was not captured" in page.read_text()
    assert "causal language model" in json.loads(page.with_suffix(".json").read_text())["error"]


def test_files_that_are_no_language_model_run_dry_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An ONNX model with sizes and numbers given, and an exported program."""
    x, shape, y = (
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"]),
        helper.make_tensor_value_info("shape", TensorProto.INT64, [1]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["k"]),
    )
    nodes = [
        helper.make_node("Neg", ["x"], ["h"]),
        helper.make_node("Reshape", ["h", "shape"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "neg", [x, shape], [y])
    versions = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=versions), tmp_path / "neg.onnx")
    given = ["--dim", "m=8", "--const", "shape=-1"]
    assert main(["compile", str(tmp_path / "neg.onnx"), "--dry-run", *given]) == 0
    assert "neg for cpu:" in capsys.readouterr().out

    program = torch.export.export(torch.nn.ReLU(), (torch.ones(3),))
    torch.export.save(program, tmp_path / "relu.pt2")
    assert main(["compile", str(tmp_path / "relu.pt2"), "--dry-run"]) == 0
    assert "program for cpu:" in capsys.readouterr().out

"""Graphs as ONNX models: every op computes in onnx's reference what ours says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.checker
import pytest
from onnx.reference import ReferenceEvaluator
from sglk.errors import FrontendError
from sglk.frontend.onnx.export import save_model, to_model
from sglk.frontend.onnx.export_nodes import FUSED, INLINE
from sglk.ir.dim import dim
from sglk.ir.dtype import BOOL, F32
from sglk.ir.graph import Graph
from sglk.ir.interpret import interpret
from sglk.ir.op import OPS
from sglk.ir.ops.elementwise import Add, Where
from sglk.ir.ops.linear import Linear
from sglk.ir.ops.shape import Broadcast, Concat, Iota, Reshape, Slice
from sglk.ir.parser import parse_type
from sglk.ir.rewrite import clone
from sglk.ir.types import TensorType
from sglk.targets.conformance.case import Case
from sglk.targets.conformance.cases import all_cases

NEEDS_A_STATE = {"write_kv", "rope_write_kv", "paged_attention", "attention"}
"""Tried on whole decoders in tests/cli/test_show_onnx.py."""
SIZES = {"n": 3}
NO_KERNEL = ("bf16", "f16", "u64", "i16")
"""Element types for which onnx's reference lacks or widens some ops."""


def chosen(name: str) -> list[Case]:
    cases = [c for c in all_cases()[name] if not any(t in o for o in c.operands for t in NO_KERNEL)]
    return cases[:4]


@pytest.mark.parametrize("name", sorted((INLINE.keys() | FUSED.keys()) - NEEDS_A_STATE))
def test_ops_compute_what_their_references_say(name: str) -> None:
    for case in chosen(name):
        graph = Graph("case")
        rng = np.random.default_rng(0)
        leaves, arrays = [], {}
        for i, text in enumerate(case.operands):
            type_ = parse_type(text.removeprefix("w "))
            leaves.append(graph.input(f"x{i}", type_))
            arrays[f"x{i}"] = case.draw(i, rng, SIZES)
        graph.outputs = list(case.add_to(graph, leaves))
        graph = clone(graph, SIZES)
        wanted = interpret(graph, arrays)
        plain = {k: v.dequantize() if hasattr(v, "dequantize") else v for k, v in arrays.items()}
        with np.errstate(all="ignore"):
            found = run(to_model(graph), plain)
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, 2e-4, 2e-5, err_msg=case.name)


def run(model: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    onnx.checker.check_model(model, full_check=True)
    found: Any = ReferenceEvaluator(model).run(None, arrays)
    return list(found)


def test_sizes_that_are_not_known_are_computed() -> None:
    t = dim("tokens")
    graph = Graph("sizes")
    x = graph.input("x", TensorType(F32, (t * 2, 4)))
    y = graph.input("y", TensorType(F32, (t, 1)))
    wide = graph.emit(Broadcast((t, 8)), y)
    folded = graph.emit(Reshape((t, 8)), x)
    cut = graph.emit(Slice(0, 1, t), graph.emit(Add(), folded, wide))
    count = graph.emit(Iota(t * 3 - 1))
    graph.outputs = [graph.emit(Concat(0), cut, folded), count]
    for size in (1, 5):
        arrays = {
            "x": np.arange(8 * size, dtype=np.float32).reshape(2 * size, 4),
            "y": np.ones((size, 1), np.float32),
        }
        wanted = interpret(clone(graph, {"tokens": size}), arrays)
        for ours, theirs in zip(run(to_model(graph), arrays), wanted, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def small_graph() -> Graph:
    graph = Graph("small")
    x = graph.input("x", TensorType(F32, (dim("rows"), 40)))
    w = graph.param("layer/weight", TensorType(F32, (32, 40)))
    y = graph.emit(Linear(), x, w)
    graph.outputs = [y, graph.emit(Linear(), graph.emit(Linear(), x, w), w2(graph)), y]
    return graph


def w2(graph: Graph) -> Any:
    return graph.param("w2", TensorType(F32, (8, 32)))


def test_weights_lie_beside_the_model(tmp_path: Path) -> None:
    graph, path = small_graph(), tmp_path / "small.onnx"
    rng = np.random.default_rng(0)
    weights = {v.name: rng.normal(size=v.type.shape).astype(np.float32) for v in graph.params}
    x = rng.normal(size=(3, 40)).astype(np.float32)
    for _ in range(2):  # a second time over the first
        save_model(graph, path, weights.__getitem__)
    beside = tmp_path / "small.onnx.data"
    assert path.stat().st_size < 4096 < beside.stat().st_size < 8192
    found = ReferenceEvaluator(str(path)).run(None, {"x": x})
    for ours, theirs in zip(found, interpret(graph, {"x": x}, weights), strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-5, 1e-5)


def test_without_weights_parameters_are_inputs(tmp_path: Path) -> None:
    model = save_model(small_graph(), tmp_path / "small.onnx")
    assert [i.name for i in model.graph.input] == ["x", "layer/weight", "w2"]
    assert not (tmp_path / "small.onnx.data").exists()
    assert [f.name for f in model.functions] == ["linear", "linear_1"]


def test_ops_without_a_form_are_named_at_once() -> None:
    missing = sorted(OPS.keys() - INLINE.keys() - FUSED.keys())
    graph = Graph("g")
    x = graph.input("x", TensorType(F32, (1, 8, 4)))
    w = graph.input("w", TensorType(F32, (8, 4)))
    assert "causal_conv" in missing
    mask = graph.input("m", TensorType(BOOL, (4,)))
    graph.outputs = [graph.emit(Where(), mask, graph.emit(OPS["causal_conv"](), x, w), x)]
    with pytest.raises(FrontendError, match="got causal_conv"):
        to_model(graph)

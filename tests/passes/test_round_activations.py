"""Products get bf16 activations where their weights allow it, and sums where they need them."""

from __future__ import annotations

import pytest
from sglk.ir.dtype import BF16, F32, dtype
from sglk.ir.graph import Graph
from sglk.ir.ops.linear import GatedLinear, Linear
from sglk.ir.types import TensorType
from sglk.passes.round_activations import RoundActivations
from sglk.passes.sum_groups import SumGroups


def product(weight: str, *, gated: bool = False) -> Graph:
    graph = Graph()
    x = graph.input("x", TensorType(F32, (3, 256)))
    w = graph.param("w", TensorType(dtype(weight), (64, 256)))
    graph.outputs = [graph.emit(GatedLinear("silu") if gated else Linear(), x, w)]
    return graph


def ops(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


@pytest.mark.parametrize("weight", ["q4_1", "q5_1", "q4_k", "q5_k"])
@pytest.mark.parametrize("gated", [False, True])
def test_weights_with_a_minimum_get_sums(weight: str, gated: bool) -> None:
    graph = product(weight, gated=gated)
    assert RoundActivations().run(graph)
    assert ops(graph) == ["round_rows", "gated_linear" if gated else "linear"]
    rounded, _, sums = graph.nodes[1].inputs
    assert rounded.type.dtype == BF16 and sums.type == TensorType(F32, (3, 8))
    assert graph.outputs[0].type.dtype == F32


@pytest.mark.parametrize("weight", ["q4_0", "q8_0", "q6_k", "bf16"])
def test_others_get_a_cast(weight: str) -> None:
    graph = product(weight)
    assert RoundActivations().run(graph)
    assert ops(graph) == ["cast", "linear"]
    assert not RoundActivations().run(graph)


def test_kernels_without_use_for_sums_get_none() -> None:
    graph = product("q4_1")
    assert RoundActivations(sums=False).run(graph)
    assert ops(graph) == ["cast", "linear"]


def test_f32_weights_keep_f32_activations() -> None:
    graph = product("f32")
    assert not RoundActivations().run(graph)
    assert ops(graph) == ["linear"]


def test_f32_activations_get_sums_beside_them() -> None:
    graph = product("q4_1")
    assert SumGroups().run(graph)
    assert ops(graph) == ["group_sums", "linear"]
    assert graph.nodes[1].inputs[0].type.dtype == F32
    assert not SumGroups().run(graph)


@pytest.mark.parametrize("weight", ["q4_0", "bf16", "f32"])
def test_no_sums_without_a_minimum(weight: str) -> None:
    assert not SumGroups().run(product(weight))

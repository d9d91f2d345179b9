"""Mixtures of experts as transformers spells them out become two ops with the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sglk.ir.dim import dim
from sglk.ir.dtype import BF16, F32
from sglk.ir.graph import Graph, Value
from sglk.ir.interpret import interpret
from sglk.ir.ops.elementwise import Add, Div, Mul, Silu
from sglk.ir.ops.linear import Linear
from sglk.ir.ops.moe import ExpertLinear, ExpertMlp, MoeRoute
from sglk.ir.ops.order import TopK
from sglk.ir.ops.reduce import Softmax, Sum
from sglk.ir.ops.shape import Reshape, Slice
from sglk.ir.rewrite import clone
from sglk.ir.testing import random_array
from sglk.ir.types import TensorType
from sglk.ir.verify import verify
from sglk.passes.recognise_experts import RecogniseExperts
from sglk.passes.store_activations import StoreActivations

T = dim("tokens")
HIDDEN, INNER, EXPERTS, TOP_K = 8, 6, 5, 2


def experts(renormalize: bool = True, residual: bool = True, swapped: bool = False) -> Graph:
    g = Graph("moe")
    x = g.input("x", TensorType(F32, (T, HIDDEN)))
    router = g.param("router", TensorType(F32, (EXPERTS, HIDDEN)))
    up = g.param("up", TensorType(F32, (EXPERTS, 2 * INNER, HIDDEN)))
    down = g.param("down", TensorType(F32, (EXPERTS, HIDDEN, INNER)))
    values, ids = g.append(TopK(TOP_K), g.emit(Softmax(1), g.emit(Linear(), x, router)))
    if renormalize:
        values = g.emit(Div(), values, g.emit(Sum(1, keepdim=True), values))
    y = g.emit(Sum(1), _scaled(g, x, up, down, ids, values, swapped))
    g.outputs.append(g.emit(Add(), x, y) if residual else y)
    verify(g)
    return g


def _scaled(
    g: Graph, x: Value, up: Value, down: Value, ids: Value, weights: Value, swapped: bool
) -> Value:
    both = g.emit(ExpertLinear(), x, up, ids)
    gate, other = g.emit(Slice(2, 0, INNER), both), g.emit(Slice(2, INNER, 2 * INNER), both)
    if swapped:
        gate, other = other, gate
    outer = g.emit(ExpertLinear(), g.emit(Mul(), g.emit(Silu(), gate), other), down, ids)
    return g.emit(Mul(), outer, g.emit(Reshape((T, TOP_K, 1)), weights))


def numbers(graph: Graph) -> Any:
    rng = np.random.default_rng(3)
    params = {v.name: random_array(v.type, rng, {}) for v in graph.params}
    inputs = {"x": random_array(graph.inputs[0].type, rng, {"tokens": 7})}
    return interpret(clone(graph, {"tokens": 7}), inputs, params)[0]


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("residual", [True, False])
def test_routing_and_experts_become_two_ops(renormalize: bool, residual: bool) -> None:
    graph = experts(renormalize, residual)
    before = numbers(graph)
    assert RecogniseExperts().run(graph)
    verify(graph)
    ops = [node.op for node in graph.nodes]
    assert MoeRoute(TOP_K, renormalize) in ops
    assert ExpertMlp("silu", has_residual=residual) in ops
    assert len(ops) == 3
    assert np.allclose(numbers(graph), before, rtol=1e-5, atol=1e-6)
    assert not RecogniseExperts().run(graph)


def test_an_activated_second_half_stays() -> None:
    graph = experts(swapped=True)
    RecogniseExperts().run(graph)
    assert not any(isinstance(node.op, ExpertMlp) for node in graph.nodes)


def test_scores_of_a_choice_stay_wide() -> None:
    graph = experts()
    RecogniseExperts().run(graph)
    StoreActivations().run(graph)
    verify(graph)
    found = {type(node.op): node for node in graph.nodes}
    assert found[Linear].outputs[0].type.dtype == F32
    assert found[Linear].inputs[0].type.dtype == BF16
    mlp = found[ExpertMlp]
    assert [v.type.dtype for v in (mlp.inputs[0], mlp.inputs[4], mlp.inputs[5])] == [
        BF16,
        F32,
        BF16,
    ]

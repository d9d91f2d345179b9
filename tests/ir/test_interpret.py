"""The reference interpreter: results, memory, and what it says of arrays that do not fit."""

from __future__ import annotations

import weakref
from typing import Any, ClassVar

import numpy as np
import pytest
from sglk.errors import VerifyError
from sglk.ir.blocks import BlockArray
from sglk.ir.interpret import evaluate, interpret
from sglk.ir.ops.elementwise import Exp
from sglk.ir.ops.sparse import Embedding
from sglk.ir.parser import parse_graph
from sglk.ir.testing import random_blocks

GRAPH = """\
graph g(%x: f32[4]) {
  param %w: f32[4]
  const %c: f32[4] = [1.0, 2.0, 3.0, 4.0]
  %a: f32[4] = add(%x, %w)
  %b: f32[4] = mul(%a, %c)
  return %b, %x, %w, %c
}
"""
X, W = np.arange(4, dtype=np.float32), np.full(4, 2, np.float32)


def test_results_come_in_output_order_leaves_included() -> None:
    b, x, w, c = interpret(parse_graph(GRAPH), {"x": X}, {"w": W})
    np.testing.assert_array_equal(b, (X + W) * [1, 2, 3, 4])
    assert x is X and w is W
    np.testing.assert_array_equal(c, [1, 2, 3, 4])


def test_parameters_may_come_from_a_function_and_are_read_once() -> None:
    asked: list[str] = []

    def read(name: str) -> np.ndarray:
        asked.append(name)
        return W

    interpret(parse_graph(GRAPH), {"x": X}, read)
    assert asked == ["w"]


def test_missing_arrays_are_named() -> None:
    with pytest.raises(VerifyError, match=r"expected an array for input %x: f32\[4\], got none"):
        interpret(parse_graph(GRAPH), {}, {"w": W})
    with pytest.raises(VerifyError, match="expected an array for param %w, got none"):
        interpret(parse_graph(GRAPH), {"x": X})


def test_arrays_of_another_shape_are_refused() -> None:
    with pytest.raises(VerifyError, match=r"expected %x: f32\[4\], got an array of shape \(5,\)"):
        interpret(parse_graph(GRAPH), {"x": np.zeros(5, np.float32)}, {"w": W})
    with pytest.raises(VerifyError, match=r"expected %w: f32\[4\], got an array of shape \(1, 4\)"):
        interpret(parse_graph(GRAPH), {"x": X}, {"w": W[None]})


def test_a_failing_reference_says_where() -> None:
    graph = parse_graph("graph g(%x: i32[2]) {\n  param %t: f32[3, 2]\n  return %x\n}")
    graph.outputs = [graph.emit(Embedding(), graph.find("t"), graph.find("x"))]
    with pytest.raises(VerifyError, match=r"indices in 0\.\.2, got -1\.\.1") as caught:
        interpret(graph, {"x": np.array([1, -1])}, {"t": np.zeros((3, 2), np.float32)})
    assert caught.value.__notes__ == ["while interpreting %0: f32[2, 2] = embedding(%t, %x)"]


class Watched(Exp, op=""):
    """Exp that counts how many of its results are alive; nameless, so no op of the catalogue."""

    alive: ClassVar[list[weakref.ref[Any]]] = []
    most: ClassVar[int] = 0

    def reference(self, x: np.ndarray) -> np.ndarray:
        class Tracked(np.ndarray):
            """A plain ndarray takes no weak reference of its own memory; a view of it does."""

        result: np.ndarray = np.exp(-np.abs(x)).view(Tracked)
        Watched.alive.append(weakref.ref(result))
        count = sum(r() is not None for r in Watched.alive)
        Watched.most = max(Watched.most, count)
        return result


@pytest.mark.parametrize("dead_ends", [0, 6])
def test_values_are_dropped_after_their_last_use(dead_ends: int) -> None:
    Watched.alive, Watched.most = [], 0
    graph = parse_graph("graph g(%x: f32[4]) {\n  return %x\n}")
    value = graph.find("x")
    for _ in range(dead_ends):
        graph.append(Watched(), value)
    for _ in range(10):
        value = graph.emit(Watched(), value)
    graph.outputs = [value]
    interpret(graph, {"x": X})
    assert Watched.most == 2  # the operand and the result of the node that runs
    assert len(Watched.alive) == 10 + dead_ends


def test_blocks_pass_through() -> None:
    graph = parse_graph(
        "graph g(%ids: i32[2]) {\n  param %w: q4_1[6, 32]\n"
        "  %a: q4_1[3, 32] = slice(%w) {axis=0, start=1, stop=4}\n"
        "  %b: q4_1[9, 32] = concat(%w, %a) {axis=0}\n"
        "  %h: f32[2, 32] = embedding(%b, %ids)\n  return %b, %h\n}"
    )
    w = random_blocks("q4_1", (6, 32), np.random.default_rng(0))
    b, h = interpret(graph, {"ids": np.array([0, 8])}, {"w": w})
    assert isinstance(b, BlockArray)
    np.testing.assert_array_equal(b.raw, np.concatenate([w.raw, w.raw[1:4]]))
    np.testing.assert_array_equal(h, w.dequantize()[[0, 3]])


def test_static_values_are_evaluated_on_demand() -> None:
    graph = parse_graph(GRAPH.replace("add(%x, %w)", "add(%c, %w)"))
    (a, b) = evaluate([graph.find("a"), graph.find("b")], {"w": W}.__getitem__)
    np.testing.assert_array_equal(a, [3, 4, 5, 6])
    np.testing.assert_array_equal(b, a * [1, 2, 3, 4])

"""Copies of graphs: whole, and with symbols replaced in types and attributes alike."""

from __future__ import annotations

import numpy as np
import pytest
from sglk.ir.dim import cdiv, dim
from sglk.ir.interpret import interpret
from sglk.ir.ops.shape import Iota, Slice
from sglk.ir.parser import parse_graph
from sglk.ir.rewrite import clone, substitute_op
from sglk.ir.testing import assert_close, assert_same_numbers, random_inputs, substituted
from sglk.ir.verify import verify

TEXT = """\
graph g(%x: f32[tokens, 8], %slots: i32[tokens]) {
  param %w: q8_0[4, 32]
  state %kv: bf16[1, 2, kv_slots, 1, 4]
  const %c: i32[2] = [5, 6]
  %n: i32[((2 * tokens) + 1)] = iota() {size=((2 * tokens) + 1)}
  %k: f32[tokens, 2, 4] = reshape(%x) {shape=(tokens, 2, 4)}  # model.py:5 forward
  %k1: f32[tokens, 1, 4] = slice(%k) {axis=1, start=0, stop=1}
  %kv2: bf16[1, 2, kv_slots, 1, 4] = write_kv(%kv, %k1, %k1, %slots) {layer=0, kv_dtype=bf16}
  return %n, %kv2, %c, %w
}
"""


def test_a_clone_is_equal_and_shares_no_value() -> None:
    graph = parse_graph(TEXT)
    copy = clone(graph)
    assert copy.as_text() == graph.as_text() == TEXT
    assert not set(copy.values()) & set(graph.values())
    copy.outputs = copy.outputs[:1]
    copy.erase_dead()
    verify(graph)
    assert graph.as_text() == TEXT


def test_symbols_are_replaced_in_types_and_attributes() -> None:
    graph = clone(parse_graph(TEXT), {"tokens": 3})
    verify(graph)
    assert "tokens" not in graph.as_text() and "kv_slots" in graph.as_text()
    assert graph.find("n").producer is not None
    assert [n.op for n in graph.nodes if isinstance(n.op, Iota)] == [Iota(7)]
    renamed = clone(parse_graph(TEXT), {"tokens": dim("rows") * 2})
    verify(renamed)
    assert "(4 * rows) + 1" in renamed.as_text()


def test_attributes_without_symbols_stay_the_same_op() -> None:
    op = Slice(0, cdiv(dim("tokens"), 2), dim("tokens"))
    assert substitute_op(op, {"tokens": 9}) == Slice(0, 5, 9)
    assert substitute_op(op, {"seqs": 9}) == op


def test_random_inputs_fit_and_substituted_graphs_run() -> None:
    graph, sizes = parse_graph(TEXT), {"tokens": 3, "kv_slots": 8}
    arrays = random_inputs(graph, np.random.default_rng(3), sizes)
    assert set(arrays) == {"x", "slots", "kv", "w"}
    n, kv, c, w = interpret(substituted(graph, sizes), arrays, arrays)
    np.testing.assert_array_equal(n, np.arange(7))
    assert kv.shape == (1, 2, 8, 1, 4) and list(c) == [5, 6] and w is arrays["w"]


def test_same_numbers_are_told_from_others() -> None:
    graph = parse_graph("graph g(%x: f32[tokens]) {\n  %y: f32[tokens] = exp(%x)\n  return %y\n}")
    other = parse_graph("graph g(%x: f32[tokens]) {\n  %y: f32[tokens] = sin(%x)\n  return %y\n}")
    assert_same_numbers(graph, clone(graph), {"tokens": 4})
    with pytest.raises(AssertionError, match="output 0: expected a difference of at most 1e-05"):
        assert_same_numbers(graph, other, {"tokens": 4})


def test_close_compares_shapes_and_nan_never_passes() -> None:
    assert_close(np.zeros((0, 2)), np.zeros((0, 2)), 0)
    with pytest.raises(AssertionError, match=r"expected shape \(2,\), got \(1,\)"):
        assert_close(np.zeros(1), np.zeros(2), 1)
    for a, b in (([np.nan, 1], [1, 1]), ([1, 1], [np.nan, 1])):
        with pytest.raises(AssertionError):
            assert_close(np.array(a), np.array(b), 1)

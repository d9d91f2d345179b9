"""Graph edits, and the verifier: each of its rules broken once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sglk.errors import VerifyError
from sglk.ir.dtype import F32, I32
from sglk.ir.graph import Graph, Node, Value
from sglk.ir.ops.attention import WriteKv
from sglk.ir.ops.elementwise import Add, Exp, Mul, Neg
from sglk.ir.ops.shape import Iota
from sglk.ir.parser import parse_graph
from sglk.ir.types import TensorType
from sglk.ir.verify import verify

TEXT = """\
graph g(%x: f32[4]) {
  param %w: f32[4]
  const %c: f32[4] = [1.0, 2.0, 3.0, 4.0]
  %a: f32[4] = add(%x, %w)
  %b: f32[4] = mul(%a, %a)
  %d: f32[4] = mul(%b, %c)
  return %d
}
"""
VECTOR = TensorType(F32, (4,))


@pytest.fixture
def graph() -> Graph:
    return parse_graph(TEXT)


def test_replace_moves_every_use_and_erase_removes_the_rest(graph: Graph) -> None:
    b = graph.find("b")
    fresh = graph.emit(Neg(), graph.find("a"), before=b.producer)
    graph.replace(b, fresh)
    verify(graph)
    assert b.uses == [] and fresh.uses == [graph.find("d").producer]
    assert b.producer is not None
    graph.erase(b.producer)
    verify(graph)
    assert [n.op for n in graph.nodes] == [Add(), Neg(), Mul()]


def test_replace_reaches_the_outputs(graph: Graph) -> None:
    graph.replace(graph.find("d"), graph.find("b"))
    assert graph.outputs == [graph.find("b")]
    graph.replace(graph.find("b"), graph.find("b"))
    verify(graph)


def test_a_value_read_twice_by_one_node_is_used_twice(graph: Graph) -> None:
    a, b = graph.find("a"), graph.find("b").producer
    assert b is not None and a.uses == [b, b]
    graph.set_input(b, 1, graph.find("x"))
    assert a.uses == [b]
    verify(graph)
    graph.replace(a, graph.find("w"))
    assert b.inputs == [graph.find("w"), graph.find("x")]
    verify(graph)


def test_erase_refuses_live_nodes(graph: Graph) -> None:
    for name in ("a", "d"):
        node = graph.find(name).producer
        assert node is not None
        with pytest.raises(VerifyError, match=r"expected no users, got"):
            graph.erase(node)


def test_erase_dead_keeps_what_outputs_need(graph: Graph) -> None:
    assert not graph.erase_dead()
    graph.outputs = [graph.find("b")]
    assert graph.erase_dead()
    verify(graph)
    assert [v.name for v in graph.values()] == ["x", "w", "a", "b"]
    graph.const(np.zeros(4, np.float32), VECTOR, "c")  # its name is free again
    verify(graph)


def test_names_are_unique_and_readable(graph: Graph) -> None:
    taken = graph.append(Exp(), graph.find("x"), names=["a"])[0]
    assert taken.name != "a" and taken.name.startswith("a_")
    with pytest.raises(VerifyError, match="%x is defined twice"):
        graph.param("x", VECTOR)
    for bad in ("", "a b", "a,b", "%a", "a)"):
        with pytest.raises(VerifyError, match="expected letters, digits"):
            graph.input(bad, VECTOR)
    with pytest.raises(VerifyError, match="expected letters, digits"):
        Graph("my model")
    with pytest.raises(VerifyError, match="no value %nothing"):
        graph.find("nothing")


def test_constants_must_be_of_their_type(graph: Graph) -> None:
    with pytest.raises(VerifyError, match=r"expected data of f32\[4\], got float64 of \(4,\)"):
        graph.const(np.zeros(4), VECTOR)
    with pytest.raises(VerifyError, match=r"got float32 of \(3,\)"):
        graph.const(np.zeros(3, np.float32), VECTOR)


def test_static_values_follow_from_weights_alone() -> None:
    graph = parse_graph(TEXT.replace("add(%x, %w)", "exp(%w)"))
    graph.emit(Iota(4))
    assert {v.name for v in graph.static_values()} == {"w", "c", "a", "b", "d"}
    graph = parse_graph(TEXT)
    assert {v.name for v in graph.static_values()} == {"w", "c"}


def test_nodes_match_by_op_and_inputs(graph: Graph) -> None:
    match graph.find("b").producer:
        case Node(op=Mul(), inputs=[Value(producer=Node(op=Add())), Value(name="a")]):
            pass
        case other:
            raise AssertionError(other)


# The verifier ---------------------------------------------------------------------------------


def swap_nodes(graph: Graph) -> None:
    graph.nodes.reverse()


def undefined_output(graph: Graph) -> None:
    graph.outputs = [Value(VECTOR, "node", "ghost")]


def double_name(graph: Graph) -> None:
    graph.find("d").name = "a"


def wrong_type(graph: Graph) -> None:
    graph.find("b").type = TensorType(F32, (5,))


def unfit_operand(graph: Graph) -> None:
    graph.find("x").type = TensorType(I32, (4,))


def lost_use(graph: Graph) -> None:
    graph.find("a").uses.pop()


def surplus_use(graph: Graph) -> None:
    graph.find("x").uses.append(graph.nodes[-1])


def foreign_producer(graph: Graph) -> None:
    graph.find("b").producer = graph.nodes[0]


def wrong_index(graph: Graph) -> None:
    graph.find("b").index = 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (swap_nodes, "reads %b before it is defined"),
        (undefined_output, "output %ghost: .* is never defined"),
        (double_name, "%a is defined 2 times"),
        (wrong_type, r"expected result types f32\[4\], got f32\[5\]"),
        (unfit_operand, "expected equal dtypes"),
        (lost_use, "%a: its use list differs"),
        (surplus_use, "%x: its use list differs"),
        (foreign_producer, "%b names another node as its producer"),
        (wrong_index, "%b names another node as its producer"),
    ],
)
def test_each_broken_rule_is_named(
    graph: Graph, damage: Callable[[Graph], None], message: str
) -> None:
    verify(graph)
    damage(graph)
    with pytest.raises(VerifyError, match=message):
        verify(graph)


STATEFUL = """\
graph g(%q: f32[2, 2, 4], %slots: i32[2], %start: i32[2], %lens: i32[1], %table: i32[1, 1]) {
  state %kv: f32[2, 2, 8, 2, 4]
  %kv1: f32[2, 2, 8, 2, 4] = write_kv(%kv, %q, %q, %slots) {layer=0}
  %a: f32[2, 2, 4] = paged_attention(%kv1_or_kv, %start) {layer=0, scale=1.0, page_size=8}
  return %a, %kv1
}
"""


def stateful(reads: str = "kv1", returns: str = "%a, %kv1") -> Graph:
    text = STATEFUL.replace("%kv1_or_kv, %start", f"%q, %{reads}, %start, %lens, %table")
    return parse_graph(text.replace("return %a, %kv1", f"return {returns}"))


def test_a_state_is_a_line_of_versions() -> None:
    verify(stateful())
    with pytest.raises(VerifyError, match=r"reads %kv after .*kv1.* replaced it"):
        verify(stateful(reads="kv"))
    with pytest.raises(VerifyError, match="output %kv was replaced by %kv1"):
        verify(stateful(returns="%a, %kv"))


def test_a_state_version_has_one_writer() -> None:
    graph = stateful()
    q, kv, slots = (graph.find(n) for n in ("q", "kv", "slots"))
    graph.append(WriteKv(1), kv, q, q, slots)
    with pytest.raises(VerifyError, match="%kv: expected one writer of this state version, got 2"):
        verify(graph)

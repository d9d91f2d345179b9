"""Operator selection: priority, predicates, the deny list, and the list of what is missing."""

from __future__ import annotations

import pytest
from sglk.errors import PassError
from sglk.ir.dtype import F32
from sglk.ir.graph import Graph, Node
from sglk.ir.parser import parse_graph
from sglk.ir.target import Denied, Row, Target
from sglk.passes.select_rows import select_rows

TEXT = """
graph g(%x: f32[tokens, 8]) {
  param %w: f32[8]
  %s: f32[8] = exp(%w)
  %a: f32[tokens, 8] = exp(%x)  # model.py:3
  %b: f32[tokens, 8] = mul(%a, %s)
  return %b
}
"""
CHIP = Target("chip", "a", frozenset({F32}), (), (), 1, 4, 32, ())


def yes(node: Node, target: Target) -> str:
    return ""


def no(node: Node, target: Target) -> str:
    return "too wide"


def row(op: str, name: str, priority: int = 0, accepts: object = yes) -> Row:
    return Row(op, name, "triton", priority, accepts)  # type: ignore[arg-type]


@pytest.fixture
def graph() -> Graph:
    return parse_graph(TEXT)


def test_the_highest_accepting_row_wins_and_static_nodes_need_none(graph: Graph) -> None:
    table = [row("exp", "slow"), row("exp", "fast", 5, no), row("exp", "good", 3), row("mul", "m")]
    selection = select_rows(graph, CHIP, table)
    assert [r.name for r in selection.chosen.values()] == ["good", "m"]
    over = [("fast", "too wide"), ("slow", "lower priority: good comes first")]
    assert list(selection.refused.values()) == [over]
    assert selection.counts() == {("exp", "good"): 1, ("mul", "m"): 1}


def test_a_denied_row_is_passed_over_with_its_reason(graph: Graph) -> None:
    table = [row("exp", "slow"), row("exp", "good", 3), row("mul", "m")]
    selection = select_rows(graph, CHIP, table, [Denied("exp", "good", "wrong on this chip")])
    assert [r.name for r in selection.chosen.values()] == ["slow", "m"]
    assert list(selection.refused.values()) == [[("good", "wrong on this chip")]]


def test_all_missing_ops_are_named_with_reasons(graph: Graph) -> None:
    expected = (
        r"chip:a: no implementation for 2 op\(s\): exp x1 first at model.py:3 \(f: too wide\); "
        r"mul x1 \(the operator table has no row for it\)"
    )
    with pytest.raises(PassError, match=expected):
        select_rows(graph, CHIP, [row("exp", "f", 1, no)])


def test_two_rows_of_one_name_are_refused(graph: Graph) -> None:
    with pytest.raises(PassError, match="row 'f' of exp is defined twice"):
        select_rows(graph, CHIP, [row("exp", "f"), row("exp", "f")])

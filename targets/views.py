"""Values in another value's memory: results of "view" rows and next versions of states."""

from __future__ import annotations

from collections.abc import Mapping

from ..ir.graph import Graph, Node, Value
from ..passes.select_rows import Selection


def view_roots(graph: Graph, selection: Selection) -> dict[Value, Value]:
    """By value: the one whose memory it shares."""
    roots: dict[Value, Value] = {}
    for node in graph.nodes:
        row = selection.chosen.get(node)
        for output in node.outputs if row is not None else ():
            source = _source(node, output, row.kind == "view" if row else False, roots)
            if source is not None:
                roots[output] = roots.get(source, source)
    return roots


def _source(node: Node, output: Value, is_view: bool, roots: Mapping[Value, Value]) -> Value | None:
    if is_view:
        return node.inputs[0]
    states = [v for v in node.inputs if roots.get(v, v).kind == "state"]
    return next((v for v in states if v.type == output.type), None)

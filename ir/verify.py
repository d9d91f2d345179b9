"""A graph's own rules: single definition, order, types that follow from the ops, honest use lists, linear states."""

from __future__ import annotations

from collections import Counter

from ..errors import VerifyError
from .graph import Graph, Node, Value


def verify(graph: Graph) -> None:
    """Raise `VerifyError` naming the first broken rule and the node."""
    _check_names(graph)
    defined: set[Value] = {*graph.inputs, *graph.params, *graph.states, *graph.consts}
    for node in graph.nodes:
        _check_node(node, defined)
        defined.update(node.outputs)
    for value in graph.outputs:
        if value not in defined:
            raise VerifyError(f"graph {graph.name}: output {value!r} is never defined")
    _check_uses(graph)
    _check_states(graph)


def _check_names(graph: Graph) -> None:
    for name, count in Counter(v.name for v in graph.values()).items():
        if count > 1:
            raise VerifyError(f"graph {graph.name}: %{name} is defined {count} times")


def _check_node(node: Node, defined: set[Value]) -> None:
    for value in node.inputs:
        if value not in defined:
            raise VerifyError(f"{node!r}: reads %{value.name} before it is defined")
    inferred = node.op.infer(*(v.type for v in node.inputs))
    got = tuple(v.type for v in node.outputs)
    if inferred != got:
        raise VerifyError(
            f"{node!r}: expected result types {', '.join(map(str, inferred))}, got {', '.join(map(str, got))}"
        )


def _check_uses(graph: Graph) -> None:
    counted: dict[Value, Counter[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            counted.setdefault(value, Counter())[node] += 1
    for value in graph.values():
        if Counter(value.uses) != counted.get(value, Counter()):
            raise VerifyError(f"%{value.name}: its use list differs from the nodes that read it")


def _check_states(graph: Graph) -> None:
    """A state version may be written once; after that write only the new version may be read."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    for state in graph.states:
        version: Value | None = state
        while version is not None:
            version = _next_version(version, order)


def _next_version(version: Value, order: dict[Node, int]) -> Value | None:
    writers = [n for n in version.uses if any(v.type == version.type for v in n.outputs)]
    if len(writers) > 1:
        raise VerifyError(
            f"%{version.name}: expected one writer of this state version, got {len(writers)}"
        )
    if not writers:
        return None
    late = [n for n in version.uses if order[n] > order[writers[0]]]
    if late:
        raise VerifyError(f"{late[0]!r}: reads %{version.name} after {writers[0]!r} replaced it")
    return next(v for v in writers[0].outputs if v.type == version.type)

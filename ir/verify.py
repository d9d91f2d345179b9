"""A graph's own rules: single definition, order, types that follow from the ops, honest use lists,
linear states."""

from __future__ import annotations

from collections import Counter

from ..errors import VerifyError
from .graph import Graph, Node, Value
from .op import result_types


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
    wanted = result_types(node.op, [v.type for v in node.inputs])
    got = tuple(v.type for v in node.outputs)
    if wanted != got:
        texts = (", ".join(map(str, types)) for types in (wanted, got))
        raise VerifyError("{!r}: expected result types {}, got {}".format(node, *texts))
    for i, value in enumerate(node.outputs):
        if value.producer is not node or value.index != i:
            raise VerifyError(f"{node!r}: %{value.name} names another node as its producer")


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
        version = state
        while (following := _next_version(version, order)) is not None:
            if graph.is_output(version):
                raise VerifyError(
                    f"graph {graph.name}: output %{version.name} was replaced by %{following.name}"
                )
            version = following


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

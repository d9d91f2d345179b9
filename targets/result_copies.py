"""Results that no node writes into memory of their own: inputs and weights that are returned as
they are, views of them, and one value returned twice. Each is copied at the end of the program."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..ir.graph import Node, Value
from ..ir.ops.shape import Broadcast


def copied_results(
    results: Sequence[Value], roots: Mapping[Value, Value], static: Collection[Value]
) -> list[Value | None]:
    """For each result None, or the value that a node outside the graph makes by copying it."""
    taken: set[Value] = set()
    copies: list[Value | None] = []
    for place, value in enumerate(results):
        root = roots.get(value, value)
        is_own = root.kind == "node" and root not in static and root not in taken
        copies.append(None if is_own else _copy(value, f"{value.name}_result{place}"))
        taken.add(root)
    return copies


def _copy(value: Value, name: str) -> Value:
    node = Node(Broadcast(value.type.shape), [value])
    node.outputs.append(Value(value.type, "node", name, node))
    return node.outputs[0]

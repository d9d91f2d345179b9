"""What rules ask of values: constants, producers, single users, operand order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from ..ir.graph import Graph, Node, Value
from ..ir.op import Op
from ..ir.ops.shape import Reshape

Rule = Callable[[Graph, Node], Value | None]
"""Returns the value that replaces the node's one result, or None when the rule does not fire."""

MAX_SCALAR_ELEMENTS = 65536
"""Larger constants are not searched for one repeated value."""


def scalar(value: Value) -> float | None:
    """The number that every element of a constant is; None for anything else."""
    data = value.data
    if value.kind != "const" or data is None or not 0 < data.size <= MAX_SCALAR_ELEMENTS:
        return None
    first = data.flat[0]
    return float(first) if np.all(data == first) else None


def produced_by(value: Value, op: type[Op]) -> Node | None:
    """The node that makes ``value`` if it applies ``op``."""
    node = value.producer
    return node if node is not None and isinstance(node.op, op) else None


def either_order(node: Node) -> Iterator[tuple[Value, Value]]:
    """Both orders of a commutative node's two operands."""
    a, b = node.inputs
    yield a, b
    yield b, a


def only_user(graph: Graph, value: Value) -> Node | None:
    """The one node that reads ``value``, once; None when it has other users or is an output."""
    if len(value.uses) != 1 or graph.is_output(value):
        return None
    return value.uses[0]


def is_row(value: Value, width: object) -> bool:
    """A vector of ``width``, or the same with leading dims of 1."""
    shape = value.type.shape
    return bool(shape) and shape[-1] == width and all(d == 1 for d in shape[:-1])


def are_defined_before(graph: Graph, values: Iterable[Value], node: Node) -> bool:
    """True if a node placed just before ``node`` may read all of ``values``."""
    at = graph.nodes.index(node)
    makers = {v.producer for v in values} - {None}
    return makers <= set(graph.nodes[:at])


def as_vector(graph: Graph, row: Value, before: Node) -> Value:
    """A row (see `is_row`) as a vector, by a reshape if need be."""
    if row.type.rank == 1:
        return row
    return graph.emit(Reshape(row.type.shape[-1:]), row, before=before)


def shortest_f32(x: float) -> float:
    """The shortest decimal that is the same f32: 9.999999974752427e-07 becomes 1e-06."""
    return float(str(np.float32(x)))

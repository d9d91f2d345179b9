"""Rules on ops that move or rename elements; all exact."""

from __future__ import annotations

import numpy as np

from ..ir.dim import Dim
from ..ir.graph import Graph, Node, Value
from ..ir.op import Op
from ..ir.ops import elementwise
from ..ir.ops.elementwise import Binary, Where
from ..ir.ops.reduce import Max, Mean, Sum
from ..ir.ops.shape import Broadcast, Concat, Reshape, Slice, Transpose
from ..ir.ops.sparse import GatherRows
from ..ir.types import TensorType, broadcast_shapes
from .patterns import Rule, produced_by, scalar


def reshape_of_reshape(graph: Graph, node: Node) -> Value | None:
    inner = produced_by(node.inputs[0], Reshape)
    return None if inner is None else graph.emit(node.op, inner.inputs[0], before=node)


def reshape_of_reduce(graph: Graph, node: Node) -> Value | None:
    """A reduction whose axis is put back as 1 keeps its dim from the start."""
    inner = node.inputs[0].producer
    if inner is None or not isinstance(inner.op, Sum | Mean | Max) or inner.op.keepdim:
        return None
    x = inner.inputs[0]
    kept = type(inner.op)(inner.op.axis, keepdim=True)
    return graph.emit(kept, x, before=node) if kept.infer(x.type) == _types(node) else None


def transpose_of_transpose(graph: Graph, node: Node) -> Value | None:
    inner = produced_by(node.inputs[0], Transpose)
    if inner is None:
        return None
    assert isinstance(inner.op, Transpose) and isinstance(node.op, Transpose)
    first, second = inner.op.permutation, node.op.permutation
    return graph.emit(Transpose(tuple(first[p] for p in second)), inner.inputs[0], before=node)


def transpose_of_ones(graph: Graph, node: Node) -> Value | None:
    """Moving dims of 1 only is a reshape."""
    assert isinstance(node.op, Transpose)
    (x,) = node.inputs
    wide = [p for p in node.op.permutation if x.type.shape[p] != 1]
    if wide != sorted(wide):
        return None
    return graph.emit(Reshape(node.outputs[0].type.shape), x, before=node)


def broadcast_of_broadcast(graph: Graph, node: Node) -> Value | None:
    inner = produced_by(node.inputs[0], Broadcast)
    return None if inner is None else graph.emit(node.op, inner.inputs[0], before=node)


def broadcast_that_reshapes(graph: Graph, node: Node) -> Value | None:
    """Nothing is repeated when only dims of 1 are added."""
    (x,), (y,) = node.inputs, node.outputs
    extra = y.type.rank - x.type.rank
    if y.type.shape != (1,) * extra + x.type.shape:
        return None
    return graph.emit(Reshape(y.type.shape), x, before=node)


def operand_broadcasts_itself(graph: Graph, node: Node) -> Value | None:
    """An elementwise op repeats dims of 1 on its own, if another operand has the full size."""
    inputs = list(node.inputs)
    for i, value in enumerate(inputs):
        inner = produced_by(value, Broadcast)
        narrow = [v if inner is None or j != i else inner.inputs[0] for j, v in enumerate(inputs)]
        shape = broadcast_shapes(node.op.name, *(v.type.shape for v in narrow))
        if shape == node.outputs[0].type.shape:
            inputs = narrow
    return None if inputs == node.inputs else graph.emit(node.op, *inputs, before=node)


def slice_of_slice(graph: Graph, node: Node) -> Value | None:
    inner = produced_by(node.inputs[0], Slice)
    if inner is None:
        return None
    a, b = inner.op, node.op
    assert isinstance(a, Slice) and isinstance(b, Slice)
    bounds = (a.start, b.start, b.stop)
    if a.axis != b.axis or a.step != 1 or not all(isinstance(d, int) for d in bounds):
        return None
    both = Slice(b.axis, a.start + b.start, a.start + b.stop, b.step)
    return graph.emit(both, inner.inputs[0], before=node)


def slice_of_concat(graph: Graph, node: Node) -> Value | None:
    """A slice that lies within one part reads that part."""
    inner = produced_by(node.inputs[0], Concat)
    op = node.op
    assert isinstance(op, Slice)
    if inner is None or not isinstance(inner.op, Concat) or inner.op.axis != op.axis:
        return None
    if not (isinstance(op.start, int) and isinstance(op.stop, int)):
        return None
    at = 0
    for part in inner.inputs:
        size = part.type.shape[op.axis]
        if not isinstance(size, int):
            return None
        if at <= op.start and op.stop <= at + size:
            within = Slice(op.axis, op.start - at, op.stop - at, op.step)
            return graph.emit(within, part, before=node)
        at += size
    return None


def concat_of_empty(graph: Graph, node: Node) -> Value | None:
    """Operands without elements go, such as what a rotation of whole heads leaves over."""
    assert isinstance(node.op, Concat)
    axis = node.op.axis
    full = [v for v in node.inputs if v.type.shape[axis] != 0]
    if not full or len(full) == len(node.inputs):
        return None
    return graph.emit(node.op, *full, before=node)


def concat_of_slices(graph: Graph, node: Node) -> Value | None:
    """Neighbouring slices that make up the whole again are the whole."""
    assert isinstance(node.op, Concat)
    slices = [produced_by(v, Slice) for v in node.inputs]
    first = slices[0]
    if first is None:
        return None
    whole = first.inputs[0]
    at: Dim = 0
    for part in slices:
        if part is None or part.inputs[0] is not whole:
            return None
        op = part.op
        assert isinstance(op, Slice)
        if (op.axis, op.start, op.step) != (node.op.axis, at, 1):
            return None
        at = op.stop
    return whole if whole.type == node.outputs[0].type else None


def rows_of_one_value(graph: Graph, node: Node) -> Value | None:
    """Rows of a table that holds one number only."""
    number = node.inputs[0] if scalar(node.inputs[0]) is not None else None
    if number is None or number.data is None:
        return None
    one = graph.const(number.data.reshape(-1)[0].reshape(()), TensorType(number.type.dtype, ()))
    return graph.emit(Broadcast(node.outputs[0].type.shape), one, before=node)


def rows_that_count(graph: Graph, node: Node) -> Value | None:
    """Row i of the table 0, 1, 2, ... is i."""
    table, rows = node.inputs
    data = table.data
    if (
        table.kind != "const"
        or data is None
        or data.ndim != 1
        or rows.type.dtype != table.type.dtype
    ):
        return None
    return rows if np.array_equal(data, np.arange(len(data))) else None


def _types(node: Node) -> tuple[object, ...]:
    return tuple(v.type for v in node.outputs)


_ELEMENTWISE = [
    op
    for op in vars(elementwise).values()
    if isinstance(op, type) and issubclass(op, Binary | Where) and op is not Binary
]

RULES: dict[type[Op], tuple[Rule, ...]] = {
    Reshape: (reshape_of_reshape, reshape_of_reduce),
    Transpose: (transpose_of_transpose, transpose_of_ones),
    Broadcast: (broadcast_of_broadcast, broadcast_that_reshapes),
    Slice: (slice_of_slice, slice_of_concat),
    Concat: (concat_of_empty, concat_of_slices),
    GatherRows: (rows_of_one_value, rows_that_count),
    **dict.fromkeys(_ELEMENTWISE, (operand_broadcasts_itself,)),
}

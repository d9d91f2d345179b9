"""Rules that give matrix products one spelling: `linear` wherever a weight is multiplied."""

from __future__ import annotations

from ..ir.dtype import F32
from ..ir.graph import Graph, Node, Value
from ..ir.op import Op
from ..ir.ops.elementwise import Mul
from ..ir.ops.linear import Linear, MatMul
from ..ir.ops.shape import Reshape, Transpose
from .patterns import Rule, produced_by

MOST_AXES = 4


def outer_product(graph: Graph, node: Node) -> Value | None:
    """[..., M, 1] times [..., 1, N] multiplies elements; exact."""
    a, b = node.inputs
    return graph.emit(Mul(), a, b, before=node) if a.type.shape[-1] == 1 else None


def matmul_with_weight(graph: Graph, node: Node) -> Value | None:
    """x times a parameter (or its transpose) is a linear; the same products in the same order."""
    x, weight = node.inputs
    if x.type.dtype != F32 or x.type.rank < 2 or weight.type.rank != 2:
        return None
    turned = produced_by(weight, Transpose)
    source = turned.inputs[0] if turned else weight
    if source.kind not in ("param", "const"):
        return None
    if turned is None:
        source = graph.emit(Transpose((1, 0)), weight, before=graph.nodes[0])
    return graph.emit(Linear(), x, source, before=node)


def weight_times_columns(graph: Graph, node: Node) -> Value | None:
    """A parameter times columns, of which there are as many as tokens, is a linear of rows."""
    weight, x = node.inputs
    if weight.kind != "param" or weight.type.rank != 2 or x.type.dtype != F32 or x.type.rank < 2:
        return None
    if isinstance(x.type.shape[-1], int):
        return None
    order = (*range(x.type.rank - 2), x.type.rank - 1, x.type.rank - 2)
    rows = graph.emit(Transpose(order), x, before=node)
    return graph.emit(
        Transpose(order), graph.emit(Linear(), rows, weight, before=node), before=node
    )


def product_without_unit_axes(graph: Graph, node: Node) -> Value | None:
    """Batch axes of one element leave a product of more axes than kernels index; exact."""
    (y,) = node.outputs
    units = [i - y.type.rank for i, size in enumerate(y.type.shape[:-2]) if size == 1]
    if y.type.rank <= MOST_AXES or not units:
        return None
    operands = [_without(graph, node, x, units) for x in node.inputs]
    product = graph.emit(MatMul(), *operands, before=node)
    return graph.emit(Reshape(y.type.shape), product, before=node)


def _without(graph: Graph, node: Node, x: Value, units: list[int]) -> Value:
    """``x`` without the axes, counted from its end; it may have fewer."""
    rank = x.type.rank
    kept = tuple(size for i, size in enumerate(x.type.shape) if i - rank not in units)
    return x if kept == x.type.shape else graph.emit(Reshape(kept), x, before=node)


def linear_of_rows(graph: Graph, node: Node) -> Value | None:
    """reshape, linear, reshape back: the linear works on the last axis of any rank."""
    inner = produced_by(node.inputs[0], Linear)
    if inner is None or inner.op != Linear() or len(inner.outputs[0].uses) != 1:
        return None
    rows = produced_by(inner.inputs[0], Reshape)
    if rows is None:
        return None
    x, (y,) = rows.inputs[0], node.outputs
    if x.type.shape[:-1] != y.type.shape[:-1] or x.type.shape[-1] != inner.inputs[0].type.shape[-1]:
        return None
    return graph.emit(inner.op, x, *inner.inputs[1:], before=node)


RULES: dict[type[Op], tuple[Rule, ...]] = {
    MatMul: (outer_product, matmul_with_weight, weight_times_columns, product_without_unit_axes),
    Reshape: (linear_of_rows,),
}

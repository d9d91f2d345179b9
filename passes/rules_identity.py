"""Rules that remove ops whose result is their operand."""

from __future__ import annotations

from ..ir.graph import Graph, Node, Value
from ..ir.op import Op
from ..ir.ops.elementwise import Add, Cast, Div, Mul, Sub
from ..ir.ops.shape import Broadcast, Concat, Reshape, Slice, Transpose
from .patterns import Rule, scalar


def same_type(graph: Graph, node: Node) -> Value | None:
    """cast, reshape, broadcast and slice (step 1) that keep the type move nothing."""
    if isinstance(node.op, Slice) and node.op.step != 1:
        return None
    return node.inputs[0] if node.outputs[0].type == node.inputs[0].type else None


def identity_transpose(graph: Graph, node: Node) -> Value | None:
    assert isinstance(node.op, Transpose)
    in_order = node.op.permutation == tuple(range(len(node.op.permutation)))
    return node.inputs[0] if in_order else None


def concat_of_one(graph: Graph, node: Node) -> Value | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


def _neutral(graph: Graph, node: Node, number: float) -> Value | None:
    x, c = node.inputs
    keeps = x.type == node.outputs[0].type
    return x if keeps and scalar(c) == number else None


def plus_zero(graph: Graph, node: Node) -> Value | None:
    """x + 0 differs from x for x = -0.0 alone, in the sign of zero."""
    return _neutral(graph, node, 0.0)


def times_one(graph: Graph, node: Node) -> Value | None:
    return _neutral(graph, node, 1.0)


RULES: dict[type[Op], tuple[Rule, ...]] = {
    Cast: (same_type,),
    Reshape: (same_type,),
    Broadcast: (same_type,),
    Slice: (same_type,),
    Transpose: (identity_transpose,),
    Concat: (concat_of_one,),
    Add: (plus_zero,),
    Sub: (plus_zero,),
    Mul: (times_one,),
    Div: (times_one,),
}

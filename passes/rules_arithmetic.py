"""Rules that give arithmetic one spelling: constants on the right, rsqrt for its variants.

Every rule keeps each element's value to the last bit or to one rounding, as its docstring says.
"""

from __future__ import annotations

import math

import numpy as np

from ..ir.graph import Graph, Node, Value
from ..ir.op import Op
from ..ir.ops.elementwise import (
    Add,
    And,
    Cast,
    Div,
    Eq,
    Maximum,
    Minimum,
    Mul,
    Ne,
    Neg,
    Not,
    Or,
    Pow,
    Reciprocal,
    Rsqrt,
    Sqrt,
    Sub,
    Where,
)
from ..ir.types import TensorType
from .patterns import Rule, produced_by, scalar

WIDER = {
    ("bf16", "f32"), ("f16", "f32"), ("f32", "f64"), ("bf16", "f64"), ("f16", "f64"),
    ("i8", "i16"), ("i8", "i32"), ("i8", "i64"), ("i16", "i32"), ("i16", "i64"), ("i32", "i64"),
    ("u8", "i16"), ("u8", "i32"), ("u8", "i64"), ("u16", "i32"), ("u16", "i64"), ("u32", "i64"),
    ("u8", "u16"), ("u8", "u32"), ("u8", "u64"), ("u16", "u32"), ("u16", "u64"), ("u32", "u64"),
}  # fmt: skip
"""Casts that lose nothing."""


def constant_right(graph: Graph, node: Node) -> Value | None:
    """Exact: these ops are commutative."""
    a, b = node.inputs
    if a.kind == "const" and b.kind != "const":
        return graph.emit(node.op, b, a, before=node)
    return None


def _with_constant(graph: Graph, node: Node, op: Op, data: np.ndarray) -> Value | None:
    """``op(x, data)`` where x is the node's first operand, if the type stays."""
    x, old = node.inputs
    constant = graph.const(data.astype(old.type.dtype.numpy), old.type)
    return graph.emit(op, x, constant, before=node)


def minus_constant(graph: Graph, node: Node) -> Value | None:
    """x - c = x + (-c), exact."""
    data = node.inputs[1].data
    return None if data is None else _with_constant(graph, node, Add(), -data)


def over_power_of_two(graph: Graph, node: Node) -> Value | None:
    """x / c = x * (1/c), exact when c is a power of two."""
    c = scalar(node.inputs[1])
    if not c or not math.isfinite(c) or abs(math.frexp(c)[0]) != 0.5:
        return None
    data = node.inputs[1].data
    assert data is not None
    return _with_constant(graph, node, Mul(), 1 / data)


def over_root(graph: Graph, node: Node) -> Value | None:
    """1 / y = reciprocal(y); x / sqrt(y) = x * rsqrt(y), one more rounding."""
    x, y = node.inputs
    if scalar(x) == 1.0 and y.type == node.outputs[0].type and y.type.dtype.is_float:
        return graph.emit(Reciprocal(), y, before=node)
    root = produced_by(y, Sqrt)
    if root is None:
        return None
    return graph.emit(Mul(), x, graph.emit(Rsqrt(), root.inputs[0], before=node), before=node)


def reciprocal_of_root(graph: Graph, node: Node) -> Value | None:
    """1 / sqrt(y) = rsqrt(y), exact by the reference of rsqrt."""
    root = produced_by(node.inputs[0], Sqrt)
    return None if root is None else graph.emit(Rsqrt(), root.inputs[0], before=node)


def small_power(graph: Graph, node: Node) -> Value | None:
    """x ** c for c of 1, 2, 0.5 and -0.5; one rounding at most."""
    x, exponent = node.inputs
    c = scalar(exponent)
    if x.type != node.outputs[0].type:
        return None
    if c == 1.0:
        return x
    if c == 2.0:
        return graph.emit(Mul(), x, x, before=node)
    roots: dict[float | None, Op] = {0.5: Sqrt(), -0.5: Rsqrt()}
    return graph.emit(roots[c], x, before=node) if c in roots else None


def twice(graph: Graph, node: Node) -> Value | None:
    """-(-x) = x and not(not(x)) = x."""
    inner = produced_by(node.inputs[0], type(node.op))
    return None if inner is None else inner.inputs[0]


def times_minus_one(graph: Graph, node: Node) -> Value | None:
    """x * -1 = -x, exact."""
    x, c = node.inputs
    keeps = x.type == node.outputs[0].type
    return graph.emit(Neg(), x, before=node) if keeps and scalar(c) == -1.0 else None


def plus_negated(graph: Graph, node: Node) -> Value | None:
    """x + (-y) = x - y, exact."""
    for x, y in (node.inputs, node.inputs[::-1]):
        negated = produced_by(y, Neg)
        if negated is not None:
            return graph.emit(Sub(), x, negated.inputs[0], before=node)
    return None


def cast_of_cast(graph: Graph, node: Node) -> Value | None:
    """The inner cast goes when it loses nothing, and the outer one reads its operand."""
    inner = produced_by(node.inputs[0], Cast)
    if inner is None:
        return None
    x = inner.inputs[0]
    exact = (x.type.dtype.name, inner.outputs[0].type.dtype.name) in WIDER
    return graph.emit(node.op, x, before=node) if exact else None


def where_known(graph: Graph, node: Node) -> Value | None:
    """A condition that is one constant picks a side of the same type."""
    condition, a, b = node.inputs
    truth = scalar(condition)
    picked = None if truth is None else (a if truth else b)
    same = picked is not None and picked.type == _result(node)
    return picked if same else None


def _result(node: Node) -> TensorType:
    return node.outputs[0].type


RULES: dict[type[Op], tuple[Rule, ...]] = {
    Add: (constant_right, plus_negated),
    Mul: (constant_right, times_minus_one),
    Maximum: (constant_right,),
    Minimum: (constant_right,),
    Eq: (constant_right,),
    Ne: (constant_right,),
    And: (constant_right,),
    Or: (constant_right,),
    Sub: (minus_constant,),
    Div: (over_power_of_two, over_root),
    Reciprocal: (reciprocal_of_root,),
    Pow: (small_power,),
    Neg: (twice,),
    Not: (twice,),
    Cast: (cast_of_cast,),
    Where: (where_known,),
}

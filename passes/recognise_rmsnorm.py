"""Raises x * rsqrt(mean(x * x) + eps) * weight to `rmsnorm`, whatever order it is written in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..ir.dtype import F32
from ..ir.graph import Graph, Node, Value
from ..ir.ops.elementwise import Add, Mul, Rsqrt
from ..ir.ops.norm import RmsNorm
from ..ir.ops.reduce import Mean, Sum
from ..ir.types import TensorType
from .base import Pass
from .patterns import (
    as_vector,
    either_order,
    is_row,
    only_user,
    produced_by,
    scalar,
    shortest_f32,
)


@dataclass(frozen=True)
class RecogniseRmsnorm(Pass):
    """
    %m = mean(mul(%x, %x)); %n = mul(%x, rsqrt(add(%m, eps))); %y = mul(%n, %w)
      ->   %y = rmsnorm(%x, %w) {eps}
    The weight may also multiply x first, be any value of parameters and constants (such as 1 + w),
    or be missing: then it is ones. Requires: canonical form, f32.
    """

    name: ClassVar[str] = "recognise-rmsnorm"

    def run(self, graph: Graph) -> bool:
        static = graph.static_values()
        changed = False
        for node in list(graph.nodes):
            if isinstance(node.op, Mul) and node.outputs[0].type.dtype == F32:
                changed |= _raise(graph, node, static)
        return graph.erase_dead() or changed


def _raise(graph: Graph, node: Node, static: set[Value]) -> bool:
    for scaled, root in either_order(node):
        found = root_of_mean_square(root)
        if found is None:
            continue
        x, eps = found
        weight = _weight_before(scaled, x, static)
        if scaled is x:
            return _replace(graph, node, x, eps, static)
        if weight is not None:
            _emit(graph, node, x, weight, eps)
            return True
    return False


def root_of_mean_square(value: Value) -> tuple[Value, float] | None:
    """``rsqrt(mean(x * x, last axis) + eps)`` -> (x, eps)."""
    root = produced_by(value, Rsqrt)
    total = produced_by(root.inputs[0], Add) if root else None
    if total is None:
        return None
    eps = scalar(total.inputs[1])
    squares = mean_of_last(total.inputs[0])
    square = produced_by(squares, Mul) if squares else None
    if eps is None or square is None or square.inputs[0] is not square.inputs[1]:
        return None
    return square.inputs[0], shortest_f32(eps)


def mean_of_last(value: Value) -> Value | None:
    """The operand of a mean over the last axis, kept as 1; also of sum * (1 / width)."""
    node = value.producer
    if node is not None and isinstance(node.op, Mean):
        return node.inputs[0] if _reduces_last(node) else None
    scaled = produced_by(value, Mul)
    total = produced_by(scaled.inputs[0], Sum) if scaled else None
    if scaled is None or total is None or not _reduces_last(total):
        return None
    factor, width = scalar(scaled.inputs[1]), total.inputs[0].type.shape[-1]
    same = (
        isinstance(width, int)
        and factor is not None
        and np.float32(factor) == np.float32(1 / width)
    )
    return total.inputs[0] if same else None


def _reduces_last(node: Node) -> bool:
    assert isinstance(node.op, Mean | Sum)
    rank = node.inputs[0].type.rank
    return node.op.keepdim and node.op.axis % rank == rank - 1


def _weight_before(scaled: Value, x: Value, static: set[Value]) -> Value | None:
    """The weight of ``(x * w) * rsqrt(...)``."""
    product = produced_by(scaled, Mul)
    for a, b in either_order(product) if product else ():
        if a is x and b in static and is_row(b, x.type.shape[-1]):
            return b
    return None


def _replace(graph: Graph, node: Node, x: Value, eps: float, static: set[Value]) -> bool:
    """The weight may follow in the one op that reads the normed value."""
    user = only_user(graph, node.outputs[0])
    for normed, weight in either_order(user) if user and isinstance(user.op, Mul) else ():
        if normed is node.outputs[0] and weight in static and is_row(weight, x.type.shape[-1]):
            assert user is not None
            _emit(graph, user, x, weight, eps)
            return True
    width = x.type.shape[-1]
    if not isinstance(width, int):
        return False
    ones = graph.const(np.ones(width, np.float32), TensorType(F32, (width,)))
    _emit(graph, node, x, ones, eps)
    return True


def _emit(graph: Graph, node: Node, x: Value, weight: Value, eps: float) -> None:
    vector = as_vector(graph, weight, node)
    graph.replace(node.outputs[0], graph.emit(RmsNorm(eps), x, vector, before=node))

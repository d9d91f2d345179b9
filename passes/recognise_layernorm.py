"""Raises (x - mean) * rsqrt(var + eps) * weight + bias to `layernorm`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..ir.dtype import F32
from ..ir.graph import Graph, Node, Value
from ..ir.op import Op
from ..ir.ops.elementwise import Add, Mul, Sub
from ..ir.ops.norm import LayerNorm
from ..ir.types import TensorType
from .base import Pass
from .patterns import as_vector, either_order, is_row, only_user, produced_by
from .recognise_rmsnorm import mean_of_last, root_of_mean_square


@dataclass(frozen=True)
class RecogniseLayernorm(Pass):
    """
    %c = sub(%x, mean(%x)); %n = mul(%c, rsqrt(add(mean(mul(%c, %c)), eps)))
    %y = add(mul(%n, %w), %b)   ->   %y = layernorm(%x, %w, %b) {eps}
    A missing weight is ones, a missing bias zeros. Requires: canonical form, f32. Runs before
    `recognise-rmsnorm`, which would take the part after the subtraction.
    """

    name: ClassVar[str] = "recognise-layernorm"

    def run(self, graph: Graph) -> bool:
        static = graph.static_values()
        changed = False
        for node in list(graph.nodes):
            x_eps = _normed(node)
            if x_eps is not None:
                changed |= _raise(graph, node, *x_eps, static)
        return graph.erase_dead() or changed


def _normed(node: Node) -> tuple[Value, float] | None:
    """``c * rsqrt(mean(c * c) + eps)`` with c = x - mean(x) -> (x, eps)."""
    if not isinstance(node.op, Mul) or node.outputs[0].type.dtype != F32:
        return None
    for centred, root in either_order(node):
        found = root_of_mean_square(root)
        difference = produced_by(centred, Sub)
        if found is None or found[0] is not centred or difference is None:
            continue
        x, mean = difference.inputs
        if mean_of_last(mean) is x:
            return x, found[1]
    return None


def _raise(graph: Graph, node: Node, x: Value, eps: float, static: set[Value]) -> bool:
    width = x.type.shape[-1]
    if not isinstance(width, int):
        return False
    last, weight = _take(graph, node, Mul, width, static)
    last, bias = _take(graph, last, Add, width, static)
    row = TensorType(F32, (width,))
    weight = weight or graph.const(np.ones(width, np.float32), row)
    bias = bias or graph.const(np.zeros(width, np.float32), row)
    operands = [as_vector(graph, v, last) for v in (weight, bias)]
    graph.replace(last.outputs[0], graph.emit(LayerNorm(eps), x, *operands, before=last))
    return True


def _take(
    graph: Graph, node: Node, op: type[Op], width: int, static: set[Value]
) -> tuple[Node, Value | None]:
    """The op that alone reads ``node`` and its static row, or ``node`` itself and None."""
    user = only_user(graph, node.outputs[0])
    for value, row in either_order(user) if user and isinstance(user.op, op) else ():
        if value is node.outputs[0] and row in static and is_row(row, width):
            assert user is not None
            return user, row
    return node, None

"""Moves a factor and a summand of each channel, such as a batch norm, into the convolution."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ..ir.graph import Graph, Node, Value
from ..ir.ops.elementwise import Add, Mul
from ..ir.ops.shape import Reshape
from ..ir.ops.spatial import Convolution
from .base import Pass
from .patterns import either_order, only_user


@dataclass(frozen=True)
class FuseConvolutionScale(Pass):
    """
    %c = convolution(%x, %w); %s = mul(%c, %a); %y = add(%s, %b)
      ->   %v = mul(%w, %a); %y = convolution(%x, %v, %b) {has_bias=True}
    of static %a and %b [channels, 1, ...]: %v is worked out when weights are packed.

    Requires: static weight and bias, the convolution and the product each read by that one op.
    """

    name: ClassVar[str] = "fuse-convolution-scale"

    def run(self, graph: Graph) -> bool:
        changed = False
        for node in list(graph.nodes):
            fused: Node | None = node
            while fused is not None and isinstance(fused.op, Convolution):
                changed |= fused is not node
                fused = _absorb_next(graph, fused, fused.op)
        return graph.erase_dead() or changed


def _absorb_next(graph: Graph, node: Node, op: Convolution) -> Node | None:
    """The convolution that does the work of ``node`` and of the one op that reads it."""
    (y,), static = node.outputs, graph.static_values()
    user = only_user(graph, y)
    if user is None or not isinstance(user.op, Add | Mul) or user.outputs[0].type != y.type:
        return None
    if not all(v in static for v in node.inputs[1:]):
        return None
    other = next(b for a, b in either_order(user) if a is y)
    if other not in static or not _is_by_channel(other, y):
        return None
    column = graph.emit(Reshape((y.type.shape[1],)), other, before=user)
    x, weight, *rest = node.inputs
    bias = rest[0] if rest else None
    if isinstance(user.op, Mul):
        shape = (y.type.shape[1], *(1 for _ in weight.type.shape[1:]))
        factor = graph.emit(Reshape(shape), column, before=user)
        weight = graph.emit(Mul(), weight, factor, before=user)
        bias = graph.emit(Mul(), bias, column, before=user) if bias else None
    else:
        bias = graph.emit(Add(), bias, column, before=user) if bias else column
    operands = [x, weight] if bias is None else [x, weight, bias]
    fused = graph.emit(replace(op, has_bias=bias is not None), *operands, before=user)
    graph.replace(user.outputs[0], fused)
    return fused.producer


def _is_by_channel(value: Value, y: Value) -> bool:
    """One number for each channel, axis 1 of ``y``, and f32 as it is."""
    full = (*(1 for _ in range(y.type.rank - value.type.rank)), *value.type.shape)
    wanted = (1, y.type.shape[1], *(1 for _ in y.type.shape[2:]))
    return full == wanted and value.type.dtype == y.type.dtype

"""Moves what follows a linear into it: bias, activation, residual sum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ..ir.dtype import F32
from ..ir.graph import Graph, Node, Value
from ..ir.ops.elementwise import Add
from ..ir.ops.linear import Linear
from .base import Pass
from .patterns import as_vector, either_order, is_row, only_user
from .recognise_gated_mlp import ACTIVATION_OPS


@dataclass(frozen=True)
class FuseLinearEpilogue(Pass):
    """
    %l = linear(%x, %w); %y = add(%l, %r)   ->   %y = linear(%x, %w, %r) {has_residual=True}
    and likewise a static bias [N], and an activation, in the order bias, activation, residual.

    Requires: f32, the linear read by that one op, a residual of exactly its type. A residual sum
    that a norm reads goes here and not to `fuse-add-rmsnorm`: linear and norm are two kernels
    either way, and here the linear's result is not written and read once more.
    """

    name: ClassVar[str] = "fuse-linear-epilogue"
    bias: bool = True
    activation: bool = True
    residual: bool = True

    def run(self, graph: Graph) -> bool:
        static = graph.static_values()
        changed = False
        for node in list(graph.nodes):
            fused: Node | None = node
            while fused is not None and isinstance(fused.op, Linear):
                changed |= fused is not node
                fused = self._absorb_next(graph, fused, fused.op, static)
        return graph.erase_dead() or changed

    def _absorb_next(self, graph: Graph, node: Node, op: Linear, static: set[Value]) -> Node | None:
        """The linear that does the work of ``node`` and of the one op that reads it."""
        (y,) = node.outputs
        user = only_user(graph, y)
        if user is None or op.has_residual or y.type.dtype != F32:
            return None
        if self.activation and isinstance(user.op, ACTIVATION_OPS) and op.activation is None:
            fused = replace(op, activation=user.op.name)
            return _replaced(graph, user, fused, node.inputs)
        if not isinstance(user.op, Add) or user.outputs[0].type != y.type:
            return None
        other = next(b for a, b in either_order(user) if a is y)
        if self.bias and op == Linear() and other in static and is_row(other, y.type.shape[-1]):
            bias = as_vector(graph, other, user)
            return _replaced(graph, user, Linear(has_bias=True), [*node.inputs, bias])
        if self.residual and other.type == y.type:
            return _replaced(graph, user, replace(op, has_residual=True), [*node.inputs, other])
        return None


def _replaced(graph: Graph, user: Node, op: Linear, inputs: list[Value]) -> Node | None:
    (old,) = user.outputs
    new = graph.emit(op, *inputs, before=user)
    graph.replace(old, new)
    return new.producer

"""Raises activation(x wg^T) * (x wu^T) to one `gated_linear` on the joined weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.dim import Dim
from ..ir.graph import Graph, Node, Value
from ..ir.op import Op
from ..ir.ops.elementwise import Gelu, GeluTanh, Mul, Relu, Sigmoid, Silu, Tanh
from ..ir.ops.linear import GatedLinear, Linear
from ..ir.ops.shape import Concat, Slice
from .base import Pass
from .patterns import either_order, only_user, produced_by

ACTIVATION_OPS: tuple[type[Op], ...] = (Silu, Gelu, GeluTanh, Relu, Sigmoid, Tanh)


@dataclass(frozen=True)
class RecogniseGatedMlp(Pass):
    """
    %y = mul(silu(linear(%x, %wg)), linear(%x, %wu))
      ->   %y = gated_linear(%x, concat(%wg, %wu)) {activation="silu"}
    Also for one linear whose two halves are taken by slices. Requires: no bias, weights of one
    dtype and shape, both products read nowhere else.
    """

    name: ClassVar[str] = "recognise-gated-mlp"
    rows: int = 1
    """Each half must have a multiple of this many rows (`Target.gated_rows`)."""

    def run(self, graph: Graph) -> bool:
        changed = False
        for node in list(graph.nodes):
            width = node.outputs[0].type.shape[-1:]
            if isinstance(node.op, Mul) and width and _is_multiple(width[0], self.rows):
                changed |= _raise(graph, node)
        return graph.erase_dead() or changed


def _is_multiple(width: Dim, rows: int) -> bool:
    return isinstance(width, int) and width % rows == 0


def _raise(graph: Graph, node: Node) -> bool:
    for activated, up in either_order(node):
        act = activated.producer
        if act is None or not isinstance(act.op, ACTIVATION_OPS):
            continue
        gate = act.inputs[0]
        if any(only_user(graph, v) is None for v in (activated, gate, up)):
            continue
        found = _two_linears(graph, node, gate, up) or _two_halves(graph, gate, up)
        if found is not None:
            op = GatedLinear(act.op.name)
            graph.replace(node.outputs[0], graph.emit(op, *found, before=node))
            return True
    return False


def _two_linears(graph: Graph, node: Node, gate: Value, up: Value) -> tuple[Value, Value] | None:
    a, b = produced_by(gate, Linear), produced_by(up, Linear)
    if a is None or b is None or a.op != Linear() or b.op != Linear():
        return None
    (x, wg), (y, wu) = a.inputs, b.inputs
    if x is not y or wg.type != wu.type:
        return None
    return x, graph.emit(Concat(0), wg, wu, before=node)


def _two_halves(graph: Graph, gate: Value, up: Value) -> tuple[Value, Value] | None:
    """gate first, as the joined weight has it."""
    a, b = produced_by(gate, Slice), produced_by(up, Slice)
    if a is None or b is None or a.inputs[0] is not b.inputs[0]:
        return None
    whole = a.inputs[0]
    linear = produced_by(whole, Linear)
    axis, width = whole.type.rank - 1, whole.type.shape[-1]
    if linear is None or linear.op != Linear() or not isinstance(width, int):
        return None
    halves = (Slice(axis, 0, width // 2), Slice(axis, width // 2, width))
    if (a.op, b.op) != halves or len(whole.uses) != 2 or graph.is_output(whole):
        return None
    return linear.inputs[0], linear.inputs[1]

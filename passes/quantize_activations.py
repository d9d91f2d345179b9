"""Gives products their activations as 8-bit integers: ``--activations int8``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ..ir.dtype import BF16, F32
from ..ir.graph import Graph, Node
from ..ir.ops.activations import QuantizeRows
from ..ir.ops.elementwise import Cast
from ..ir.ops.linear import GatedLinear, Linear
from .base import Pass


@dataclass(frozen=True)
class QuantizeActivations(Pass):
    """
    %y = linear(%x f32, %w)   ->   %q, %s = quantize_rows(%x); %y = linear(%q, %w, %s)
    For weights of block types, not of group forms. Others keep their activations. With
    ``rounded_from`` products get x in bf16 too, for so many rows or more.
    """

    name: ClassVar[str] = "quantize-activations"
    keeps_numbers: ClassVar[bool] = False  # activations are rounded
    rounded_from: int = 0

    def run(self, graph: Graph) -> bool:
        changed = False
        for node in list(graph.nodes):
            if isinstance(node.op, Linear | GatedLinear):
                changed |= _quantize(graph, node, node.op, self.rounded_from)
        return graph.erase_dead() or changed


def _quantize(graph: Graph, node: Node, op: Linear | GatedLinear, rounded_from: int) -> bool:
    x, w, *rest = node.inputs
    kind = w.type.dtype
    if x.type.dtype != F32 or not kind.is_block or kind.form is not None:
        return False
    integers, scales = graph.append(QuantizeRows(), x, before=node)
    sides = [scales]
    if rounded_from:
        sides.append(graph.emit(Cast(BF16), x, before=node))
    chosen = replace(op, has_scales=True, rounded_from=rounded_from)
    made = graph.append(chosen, integers, w, *sides, *rest, before=node)
    graph.replace(node.outputs[0], made[0])
    return True

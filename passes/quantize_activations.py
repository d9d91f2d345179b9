"""Gives products their activations as 8-bit integers: ``--activations int8``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ..ir.dtype import F32
from ..ir.graph import Graph, Node
from ..ir.ops.activations import QuantizeRows
from ..ir.ops.linear import GatedLinear, Linear
from .base import Pass


@dataclass(frozen=True)
class QuantizeActivations(Pass):
    """
    %y = linear(%x f32, %w)   ->   %q, %s = quantize_rows(%x); %y = linear(%q, %w, %s)
    For weights of block types, not of group forms. Others keep their activations.
    """

    name: ClassVar[str] = "quantize-activations"
    keeps_numbers: ClassVar[bool] = False  # activations are rounded

    def run(self, graph: Graph) -> bool:
        changed = False
        for node in list(graph.nodes):
            if isinstance(node.op, Linear | GatedLinear):
                changed |= _quantize(graph, node, node.op)
        return graph.erase_dead() or changed


def _quantize(graph: Graph, node: Node, op: Linear | GatedLinear) -> bool:
    x, w, *rest = node.inputs
    kind = w.type.dtype
    if x.type.dtype != F32 or not kind.is_block or kind.form is not None:
        return False
    integers, scales = graph.append(QuantizeRows(), x, before=node)
    made = graph.append(replace(op, has_scales=True), integers, w, scales, *rest, before=node)
    graph.replace(node.outputs[0], made[0])
    return True

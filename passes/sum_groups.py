"""Gives products with weights d q + m the sums of their activations by group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ..ir.dtype import F32
from ..ir.graph import Graph, Node
from ..ir.ops.activations import GroupSums
from ..ir.ops.linear import GatedLinear, Linear
from .base import Pass
from .round_activations import WITH_MINIMUM


@dataclass(frozen=True)
class SumGroups(Pass):
    """
    %y = linear(%x f32, %w)   ->   %s = group_sums(%x); %y = linear(%x, %w, %s)
    For weights of block types with a minimum: each output then adds m times a group's sum, instead
    of m to each weight of the group.
    """

    name: ClassVar[str] = "sum-groups"

    def run(self, graph: Graph) -> bool:
        changed = False
        for node in list(graph.nodes):
            if isinstance(node.op, Linear | GatedLinear):
                changed |= _add_sums(graph, node, node.op)
        return graph.erase_dead() or changed


def _add_sums(graph: Graph, node: Node, op: Linear | GatedLinear) -> bool:
    x, w, *rest = node.inputs
    plain = x.type.dtype == F32 and not op.has_sums
    if not plain or w.type.dtype.name not in WITH_MINIMUM:
        return False
    sums = graph.emit(GroupSums(), x, before=node)
    made = graph.append(replace(op, has_sums=True), x, w, sums, *rest, before=node)
    graph.replace(node.outputs[0], made[0])
    return True

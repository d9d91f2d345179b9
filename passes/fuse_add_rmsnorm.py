"""Joins a residual sum and the norm that reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.graph import Graph, Node, Value
from ..ir.ops.elementwise import Add
from ..ir.ops.norm import AddRmsNorm, RmsNorm
from .base import Pass


@dataclass(frozen=True)
class FuseAddRmsnorm(Pass):
    """
    %s = add(%x, %r); %y = rmsnorm(%s, %w)   ->   %s, %y = add_rmsnorm(%x, %r, %w)
    Requires: x and r of one type (the sum broadcasts nothing).  Ensures: no rmsnorm reads such a
    sum, unless an earlier one took it.
    """

    name: ClassVar[str] = "fuse-add-rmsnorm"

    def run(self, graph: Graph) -> bool:
        changed = False
        for norm in list(graph.nodes):
            match norm:
                case Node(RmsNorm(eps=eps), [Value(producer=Node(Add()) as add), weight]):
                    changed |= _fuse(graph, add, norm, weight, eps)
        return graph.erase_dead() or changed


def _fuse(graph: Graph, add: Node, norm: Node, weight: Value, eps: float) -> bool:
    x, r = add.inputs
    if x.type != r.type:
        return False
    before = _place(graph, add, norm, weight)
    if before is None:
        return False
    total, normed = graph.append(AddRmsNorm(eps), x, r, weight, before=before)
    graph.replace(add.outputs[0], total)
    graph.replace(norm.outputs[0], normed)
    return True


def _place(graph: Graph, add: Node, norm: Node, weight: Value) -> Node | None:
    """The sum's place if the weight is known there, else the norm's if no one reads it earlier."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    if weight.producer is None or order[weight.producer] < order[add]:
        return add
    earliest = min(order[user] for user in add.outputs[0].uses)
    return norm if earliest == order[norm] else None

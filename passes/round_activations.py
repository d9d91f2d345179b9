"""Gives products their activations in bf16: ``--activations bf16``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ..ir.dtype import BF16, F32, DType
from ..ir.graph import Graph, Node
from ..ir.ops.activations import RoundRows
from ..ir.ops.elementwise import Cast
from ..ir.ops.linear import GatedLinear, Linear
from .base import Pass

WITH_MINIMUM = frozenset({"q4_1", "q5_1", "q4_k", "q5_k"})
"""Block types of weights d q + m: their products need the sums of x by group."""


@dataclass(frozen=True)
class RoundActivations(Pass):
    """
    %y = linear(%x f32, %w)   ->   %b, %s = round_rows(%x); %y = linear(%b, %w, %s)
    For weights of block types with a minimum; for other block types and bf16 weights a cast, and
    no sums. Products with f32 weights keep their f32 activations. With ``rounded_from`` products
    of so many rows or more round weights of block types.
    """

    name: ClassVar[str] = "round-activations"
    keeps_numbers: ClassVar[bool] = False  # activations are rounded
    sums: bool = True
    """False: leave the sums out, for kernels that have no use for them."""
    rounded_from: int = 0

    def run(self, graph: Graph) -> bool:
        changed = False
        for node in list(graph.nodes):
            if isinstance(node.op, Linear | GatedLinear):
                changed |= self._round(graph, node, node.op)
        return graph.erase_dead() or changed

    def _round(self, graph: Graph, node: Node, op: Linear | GatedLinear) -> bool:
        x, w, *rest = node.inputs
        kind = w.type.dtype
        if x.type.dtype != F32 or not _takes_bf16(kind):
            return False
        if kind.is_block and kind.form is None:
            op = replace(op, rounded_from=self.rounded_from)
        if self.sums and kind.name in WITH_MINIMUM:
            rounded, sums = graph.append(RoundRows(), x, before=node)
            made = graph.append(replace(op, has_sums=True), rounded, w, sums, *rest, before=node)
        else:
            rounded = graph.emit(Cast(BF16), x, before=node)
            made = graph.append(op, rounded, w, *rest, before=node)
        graph.replace(node.outputs[0], made[0])
        return True


def _takes_bf16(weight: DType) -> bool:
    return weight.is_block or weight == BF16

"""Lets attention multiply in bf16: ``--activations bf16``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ..ir.dtype import BF16
from ..ir.graph import Graph
from ..ir.ops.attention import PagedAttention
from .base import Pass


@dataclass(frozen=True)
class RoundAttention(Pass):
    """
    %y = paged_attention(%q, %state, ...)   ->   the same with ``products`` bf16
    On states of bf16: there q and the weights of the softmax may round as K and V did.
    """

    name: ClassVar[str] = "round-attention"
    keeps_numbers: ClassVar[bool] = False  # q is rounded

    def run(self, graph: Graph) -> bool:
        changed = False
        for node in list(graph.nodes):
            op = node.op
            if not isinstance(op, PagedAttention) or op.products == BF16:
                continue
            if node.inputs[1].type.dtype == BF16:
                (y,) = graph.append(replace(op, products=BF16), *node.inputs, before=node)
                graph.replace(node.outputs[0], y)
                changed = True
        return graph.erase_dead() or changed

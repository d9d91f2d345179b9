"""Joins the three projections before an attention into one linear on [wq; wk; wv]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.graph import Graph, Node, Value
from ..ir.ops.attention import PagedAttention, WriteKv
from ..ir.ops.linear import Linear
from ..ir.ops.norm import LayerNorm, RmsNorm
from ..ir.ops.rope import Rope
from ..ir.ops.shape import Concat, Reshape, Slice
from .base import Pass
from .patterns import are_defined_before, produced_by

BETWEEN = (Rope, Reshape, RmsNorm, LayerNorm)
"""Ops that may lie between a projection and the attention, all on their first operand."""


@dataclass(frozen=True)
class RecogniseQkv(Pass):
    """
    %q = linear(%x, %wq); %k = linear(%x, %wk); %v = linear(%x, %wv)
      ->   %l = linear(%x, concat(%wq, %wk, %wv)); %q, %k, %v = slices of %l
    q, k and v are what reaches a `paged_attention` and its `write_kv`. Requires: weights of one
    dtype (block types join by rows, which keeps their blocks), a bias on all three or on none.
    """

    name: ClassVar[str] = "recognise-qkv"

    def run(self, graph: Graph) -> bool:
        changed = False
        for node in list(graph.nodes):
            if isinstance(node.op, PagedAttention):
                changed |= _join(graph, node)
        return graph.erase_dead() or changed


def _join(graph: Graph, attention: Node) -> bool:
    write = produced_by(attention.inputs[1], WriteKv)
    if write is None:
        return False
    parts = [_projection(v) for v in (attention.inputs[0], *write.inputs[1:3])]
    linears = [p for p in parts if p is not None]
    if len(linears) != 3 or len(set(linears)) != 3 or not _can_join(linears):
        return False
    first = min(linears, key=graph.nodes.index)
    if not are_defined_before(graph, [v for n in linears for v in n.inputs], first):
        return False
    joined = _joined_linear(graph, linears, first)
    start = 0
    for node in linears:
        stop = start + int(node.outputs[0].type.shape[-1])
        part = graph.emit(Slice(joined.type.rank - 1, start, stop), joined, before=first)
        graph.replace(node.outputs[0], part)
        start = stop
    return True


def _projection(value: Value) -> Node | None:
    """The linear that ``value`` comes from through norms, reshapes and rope."""
    node = value.producer
    while node is not None and isinstance(node.op, BETWEEN):
        node = node.inputs[0].producer
    return node if node is not None and isinstance(node.op, Linear) else None


def _can_join(linears: list[Node]) -> bool:
    first = linears[0]
    plain = first.op in (Linear(), Linear(has_bias=True))
    widths = [n.outputs[0].type.shape[-1] for n in linears]
    return (
        plain
        and all(n.op == first.op and n.inputs[0] is first.inputs[0] for n in linears)
        and len({n.inputs[1].type.dtype for n in linears}) == 1
        and all(isinstance(w, int) for w in widths)
    )


def _joined_linear(graph: Graph, linears: list[Node], first: Node) -> Value:
    """The linear on the weights, and biases, one after the other."""
    operands = zip(*(n.inputs[1:] for n in linears), strict=True)
    joined = [graph.emit(Concat(0), *parts, before=first) for parts in operands]
    return graph.emit(first.op, first.inputs[0], *joined, before=first)

"""Takes apart rows of a token and a head in one axis, as models make them to norm each head."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from ..ir.dim import Dim, as_dim, dim, prod
from ..ir.graph import Graph, Node, Value
from ..ir.ops.elementwise import Binary, Cast, Unary, Where
from ..ir.ops.linear import Linear
from ..ir.ops.norm import LayerNorm, RmsNorm
from ..ir.ops.reduce import Reduce, Softmax
from ..ir.ops.shape import Reshape, Slice
from .base import Pass

TOKENS = dim("tokens")
Apart = dict[Value, tuple[Value, tuple[Dim, ...]]]
"""A value [n * tokens, ...] -> the same with the axes that were merged, and these axes."""
BROADCASTING = (Unary, Cast, Binary, Where)
ALONG_AN_AXIS = (Reduce, Softmax, Slice)
OF_ROWS = (RmsNorm, LayerNorm, Linear)


@dataclass(frozen=True)
class SplitMergedTokens(Pass):
    """
    %r: f32[4 * tokens, D] = reshape(%x: f32[1, tokens, 4, D]); %s = rmsnorm(%r, %w);
    %y: f32[1, tokens, 4 * D] = reshape(%s)
      ->   %s: f32[1, tokens, 4, D] = rmsnorm(%x, %w); %y = reshape(%s)
    For ops that work on each row alone; what is done to rows otherwise stays as it is.
    """

    name: ClassVar[str] = "split-merged-tokens"

    def run(self, graph: Graph) -> bool:
        apart: Apart = {}
        changed, given = False, dict.fromkeys(graph.nodes)
        for node in given:
            if isinstance(node.op, Reshape):
                changed |= _reshape(graph, node, apart)
            elif any(v in apart for v in node.inputs):
                _lift(graph, node, apart)
        for node in reversed([n for n in graph.nodes if n not in given]):
            if not any(v.uses for v in node.outputs):
                graph.erase(node)  # begun, but the way had no end
        return graph.erase_dead() or changed


def _reshape(graph: Graph, node: Node, apart: Apart) -> bool:
    """The start of a way of merged rows, or its end, which then reads what was never merged."""
    (x,), (y,) = node.inputs, node.outputs
    if x in apart:
        graph.replace(y, graph.emit(Reshape(y.type.shape), apart[x][0], before=node))
        return True
    merged = _merged(x, y)
    if merged:
        apart[y] = _shaped(graph, node, x, (*merged, *y.type.shape[1:])), merged
    return False


def _merged(x: Value, y: Value) -> tuple[Dim, ...]:
    """The axes (1, .., tokens, n) that ``y`` [n * tokens, ...] has in one; () if it is not so."""
    features = [d for d in x.type.shape if d not in (1, TOKENS)]
    at = x.type.shape.index(TOKENS) if TOKENS in x.type.shape else -1
    if at < 0 or any(d != 1 for d in x.type.shape[:at]) or not y.type.rank:
        return ()
    whole, row = prod(features), prod(y.type.shape[1:])
    if not isinstance(whole, int) or not isinstance(row, int) or whole % row or whole == row:
        return ()
    merged = (*x.type.shape[: at + 1], whole // row)
    return merged if as_dim(prod(merged)) == y.type.shape[0] else ()


def _shaped(graph: Graph, node: Node, x: Value, shape: tuple[Dim, ...]) -> Value:
    return x if x.type.shape == shape else graph.emit(Reshape(shape), x, before=node)


def _lift(graph: Graph, node: Node, apart: Apart) -> None:
    """The node's op on values that are not merged, if it can be done there."""
    axes = {apart[v][1] for v in node.inputs if v in apart}
    if len(axes) != 1 or len(node.outputs) != 1:
        return
    (merged,) = axes
    op, more = node.op, len(merged) - 1
    inputs = [apart[v][0] if v in apart else v for v in node.inputs]
    if isinstance(op, BROADCASTING):
        if not all(v in apart or _fits(v, node.outputs[0]) for v in node.inputs):
            return
    elif isinstance(op, ALONG_AN_AXIS):
        axis = op.axis % node.inputs[0].type.rank
        if axis == 0:
            return
        op = dataclasses.replace(op, axis=axis + more)
    elif not isinstance(op, OF_ROWS) or any(v in apart for v in node.inputs[1:]):
        return
    apart[node.outputs[0]] = graph.emit(op, *inputs, before=node), merged


def _fits(value: Value, result: Value) -> bool:
    """Whether an operand is broadcast along the merged axis, and so along those it is made of."""
    return value.type.rank < result.type.rank

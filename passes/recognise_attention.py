"""Raises softmax(f(q k^T)) v to the attention op, whatever way f spells mask, scale and bias.

A position bias that grows with the distance (ALiBi, Press et al. 2022) needs no attention of its
own: the dot product of two more elements, slope times position, is that bias, and a softmax ignores
what all keys of a query have in common. The position is split in two parts below 256, which every
type of cache holds exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..ir.dim import Dim
from ..ir.dtype import F32, I32
from ..ir.graph import Graph, Node, Value
from ..ir.op import Op
from ..ir.ops.attention import Attention
from ..ir.ops.elementwise import Cast, FloorDiv, Mul, Sub
from ..ir.ops.linear import MatMul
from ..ir.ops.reduce import Softmax
from ..ir.ops.shape import Broadcast, Concat, Iota, Reshape, Transpose
from ..ir.types import TensorType
from .base import Pass
from .patterns import only_user
from .score_probe import TOKENS, Scores, read_scores

PART = 256
"""Positions are split into multiples of this and the rest."""
EXTRA = 16
"""Elements that a head gets more for a position bias: two in use, and rows stay aligned."""


@dataclass(frozen=True)
class RecogniseAttention(Pass):
    """
    %s = matmul(%q, %kt); %p = softmax(f(%s)); %y = matmul(%p, %v)   ->   %y = attention(%q, %k, %v)
    where f scales each score, hides keys (causal, window) and may add slopes times distance.
    Requires: the captured form, one request of [1, tokens].
    """

    name: ClassVar[str] = "recognise-attention"
    keeps_numbers: ClassVar[bool] = True

    def run(self, graph: Graph) -> bool:
        if any(v.name == "query_start" for v in graph.inputs):
            return False
        changed = False
        for node in list(graph.nodes):
            if isinstance(node.op, Softmax) and node.op.axis in (-1, node.outputs[0].type.rank - 1):
                changed |= _raise(graph, node)
        return graph.erase_dead() or changed


def _raise(graph: Graph, softmax: Node) -> bool:
    weighted = _product_with_values(graph, softmax.outputs[0])
    if weighted is None or softmax.outputs[0].type.shape[-2:] != (TOKENS, TOKENS):
        return False
    scores = read_scores(softmax.inputs[0])
    if scores is None:
        return False
    build = _Builder(graph, weighted)
    q, kt = scores.product.inputs
    order = (*range(kt.type.rank - 2), kt.type.rank - 1, kt.type.rank - 2)
    k, v = build.emit(Transpose(order), kt), weighted.inputs[1]
    heads = int(np.prod([int(d) for d in scores.product.outputs[0].type.shape[:-2]]))
    operands = _operands(build, heads, q, k, v)
    if operands is None:
        return False
    if scores.slopes is not None:
        operands = _with_slopes(build, operands, scores)
    op = Attention(scores.scale, scores.causal, scores.window)
    result = build.emit(Transpose((0, 2, 1, 3)), build.emit(op, *operands))
    graph.replace(weighted.outputs[0], build.reshaped(result, weighted.outputs[0].type.shape))
    return True


def _product_with_values(graph: Graph, weights: Value) -> Node | None:
    """The one matmul that reads the softmax, through reshapes, on its left side."""
    user = only_user(graph, weights)
    while user is not None and isinstance(user.op, Reshape):
        weights = user.outputs[0]
        user = only_user(graph, weights)
    good = user is not None and isinstance(user.op, MatMul) and user.inputs[0] is weights
    return user if good and weights.type.shape[-2:] == (TOKENS, TOKENS) else None


@dataclass
class _Builder:
    """Emits in front of the product that is replaced."""

    graph: Graph
    before: Node

    def emit(self, op: Op, *inputs: Value) -> Value:
        return self.graph.emit(op, *inputs, before=self.before)

    def reshaped(self, x: Value, shape: tuple[Dim, ...]) -> Value:
        return x if x.type.shape == shape else self.emit(Reshape(shape), x)

    def const(self, data: np.ndarray) -> Value:
        dtype = F32 if data.dtype == np.float32 else I32
        return self.graph.const(data, TensorType(dtype, data.shape))


def _operands(build: _Builder, heads: int, *values: Value) -> list[Value] | None:
    """q, k and v as [1, heads, tokens, width]; k and v may have one head for all."""
    shaped = []
    for value in values:
        *lead, tokens, width = value.type.shape
        if tokens != TOKENS or not all(isinstance(d, int) for d in lead):
            return None
        own = int(np.prod([int(d) for d in lead])) if lead else 1
        if own not in (1, heads):
            return None
        shaped.append(build.reshaped(value, (1, own, tokens, width)))
    q, k, v = shaped
    if q.type.shape[1] != heads:
        q = build.emit(Broadcast((1, heads, *q.type.shape[2:])), q)
    if k.type.shape[1] != v.type.shape[1]:
        k, v = (build.emit(Broadcast((1, heads, *x.type.shape[2:])), x) for x in (k, v))
    return [q, k, v]


def _with_slopes(build: _Builder, operands: list[Value], scores: Scores) -> list[Value]:
    """q gets the slopes and k the positions as further elements."""
    q, k, v = operands
    assert scores.slopes is not None
    heads, kv_heads = int(q.type.shape[1]), k.type.shape[1]
    slopes = np.zeros((1, heads, 1, EXTRA), np.float32)
    slopes[0, :, 0, 0] = scores.slopes * PART / scores.scale
    slopes[0, :, 0, 1] = scores.slopes / scores.scale
    right = build.emit(Broadcast((1, heads, TOKENS, EXTRA)), build.const(slopes))
    left = build.emit(Broadcast((1, kv_heads, TOKENS, EXTRA)), _position_parts(build))
    return [build.emit(Concat(3), q, right), build.emit(Concat(3), k, left), v]


def _position_parts(build: _Builder) -> Value:
    """[1, 1, tokens, EXTRA]: position // PART, position % PART, zeros."""
    positions = build.emit(Iota(TOKENS, I32))
    high = build.emit(FloorDiv(), positions, build.const(np.array(PART, np.int32)))
    below = build.emit(Mul(), high, build.const(np.array(PART, np.int32)))
    parts = (high, build.emit(Sub(), positions, below))
    column = [build.reshaped(build.emit(Cast(F32), x), (1, 1, TOKENS, 1)) for x in parts]
    zero = build.const(np.zeros((1, 1, 1, 1), np.float32))
    zeros = build.emit(Broadcast((1, 1, TOKENS, EXTRA - 2)), zero)
    return build.emit(Concat(3), *column, zeros)

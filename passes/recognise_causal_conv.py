"""Finds convolutions over tokens that look back only; what pads a prompt's form is left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.dtype import F32
from ..ir.graph import Graph, Node, Value
from ..ir.ops.recurrence import CausalConv
from ..ir.ops.shape import Broadcast, Concat, Reshape, Slice
from ..ir.ops.spatial import Convolution
from .base import Pass
from .patterns import produced_by, scalar


@dataclass(frozen=True)
class RecogniseCausalConv(Pass):
    """
    %p = convolution(%x, %w) {before=K-1, after=any, groups=C}; %y = slice(%p) {axis=2, 0, T}
      ->   %y = causal_conv(%x, %w),  x [B, C, T], w [C, 1, K]; likewise where zeros are joined
    before x instead.
    Requires: f32, a stride of 1, one filter for each channel.
    """

    name: ClassVar[str] = "recognise-causal-conv"

    def run(self, graph: Graph) -> bool:
        changed = False
        for node in list(graph.nodes):
            x = _input_of(node)
            if x is not None:
                graph.replace(node.outputs[0], _causal(graph, node, x))
                changed = True
        return graph.erase_dead() or changed


def _input_of(node: Node) -> Value | None:
    """What a node convolves, if its result at t depends on the input up to t alone."""
    if isinstance(node.op, Slice):
        conv = produced_by(node.inputs[0], Convolution)
        if conv is None or not _is_depthwise(conv):
            return None
        x, op = conv.inputs[0], node.op
        keeps = (op.axis, op.start, op.stop, op.step) == (2, 0, x.type.shape[2], 1)
        return x if keeps and _before(conv) == _taps(conv) - 1 else None
    if isinstance(node.op, Convolution) and _is_depthwise(node):
        joined = produced_by(node.inputs[0], Concat)
        if joined is None or _before(node) or node.op.after != (0,):
            return None
        return _after_zeros(joined, _taps(node) - 1)
    return None


def _taps(conv: Node) -> int:
    return int(conv.inputs[1].type.shape[2])


def _before(conv: Node) -> int:
    assert isinstance(conv.op, Convolution)
    return conv.op.before[0]


def _is_depthwise(conv: Node) -> bool:
    op, x, w = conv.op, conv.inputs[0].type, conv.inputs[1].type
    assert isinstance(op, Convolution)
    plain = op.stride == op.dilation == (1,) and not op.transposed and w.dtype == F32
    return plain and op.groups == x.shape[1] == w.shape[0]


def _after_zeros(joined: Node, count: int) -> Value | None:
    """The last part of a concat along tokens whose first part is ``count`` zeros."""
    assert isinstance(joined.op, Concat)
    if joined.op.axis != 2 or len(joined.inputs) != 2:
        return None
    zeros, x = joined.inputs
    source = produced_by(zeros, Broadcast)
    number = scalar(source.inputs[0] if source else zeros)
    return x if zeros.type.shape[2] == count and number == 0.0 else None


def _causal(graph: Graph, node: Node, x: Value) -> Value:
    conv = node.inputs[0].producer if isinstance(node.op, Slice) else node
    assert conv is not None
    _, w, *bias = conv.inputs
    filters = graph.emit(Reshape((w.type.shape[0], w.type.shape[2])), w, before=node)
    return graph.emit(CausalConv(has_bias=bool(bias)), x, filters, *bias, before=node)

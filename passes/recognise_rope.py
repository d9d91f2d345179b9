"""Raises rotary position embedding to `rope` and its angles to one `rope_table`.

`rotation` finds the sums of products that are a rotation of pairs, (i, i + R) or (2i, 2i + 1); this
pass makes the tables of their angles once and replaces them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..ir.dim import Dim
from ..ir.dtype import F32
from ..ir.graph import Graph, Node, Value
from ..ir.ops.elementwise import Cast, Cos, Mul, Sin
from ..ir.ops.rope import Rope, RopeTable
from ..ir.ops.shape import Concat, Reshape, Slice
from ..ir.types import TensorType
from .base import Pass
from .patterns import as_vector, either_order, is_row, only_user, produced_by
from .rotation import Rotation, find_rotation


@dataclass(frozen=True)
class RecogniseRope(Pass):
    """
    %a = mul(%positions, %inv_freq); %t = concat(%a, %a); %c = cos(%t); %s = sin(%t)
    %y = add(mul(%x, %c), mul(concat(neg(%x[R:]), %x[:R]), %s))
      ->   %c, %s = rope_table(%positions, %inv_freq); %y = rope(%x, %c, %s)
    Also interleaved pairs, a rotation of the first 2R elements only, and tables with a scale.
    Requires: x of [T, H, D] and f32.  Ensures: equal tables are made once.
    """

    name: ClassVar[str] = "recognise-rope"

    def run(self, graph: Graph) -> bool:
        maker = _Tables(graph, graph.static_values())
        changed = False
        for node in list(graph.nodes):
            rotation = find_rotation(node)
            if rotation is not None:
                cos, sin = maker.tables(rotation, node)
                op = Rope(rotation.interleaved)
                rotated = graph.emit(op, rotation.x, cos, sin, before=node)
                graph.replace(node.outputs[0], rotated)
                changed = True
        for node in list(graph.nodes):
            changed |= _raise_partial(graph, node)
        return graph.erase_dead() or changed


class _Tables:
    """cos and sin [tokens, R] by angle and scale."""

    def __init__(self, graph: Graph, static: set[Value]) -> None:
        self.graph, self.static = graph, static
        self.made: dict[tuple[Value, float], tuple[Value, Value]] = {}

    def tables(self, rotation: Rotation, before: Node) -> tuple[Value, Value]:
        key = (rotation.angle, rotation.scale)
        if key not in self.made:
            self.made[key] = self._by_positions(rotation, before) or self._by_angle(
                rotation, before
            )
        return self.made[key]

    def _by_positions(self, rotation: Rotation, before: Node) -> tuple[Value, Value] | None:
        """The angle is a token's integer position times a static row of frequencies."""
        product = produced_by(rotation.angle, Mul)
        for factor, row in either_order(product) if product else ():
            positions = _integers(factor)
            if positions is None or row not in self.static:
                continue
            if not is_row(row, rotation.angle.type.shape[-1]):
                continue
            first, op = self._earliest(positions, row), RopeTable(rotation.scale)
            inv_freq = as_vector(self.graph, row, first)
            flat = self._reshaped(positions, rotation.angle.type.shape[:1], first)
            cos, sin = self.graph.append(op, flat, inv_freq, before=first, source=before.source)
            return cos, sin
        return None

    def _earliest(self, *values: Value) -> Node:
        """The first node after those that make these values: all layers read a table."""
        makers = [value.producer for value in values if value.producer is not None]
        places = [self.graph.nodes.index(node) for node in makers]
        return self.graph.nodes[max(places, default=-1) + 1]

    def _by_angle(self, rotation: Rotation, before: Node) -> tuple[Value, Value]:
        shape = rotation.angle.type.shape
        angle = self._reshaped(rotation.angle, (shape[0], shape[-1]), before)
        cos, sin = (self.graph.emit(op, angle, before=before) for op in (Cos(), Sin()))
        if rotation.scale == 1.0:
            return cos, sin
        scale = self.graph.const(np.array(rotation.scale, np.float32), TensorType(F32, ()))
        cos, sin = (self.graph.emit(Mul(), t, scale, before=before) for t in (cos, sin))
        return cos, sin

    def _reshaped(self, value: Value, shape: tuple[Dim, ...], before: Node) -> Value:
        if value.type.shape == shape:
            return value
        return self.graph.emit(Reshape(shape), value, before=before)


def _integers(value: Value) -> Value | None:
    """The integers, one per token, that ``value`` is a reshaped float copy of."""
    while value.producer is not None and isinstance(value.producer.op, Cast | Reshape):
        if value.type.dtype.is_integer and not isinstance(value.producer.op, Reshape):
            break  # a cast from another integer type, which may not hold every value
        value = value.producer.inputs[0]
    tokens_only = all(d == 1 for d in value.type.shape[1:])
    return value if value.type.dtype.is_integer and tokens_only else None


def _raise_partial(graph: Graph, node: Node) -> bool:
    """``concat(rope(x[a:b]), x[b:c])`` is rope on x[a:c]: elements from 2R on pass through."""
    if not isinstance(node.op, Concat) or len(node.inputs) != 2:
        return False
    turned, rest = produced_by(node.inputs[0], Rope), produced_by(node.inputs[1], Slice)
    head = produced_by(turned.inputs[0], Slice) if turned else None
    if turned is None or rest is None or head is None or head.inputs[0] is not rest.inputs[0]:
        return False
    a, b = head.op, rest.op
    assert isinstance(a, Slice) and isinstance(b, Slice)
    if (a.axis, a.step, b.axis, b.step, b.start) != (2, 1, 2, 1, a.stop) or node.op.axis != 2:
        return False
    if only_user(graph, turned.outputs[0]) is None:
        return False
    x = head.inputs[0]
    if (a.start, b.stop) != (0, x.type.shape[2]):
        x = graph.emit(Slice(2, a.start, b.stop), x, before=node)
    whole = graph.emit(turned.op, x, *turned.inputs[1:], before=node)
    graph.replace(node.outputs[0], whole)
    return True

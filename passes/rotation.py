"""Finds the rotation of pairs that `rope` computes, in whatever ops it is written.

Each element of the result must be one element of x times a cosine plus another, perhaps negated,
times a sine. Both factors of both products are followed to x and to the angles by `index_map`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..ir.dtype import F32
from ..ir.graph import Node, Value
from ..ir.ops.elementwise import Add, Cos, Mul, Sin, Sub
from ..ir.ops.shape import Concat, Reshape
from ..ir.rewrite import substitute_op
from .index_map import MOVES, NUM_TOKENS, IndexMap, index_map, sizes_of, small_shape
from .patterns import either_order, scalar, shortest_f32

MAX_DEPTH = 8
"""Ops between the result and its products, or between a product and x: more than any model has."""


@dataclass(frozen=True)
class Rotation:
    """The result is ``rope(x, cos(angle) * scale, sin(angle) * scale)``."""

    x: Value
    angle: Value
    """[tokens, 1..., R]"""
    scale: float
    interleaved: bool


@dataclass(frozen=True)
class _Table:
    """``scale * sign * kind(angle.flat[index])``"""

    kind: type[Cos] | type[Sin]
    angle: Value
    scale: float
    index: np.ndarray
    sign: np.ndarray


@dataclass(frozen=True)
class _Term:
    """``scale * sign * origin.flat[source] * kind(angle.flat[index])``; ``key``: all but arrays.

    ``origin`` is what x itself is moved from: slices of slices may have passed x by.
    """

    kind: type[Cos] | type[Sin]
    angle: Value
    scale: float
    source: np.ndarray
    index: np.ndarray
    sign: np.ndarray

    @property
    def key(self) -> tuple[object, ...]:
        return (self.kind, self.angle, self.scale)

    def with_arrays(self, source: np.ndarray, index: np.ndarray, sign: np.ndarray) -> _Term:
        return _Term(self.kind, self.angle, self.scale, source, index, sign)


_Sum = list[_Term]


def find_rotation(node: Node) -> Rotation | None:
    """The rotation that ``node``'s result is, if x and the result have the type f32[T, H, D]."""
    if not isinstance(node.op, Add | Concat | Reshape):
        return None
    (out,) = node.outputs
    if out.type.rank != 3 or out.type.dtype != F32 or not isinstance(out.type.shape[2], int):
        return None
    for x in _candidates(out):
        whole = index_map(x)
        terms = _sum_of(out, whole.source, MAX_DEPTH) if whole is not None else None
        rotation = _as_rotation(x, whole, terms) if whole and terms else None
        if rotation is not None:
            return rotation
    return None


def _candidates(out: Value) -> Iterator[Value]:
    """Values of the result's type from which the first product's operands are moved."""
    value = out
    for _ in range(MAX_DEPTH):
        node = value.producer
        if node is None or not isinstance(node.op, Add | Sub | Concat | Reshape | Mul):
            return
        if isinstance(node.op, Mul):
            break
        value = node.inputs[0]
    for operand in value.producer.inputs if value.producer else ():
        for _ in range(MAX_DEPTH):
            if operand.type == out.type:
                yield operand
            if operand.producer is None or not isinstance(operand.producer.op, MOVES):
                break
            operand = operand.producer.inputs[0]


def _sum_of(value: Value, origin: Value, depth: int) -> _Sum | None:
    """The terms of ``value``, one array element for each of its elements."""
    node = value.producer
    if node is None or depth == 0:
        return None
    if isinstance(node.op, Mul):
        term = _product(node, origin)
        return None if term is None else [term]
    if not isinstance(node.op, Add | Sub | Concat | Reshape):
        return None
    parts = [_sum_of(v, origin, depth - 1) for v in node.inputs]
    known = [p for p in parts if p is not None]
    if len(known) != len(parts):
        return None
    return _added(node, known) if isinstance(node.op, Add | Sub) else _joined(node, known)


def _added(node: Node, parts: list[_Sum]) -> _Sum | None:
    a, b = parts
    if isinstance(node.op, Sub):
        b = [t.with_arrays(t.source, t.index, -t.sign) for t in b]
    same_shape = all(t.source.shape == small_shape(node.outputs[0].type) for t in (*a, *b))
    return [*a, *b] if same_shape else None


def _joined(node: Node, parts: list[_Sum]) -> _Sum | None:
    """Terms of one kind are joined as the op joins its operands."""
    by_key = [{t.key: t for t in terms} for terms in parts]
    keys = list(by_key[0])
    if any(
        set(d) != set(keys) or len(d) != len(terms) for d, terms in zip(by_key, parts, strict=True)
    ):
        return None
    op = substitute_op(node.op, sizes_of(node))
    result = []
    for key in keys:
        terms = [d[key] for d in by_key]
        arrays = (
            op.reference(*(getattr(t, f) for t in terms)) for f in ("source", "index", "sign")
        )
        result.append(terms[0].with_arrays(*arrays))
    return result


def _product(node: Node, origin: Value) -> _Term | None:
    for moved, other in either_order(node):
        operand = index_map(moved)
        table = _table(other) if operand and operand.source is origin else None
        if operand is None or table is None:
            continue
        shape = small_shape(node.outputs[0].type)
        source, index = (np.broadcast_to(a, shape) for a in (operand.index, table.index))
        sign = np.broadcast_to(operand.sign * table.sign, shape)
        return _Term(table.kind, table.angle, table.scale, source, index, sign)
    return None


def _table(value: Value) -> _Table | None:
    """Follow moves and a factor from ``value`` to a cosine or sine, and moves on to the angle."""
    outer = index_map(value)
    scale = 1.0
    while outer is not None and (node := outer.source.producer) is not None:
        same = node.inputs and node.inputs[0].type == outer.source.type
        inner = index_map(node.inputs[0]) if same else None
        if inner is None:
            return None
        index = inner.index.ravel()[outer.index]
        sign = inner.sign.ravel()[outer.index]
        if isinstance(node.op, Cos | Sin):
            kind = Cos if isinstance(node.op, Cos) else Sin
            moved_only = bool(np.all(sign == 1))
            return _Table(kind, inner.source, scale, index, outer.sign) if moved_only else None
        factor = scalar(node.inputs[1]) if isinstance(node.op, Mul) else None
        if factor is None:
            return None
        scale *= factor
        outer = type(outer)(inner.source, index, sign * outer.sign)
    return None


def _as_rotation(x: Value, whole: IndexMap, terms: _Sum) -> Rotation | None:
    by_kind = {t.kind: t for t in terms}
    if len(terms) != 2 or len(by_kind) != 2:
        return None
    cos, sin = by_kind[Cos], by_kind[Sin]
    pairs = int(x.type.shape[2]) // 2
    angle = cos.angle
    *lead, last = angle.type.shape
    rows_of_pairs = (
        last == pairs and lead[:1] == [x.type.shape[0]] and all(d == 1 for d in lead[1:])
    )
    if sin.angle is not angle or sin.scale != cos.scale or not rows_of_pairs:
        return None
    for interleaved in (False, True):
        if _matches(whole, cos, sin, pairs, interleaved):
            return Rotation(x, angle, shortest_f32(cos.scale), interleaved)
    return None


def _matches(x: IndexMap, cos: _Term, sin: _Term, pairs: int, interleaved: bool) -> bool:
    """Element j of a head is x[j] cos + x[partner] sin, negated for a pair's first element."""
    here = np.arange(x.index.size).reshape(x.index.shape)
    j = np.arange(x.index.shape[-1])
    is_first = j % 2 == 0 if interleaved else j < pairs
    distance = 1 if interleaved else pairs
    if len(j) != 2 * pairs or cos.source.shape != here.shape:
        return False
    partner = here + np.where(is_first, distance, -distance)
    pair = j // 2 if interleaved else j % pairs
    index = np.arange(NUM_TOKENS)[:, None, None] * pairs + pair
    return (
        np.array_equal(cos.source, x.index)
        and np.array_equal(cos.sign, x.sign)
        and np.array_equal(sin.source, x.index.ravel()[partner])
        and np.array_equal(sin.sign, x.sign.ravel()[partner] * np.where(is_first, -1, 1))
        and all(np.array_equal(t.index, np.broadcast_to(index, here.shape)) for t in (cos, sin))
    )

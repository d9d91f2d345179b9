"""Converters of embedding bags: rows of a table, added up or compared by bag."""

from __future__ import annotations

import math

from ..ir.dtype import F32, I32
from ..ir.graph import Value
from ..ir.ops import elementwise as ops
from ..ir.ops import reduce as reduces
from ..ir.ops.indexing import PutAxis
from ..ir.ops.shape import Iota
from .fx_convert_context import Emitter, converts
from .fx_convert_indexing import known_sizes, picked_rows
from .fx_convert_shape import take

SUM, MEAN, MAX = 0, 1, 2


@converts("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    e: Emitter,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Value, ...]:
    """The bags alone: what else torch returns is for its gradient."""
    (bags,) = known_sizes(e.shape[:1], "bags")
    ids = e.cast(indices, I32)
    if include_last_offset:
        offsets = take(e, offsets, 0, 0, bags)
    bag = _bag_of(e, e.cast(offsets, I32), ids)
    rows = picked_rows(e, weight, ids)
    column = (*ids.type.shape, 1)
    if per_sample_weights is not None:
        rows = e.emit(ops.Mul(), rows, e.reshape(per_sample_weights, column))
    counted = e.emit(ops.Ne(), ids, e.scalar(padding_idx, I32))
    idle = -math.inf if mode == MAX else 0.0
    if padding_idx >= 0:
        rows = e.emit(ops.Where(), e.reshape(counted, column), rows, e.scalar(idle, F32))
    start = e.broadcast(e.scalar(idle, F32), e.shape)
    result = e.emit(PutAxis(0, "max" if mode == MAX else "add"), start, bag, rows)
    if mode == SUM:
        return (result,)
    none = e.broadcast(e.scalar(0, F32), (bags,))
    size = e.emit(PutAxis(0, "add"), none, bag, e.cast(counted, F32))
    return (_finish(e, result, e.reshape(size, (bags, 1)), mode),)


def _bag_of(e: Emitter, offsets: Value, ids: Value) -> Value:
    """The bag of each index: the last one that starts at or before it."""
    places = e.emit(Iota(ids.type.shape[0], I32))
    begun = e.emit(ops.Le(), e.reshape(offsets, (*offsets.type.shape, 1)), places)
    return e.emit(ops.Sub(), e.emit(reduces.Sum(0), e.cast(begun, I32)), e.scalar(1, I32))


def _finish(e: Emitter, result: Value, size: Value, mode: int) -> Value:
    """Empty bags are zeros."""
    if mode == MAX:
        filled = e.emit(ops.Gt(), size, e.scalar(0, F32))
        return e.emit(ops.Where(), filled, result, e.scalar(0, F32))
    return e.emit(ops.Div(), result, e.emit(ops.Maximum(), size, e.scalar(1, F32)))

"""Converters of ops along one axis: order, indices, running sums; and of expert products.

The graph's ops work on the last axis; another one is moved there and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir.dtype import BOOL, I32
from ..ir.graph import Value
from ..ir.ops import elementwise as ops
from ..ir.ops.moe import ExpertLinear
from ..ir.ops.order import CumSum, PutAlong, TakeAlong, TopK
from ..ir.ops.shape import Broadcast, Iota, Reshape
from ..ir.ops.sparse import GatherRows
from .fx_convert_context import Emitter, Operand, Unsupported, axis_of, converts
from .fx_convert_indexing import HOW, gather_any, scatter_any
from .fx_convert_shape import take, transpose


def _last(e: Emitter, x: Value, dim: int) -> Value:
    """``x`` with that axis last; doing it twice undoes it."""
    return transpose(e, x, dim, -1) if x.type.rank else e.reshape(x, (1,))


def _known_width(x: Value) -> int:
    width = x.type.shape[-1]
    if not isinstance(width, int):
        raise Unsupported(f"ordering or picking along the symbolic size {width}")
    return width


@converts("topk")
def topk(
    e: Emitter, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, ...]:
    moved = _last(e, e.cast(x, I32) if x.type.dtype == BOOL else x, dim)
    if not isinstance(k, int) or not 0 < k <= _known_width(moved):
        raise Unsupported(f"the {k} largest of {moved.type}")
    source = moved if largest else e.emit(ops.Neg(), moved)
    values, ids = e.graph.append(TopK(k), source)
    values = values if largest else e.emit(ops.Neg(), values)
    values, ids = (e.reshape(_last(e, v, dim), e.shape) for v in (values, ids))
    return e.cast(values, x.type.dtype), ids


@converts("sort")
def sort(
    e: Emitter, x: Value, *args: Any, dim: int = -1, descending: bool = False, **_: Any
) -> tuple[Value, ...]:
    """``sort(x, dim, descending)``, or with ``stable`` by name."""
    dim, descending = (*args, *(dim, descending)[len(args) :])[:2]
    return topk(e, x, _known_width(_last(e, x, dim)), dim, descending)


@converts("argsort")
def argsort(e: Emitter, x: Value, dim: int = -1, descending: bool = False, **_: Any) -> Value:
    return sort(e, x, dim, descending)[1]


@converts("gather")
def gather(e: Emitter, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    if (
        x.type.rank and x.type.size == x.type.shape[axis_of(x, dim)]
    ):  # one row: a table that is looked up
        table = e.reshape(x, (x.type.size,))
        rows = e.reshape(e.cast(index, I32), (index.type.size,))
        return e.reshape(e.emit(GatherRows(), table, rows), e.shape)
    if not _fits(x, dim, index):
        return gather_any(e, x, dim, index)
    moved, ids = _along(e, x, dim, index)
    return e.reshape(_last(e, e.emit(TakeAlong(), moved, ids), dim), e.shape)


@converts("scatter")
def scatter(
    e: Emitter, x: Value, dim: int, index: Value, src: Operand, *, reduce: str | None = None
) -> Value:
    """Elements of a tensor, or one number, put at indices along an axis."""
    if reduce is not None or not _fits(x, dim, index):
        return scatter_any(e, x, dim, index, src, HOW[reduce or "put"])
    moved, ids = _along(e, x, dim, index)
    value = e.operand(src, x.type.dtype)
    if value.type.rank == 0:
        value = e.broadcast(value, ids.type.shape)
    else:
        value = _last(e, _head(e, value, index), dim)
    return e.reshape(_last(e, e.emit(PutAlong(), moved, ids, value), dim), e.shape)


def _head(e: Emitter, x: Value, index: Value) -> Value:
    """The part of a source that an index of fewer elements reads."""
    for axis, size in enumerate(index.type.shape):
        if x.type.shape[axis] != size:
            x = take(e, x, axis, 0, size)
    return x


def _fits(x: Value, dim: int, index: Value) -> bool:
    """Whether the index is as long as ``x`` along the other axes, and the axis of known size."""
    axis = axis_of(x, dim)
    if x.type.rank != index.type.rank:  # a scalar, and one place in it
        return False
    sizes = enumerate(zip(x.type.shape, index.type.shape, strict=True))
    same = all(a == b for i, (a, b) in sizes if i != axis)
    return same and (not x.type.rank or isinstance(x.type.shape[axis], int))


def _along(e: Emitter, x: Value, dim: int, index: Value) -> tuple[Value, Value]:
    """Both with ``dim`` last."""
    return _last(e, x, dim), _last(e, e.cast(index, I32), dim)


@converts("cumsum")
def cumsum(e: Emitter, x: Value, dim: int, *, dtype: Any = None) -> Value:
    x = e.cast(x, e.result.dtype)
    if not x.type.rank or 0 in x.type.shape:
        return x
    counted = _counted(e, x, axis_of(x, dim))
    if counted is not None:
        return counted
    moved = _last(e, x, dim)
    _known_width(moved)
    return e.reshape(_last(e, e.emit(CumSum(), moved), dim), e.shape)


def _counted(e: Emitter, x: Value, axis: int) -> Value | None:
    """The sums of one repeated number are its multiples, whatever the length.

    So are counts of the tokens that are no padding: there is none in a request.
    """
    number, dtype = _repeated(e, x), x.type.dtype
    if number is None:
        return None
    size, *after = x.type.shape[axis:] or (1,)
    count = e.emit(ops.Add(), e.cast(e.emit(Iota(size)), dtype), e.scalar(1, dtype))
    column = e.reshape(count, (size, *(1 for _ in after)))
    return e.broadcast(e.emit(ops.Mul(), column, e.cast(number, dtype)), e.shape)


def _repeated(e: Emitter, x: Value) -> Value | None:
    """The one value that every element of ``x`` has."""
    while x.type.rank and x.producer is not None:
        if isinstance(x.producer.op, ops.Ne) and _is_padding_test(x.producer.inputs):
            return e.scalar(1, I32)
        if not isinstance(x.producer.op, Broadcast | ops.Cast | Reshape):
            return None
        x = x.producer.inputs[0]
    return x if x.type.rank == 0 else None


def _is_padding_test(operands: Sequence[Value]) -> bool:
    token_ids, number = operands
    return token_ids.kind == "input" and token_ids.name == "token_ids" and number.type.rank == 0


@converts("tril", "triu")
def triangle(e: Emitter, x: Value, diagonal: int = 0) -> Value:
    """What lies on, and below or above, a diagonal; zeros elsewhere."""
    rows, columns = (e.emit(Iota(n, I32)) for n in x.type.shape[-2:])
    line = e.emit(ops.Add(), e.reshape(rows, (x.type.shape[-2], 1)), e.scalar(diagonal, I32))
    assert e.node is not None
    op = ops.Le() if "tril" in str(e.node.target) else ops.Ge()
    zero = e.scalar(0, x.type.dtype)
    return e.broadcast(e.emit(ops.Where(), e.emit(op, columns, line), x, zero), e.shape)


@converts("one_hot")
def one_hot(e: Emitter, ids: Value, num_classes: int = -1) -> Value:
    classes = e.emit(Iota(e.shape[-1], I32))
    column = e.reshape(ids, (*ids.type.shape, 1))
    return e.cast(e.emit(ops.Eq(), column, classes), e.result.dtype)


@converts("sglk.expert_linear")
def expert_linear(e: Emitter, x: Value, weight: Value, ids: Value) -> Value:
    return e.emit(ExpertLinear(), x, weight, ids)

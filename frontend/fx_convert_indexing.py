"""Converters of gathers, scatters and what else moves elements by index.

Several indices become one into a flat view: then `TakeAxis` and `PutAxis` do everything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir.dim import Dim
from ..ir.dtype import BOOL, F32, I32
from ..ir.graph import Value
from ..ir.ops import elementwise as ops
from ..ir.ops.indexing import PutAxis, TakeAxis
from ..ir.ops.order import CumSum
from ..ir.ops.shape import Concat
from ..ir.ops.sparse import Embedding
from ..ir.types import TensorType, broadcast_shapes
from .fx_convert_context import Emitter, Operand, Unsupported, axis_of, converts
from .fx_convert_shape import permute, take

_FEW = 64
"""Constant indices that are worth a slice each."""


def known_sizes(x: Sequence[Dim], where: str) -> list[int]:
    if not all(isinstance(d, int) for d in x):
        raise Unsupported(f"{where} over a symbolic size of {tuple(x)}")
    return [int(d) for d in x]


def constant_ids(e: Emitter, ids: Any) -> Value:
    data = np.ascontiguousarray(ids, np.int32)
    return e.graph.const(data, TensorType(I32, data.shape))


def take_axis(e: Emitter, x: Value, axis: int, ids: Any) -> Value:
    """Parts of an axis at constant places: the value itself, a slice, or a gather."""
    places = np.asarray(ids, np.int64)
    steps = np.diff(places)
    if places.size and (steps == 1).all():
        return take(e, x, axis, int(places[0]), int(places[-1]) + 1)
    if places.size > 1 and steps[0] > 1 and (steps == steps[0]).all():
        return take(e, x, axis, int(places[0]), int(places[-1]) + 1, int(steps[0]))
    return e.emit(TakeAxis(axis), x, constant_ids(e, places))


def _wrapped(e: Emitter, ids: Value, size: int) -> Value:
    """Indices below 0 count from the end."""
    ids = e.cast(ids, I32)
    if ids.data is not None:
        return constant_ids(e, np.where(ids.data < 0, ids.data + size, ids.data))
    negative = e.emit(ops.Lt(), ids, e.scalar(0, I32))
    return e.emit(ops.Where(), negative, e.emit(ops.Add(), ids, e.scalar(size, I32)), ids)


def _flat_ids(e: Emitter, sizes: Sequence[int], places: Sequence[Value]) -> Value:
    """One index into axes of these sizes for each set of indices, which broadcast."""
    total: Value | None = None
    for axis, place in enumerate(places):
        stride = math.prod(sizes[axis + 1 :])
        part = place if stride == 1 else e.emit(ops.Mul(), place, e.scalar(stride, I32))
        total = part if total is None else e.emit(ops.Add(), total, part)
    assert total is not None
    return total


def _flat(e: Emitter, x: Value) -> Value:
    return e.reshape(x, (x.type.size,))


def depends_on_inputs(value: Value | None) -> bool:
    """Whether a value is no weight and is not made of weights, which kernels want packed."""
    pending, seen = [value], set[Value]()
    while pending:
        top = pending.pop()
        if top is None or top in seen:
            continue
        if top.kind == "input":
            return True
        seen.add(top)
        pending += top.producer.inputs if top.producer is not None else []
    return False


DECODER_INPUTS = {"token_ids", "position_ids"}


def picked_rows(e: Emitter, table: Value, ids: Value) -> Value:
    """Rows of a table [V, H]: of a weight, or of what a plain module computes."""
    is_decoder = {value.name for value in e.graph.inputs} >= DECODER_INPUTS
    if is_decoder or not depends_on_inputs(table):
        return e.emit(Embedding(), table, ids)
    flat = e.reshape(e.cast(ids, I32), (ids.type.size,))
    rows = e.emit(TakeAxis(0), table, flat)
    return e.reshape(rows, (*ids.type.shape, table.type.shape[1]))


# Advanced indexing ----------------------------------------------------------------------------


def _indexed(
    e: Emitter, x: Value, indices: Sequence[Value | None]
) -> tuple[Value, int, Value, tuple[Dim, ...], bool]:
    """What ``x[indices]`` reads: x with the indexed axes as one, that axis, the indices into it,
    their shape, and whether the axes were moved to the front."""
    axes = [axis for axis, rows in enumerate(indices) if rows is not None]
    given = [rows for rows in indices if rows is not None]
    if any(not rows.type.dtype.is_integer for rows in given):
        raise Unsupported(f"indexing {x.type} by bools: the result's size depends on values")
    sizes = known_sizes([x.type.shape[a] for a in axes], "indexing")
    moved = axes != list(range(axes[0], axes[-1] + 1))
    if moved:
        x = permute(e, x, [*axes, *(i for i in range(x.type.rank) if i not in axes)])
    first = 0 if moved else axes[0]
    shape = broadcast_shapes("index", *(rows.type.shape for rows in given))
    places = [_wrapped(e, rows, size) for rows, size in zip(given, sizes, strict=True)]
    ids = _flat(e, e.broadcast(_flat_ids(e, sizes, places), shape))
    rest = x.type.shape
    x = e.reshape(x, (*rest[:first], math.prod(sizes), *rest[first + len(axes) :]))
    return x, first, ids, shape, moved


@converts("index", "_unsafe_index")
def index(e: Emitter, x: Value, indices: Sequence[Value | None]) -> Value:
    """Rows of a table by integer index, parts along one axis by constant ones, or a gather."""
    given = [(axis, rows) for axis, rows in enumerate(indices) if rows is not None]
    axis, rows = given[0]
    is_one = len(given) == 1 and rows.type.dtype.is_integer
    if is_one and rows.data is not None and rows.type.rank == 1 and rows.data.size <= _FEW:
        return _parts(e, x, axis, [int(i) for i in rows.data])
    if is_one and axis == 0 and x.type.dtype == F32:
        return _rows(e, x, rows)
    x, first, ids, _, _ = _indexed(e, x, indices)
    return e.reshape(e.emit(TakeAxis(first), x, ids), e.shape)


def _rows(e: Emitter, x: Value, rows: Value) -> Value:
    """Of a weight nobody asks by a place counted from the end, but as a constant."""
    size = x.type.shape[0]
    if isinstance(size, int) and (rows.data is not None or x.kind not in ("param", "const")):
        rows = _wrapped(e, rows, size)
    table = e.reshape(x, (size, TensorType(F32, x.type.shape[1:]).size))
    return e.reshape(picked_rows(e, table, rows), e.shape)


def _parts(e: Emitter, x: Value, axis: int, at: Sequence[int]) -> Value:
    """One slice for each run of neighbours."""
    (size,) = known_sizes([x.type.shape[axis]], "constant indices")
    places = [i % size for i in at]
    starts = [n for n, i in enumerate(places) if n == 0 or i != places[n - 1] + 1]
    runs = [places[a:b] for a, b in zip(starts, [*starts[1:], len(places)], strict=True)]
    parts = [take(e, x, axis, run[0], run[-1] + 1) for run in runs if run]
    if not parts:
        return take(e, x, axis, 0, 0)
    return parts[0] if len(parts) == 1 else e.emit(Concat(axis), *parts)


@converts("index_select")
def index_select(e: Emitter, x: Value, dim: int, rows: Value) -> Value:
    wide, axis = e.reshape(x, x.type.shape or (1,)), axis_of(x, dim)
    ids = e.reshape(e.cast(rows, I32), (rows.type.size,))
    if axis == 0 and wide.type.dtype == F32:
        table = e.reshape(wide, (wide.type.shape[0], TensorType(F32, wide.type.shape[1:]).size))
        return e.reshape(picked_rows(e, table, ids), e.shape)
    return e.reshape(e.emit(TakeAxis(axis), wide, ids), e.shape)


@converts("index_put", "_unsafe_index_put", "_index_put_impl")
def index_put(
    e: Emitter,
    x: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Value:
    values = e.cast(values, x.type.dtype)
    masks = [mask for mask in indices if mask is not None and mask.type.dtype == BOOL]
    if masks:
        return _put_masked(e, x, indices, values, accumulate)
    wide, first, ids, shape, moved = _indexed(e, x, indices)
    rest = wide.type.shape
    src = e.broadcast(values, (*rest[:first], *shape, *rest[first + 1 :]))
    src = e.reshape(src, (*rest[:first], ids.type.size, *rest[first + 1 :]))
    add = "max" if x.type.dtype == BOOL else "add"
    result = e.emit(PutAxis(first, add if accumulate else "put"), wide, ids, src)
    if not moved:
        return e.reshape(result, x.type.shape)
    axes = [axis for axis, rows in enumerate(indices) if rows is not None]
    order = [*axes, *(i for i in range(x.type.rank) if i not in axes)]
    back = e.reshape(result, tuple(x.type.shape[i] for i in order))
    return permute(e, back, [order.index(i) for i in range(x.type.rank)])


def _put_masked(
    e: Emitter, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool
) -> Value:
    """Values in the order of a mask's true places, or one for all of them."""
    mask, *others = indices
    if mask is None or any(other is not None for other in others):
        raise Unsupported("index_put by a mask and other indices")
    rest = x.type.shape[mask.type.rank :]
    mask = e.reshape(mask, (*mask.type.shape, *(1 for _ in rest)))
    if values.type.rank <= len(rest) or values.type.shape[0] == 1:
        if values.type.rank > len(rest):
            values = e.reshape(values, values.type.shape[1:])
        add = ops.Or() if x.type.dtype == BOOL else ops.Add()
        new = e.emit(add, x, values) if accumulate else values
        return e.emit(ops.Where(), mask, e.broadcast(new, x.type.shape), x)
    if accumulate or (1 in values.type.shape[1:] and values.type.shape[1:] != rest):
        raise Unsupported(f"index_put of {values.type} by a mask")
    return masked_scatter(e, x, mask, values)


@converts("masked_scatter")
def masked_scatter(e: Emitter, x: Value, mask: Value, source: Value) -> Value:
    """The k-th true place of the mask gets the k-th element of the source."""
    shape = broadcast_shapes("masked_scatter", x.type.shape, mask.type.shape)
    flat = e.cast(_flat(e, e.broadcast(mask, shape)), I32)
    known_sizes(flat.type.shape, "masked_scatter")
    if 0 in flat.type.shape or source.type.size == 0:
        return e.broadcast(x, shape)
    count = e.emit(CumSum(), flat)
    place = e.emit(ops.Maximum(), e.emit(ops.Sub(), count, e.scalar(1, I32)), e.scalar(0, I32))
    last = e.scalar(int(source.type.size) - 1, I32)
    ids = e.emit(ops.Minimum(), place, last)  # of places that the mask leaves out
    found = e.reshape(e.emit(TakeAxis(0), _flat(e, source), ids), shape)
    return e.emit(ops.Where(), e.broadcast(mask, shape), e.cast(found, x.type.dtype), x)


# Along one axis -------------------------------------------------------------------------------


def _along(e: Emitter, x: Value, dim: int, ids: Value) -> Value:
    """Flat indices of the places that ``gather`` reads and ``scatter`` writes."""
    sizes = known_sizes(x.type.shape, "indices along an axis")
    if not sizes:
        return _flat(e, e.cast(ids, I32))
    places = []
    for axis, count in enumerate(known_sizes(ids.type.shape, "indices along an axis")):
        if axis == axis_of(x, dim):
            places.append(e.cast(ids, I32))
        else:
            column = [1] * len(sizes)
            column[axis] = count
            places.append(constant_ids(e, np.arange(count).reshape(column)))
    if not places:
        return _flat(e, e.cast(ids, I32))
    return _flat(e, e.broadcast(_flat_ids(e, sizes, places), ids.type.shape))


def gather_any(e: Emitter, x: Value, dim: int, ids: Value) -> Value:
    return e.reshape(e.emit(TakeAxis(0), _flat(e, x), _along(e, x, dim, ids)), ids.type.shape)


def scatter_any(
    e: Emitter, x: Value, dim: int, ids: Value, src: Operand, how: str = "put"
) -> Value:
    """A source of more elements than there are indices gives those at the same places."""
    value = e.operand(src, x.type.dtype)
    if value.type.rank == 0:
        value = e.broadcast(value, ids.type.shape)
    for axis, size in enumerate(ids.type.shape):
        value = take(e, value, axis, 0, size)
    at = _along(e, x, dim, ids)
    return e.reshape(e.emit(PutAxis(0, how), _flat(e, x), at, _flat(e, value)), x.type.shape)


HOW = {
    "put": "put",
    "sum": "add",
    "add": "add",
    "prod": "mul",
    "multiply": "mul",
    "amax": "max",
    "amin": "min",
}
"""Torch's names of reductions."""
_NEUTRAL = {"add": 0.0, "mul": 1.0, "max": -math.inf, "min": math.inf}


@converts("scatter_add")
def scatter_add(e: Emitter, x: Value, dim: int, index: Value, src: Value) -> Value:
    return scatter_any(e, x, dim, index, src, "max" if x.type.dtype == BOOL else "add")


@converts("scatter_reduce")
def scatter_reduce(
    e: Emitter,
    x: Value,
    dim: int,
    index: Value,
    src: Operand,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    how = "add" if reduce == "mean" else HOW[reduce]
    if x.type.dtype == BOOL:
        how = {"add": "max", "mul": "min"}.get(how, how)
    start = x
    if not include_self:
        start = scatter_any(e, x, dim, index, _neutral(how, x), "put")
    result = scatter_any(e, start, dim, index, src, how)
    if reduce != "mean":
        return result
    ones = e.broadcast(e.scalar(1, x.type.dtype), x.type.shape)
    if not include_self:
        ones = scatter_any(e, ones, dim, index, 0, "put")
    counts = scatter_any(e, ones, dim, index, 1, "add")
    counts = e.emit(ops.Maximum(), counts, e.scalar(1, x.type.dtype))
    return e.emit(ops.Div() if x.type.dtype == F32 else ops.FloorDiv(), result, counts)


def _neutral(how: str, x: Value) -> float | int | bool:
    number = _NEUTRAL[how]
    if x.type.dtype == BOOL:
        return how == "min"
    if x.type.dtype == F32 or math.isfinite(number):
        return number if x.type.dtype == F32 else int(number)
    return -(2**31) if number < 0 else 2**31 - 1


# Constant places ------------------------------------------------------------------------------


@converts("flip")
def flip(e: Emitter, x: Value, dims: Sequence[int]) -> Value:
    for axis in {axis_of(x, d) for d in dims} if x.type.rank else ():
        (size,) = known_sizes([x.type.shape[axis]], "flip")
        if size > 1:
            x = e.emit(TakeAxis(axis), x, constant_ids(e, np.arange(size)[::-1]))
    return x


@converts("diagonal", "diagonal_copy")
def diagonal(e: Emitter, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    a, b = axis_of(x, dim1), axis_of(x, dim2)
    moved = permute(e, x, [*(i for i in range(x.type.rank) if i not in (a, b)), a, b])
    rows, columns = known_sizes(moved.type.shape[-2:], "a diagonal")
    (length,) = known_sizes(e.shape[-1:], "a diagonal")
    steps = np.arange(length)
    ids = (steps + max(-offset, 0)) * columns + steps + max(offset, 0)
    joined = e.reshape(moved, (*moved.type.shape[:-2], rows * columns))
    return take_axis(e, joined, joined.type.rank - 1, ids)


@converts("as_strided", "as_strided_copy")
def as_strided(
    e: Emitter, x: Value, size: Sequence[Dim], stride: Sequence[Dim], storage_offset: Dim = 0
) -> Value:
    """Of elements in their order: others lie at places that the graph does not know."""
    assert e.node is not None
    if not e.node.args[0].meta["val"].is_contiguous():  # type: ignore[union-attr]
        raise Unsupported("as_strided on an operand that is not contiguous")
    sizes, strides = known_sizes(size, "as_strided"), known_sizes(stride, "as_strided")
    ids = np.full((), int(storage_offset or 0))
    for count, step in zip(sizes, strides, strict=True):
        ids = ids[..., None] + np.arange(count) * step
    return e.reshape(take_axis(e, _flat(e, x), 0, ids.ravel()), tuple(sizes))


@converts("select_scatter")
def select_scatter(e: Emitter, x: Value, src: Value, dim: int, index: int) -> Value:
    axis = axis_of(x, dim)
    (size,) = known_sizes([x.type.shape[axis]], "select_scatter")
    shape = (*x.type.shape[:axis], 1, *x.type.shape[axis + 1 :])
    part = e.reshape(e.cast(src, x.type.dtype), shape)
    return replaced(e, x, part, axis, np.array([index % size]))


def replaced(e: Emitter, x: Value, src: Value, axis: int, ids: Any) -> Value:
    """``x`` with parts of an axis at constant places replaced."""
    return e.emit(PutAxis(axis), x, constant_ids(e, ids), src)


@converts("unfold")
def unfold(e: Emitter, x: Value, dimension: int, size: int, step: int) -> Value:
    """Windows of an axis, each as a new last axis."""
    axis = axis_of(x, dimension)
    (count,) = known_sizes([e.shape[axis]], "unfold")
    ids = np.arange(count)[:, None] * step + np.arange(size)
    windows = take_axis(e, x, axis, ids.ravel())
    shape = x.type.shape
    apart = e.reshape(windows, (*shape[:axis], count, size, *shape[axis + 1 :]))
    order = [i for i in range(apart.type.rank) if i != axis + 1]
    return permute(e, apart, [*order, axis + 1])

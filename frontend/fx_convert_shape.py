"""Converters of ATen ops that move or rename elements. Result shapes are those torch computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import sympy
import torch

from ..ir.dim import Dim, as_dim
from ..ir.dtype import I32
from ..ir.graph import Value
from ..ir.ops.elementwise import Bitcast
from ..ir.ops.indexing import PutAxis
from ..ir.ops.shape import Concat, Slice, Transpose
from ..ir.types import TensorType
from .fx_convert_context import Emitter, Unsupported, axis_of, converts


@converts("reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze")
def reshape(e: Emitter, x: Value, *_: Any, **__: Any) -> Value:
    return e.reshape(x, e.shape)


@converts("view", "view_copy")
def view(e: Emitter, x: Value, to: Any) -> Value:
    """``view(shape)``, or ``view(dtype)``: the bits as they are, where the graph keeps them."""
    if not isinstance(to, torch.dtype):
        return e.reshape(x, e.shape)
    assert e.node is not None
    source: Any = e.node.args[0]
    for torch_type, dtype in ((source.meta["val"].dtype, x.type.dtype), (to, e.result.dtype)):
        if 8 * torch_type.itemsize != dtype.bits:
            raise Unsupported(f"the bits of {torch_type}, which graphs hold as {dtype}")
    return e.emit(Bitcast(e.result.dtype), x)


@converts("expand", "expand_as", "broadcast_to", "expand_copy")
def expand(e: Emitter, x: Value, *_: Any, **__: Any) -> Value:
    return e.broadcast(x, e.shape)


@converts("permute", "permute_copy")
def permute(e: Emitter, x: Value, dims: Sequence[int]) -> Value:
    order = tuple(axis_of(x, d) for d in dims)
    return x if order == tuple(range(x.type.rank)) else e.emit(Transpose(order), x)


@converts("transpose", "swapaxes", "swapdims")
def transpose(e: Emitter, x: Value, dim0: int, dim1: int) -> Value:
    order = list(range(x.type.rank))
    a, b = axis_of(x, dim0), axis_of(x, dim1)
    order[a], order[b] = order[b], order[a]
    return permute(e, x, order)


@converts("t", "numpy_T")
def matrix_transpose(e: Emitter, x: Value) -> Value:
    return permute(e, x, list(reversed(range(x.type.rank))))


def take(e: Emitter, x: Value, axis: int, start: Dim, stop: Dim, step: int = 1) -> Value:
    """A slice; the whole axis is the value itself."""
    whole = start == 0 and step == 1 and stop == x.type.shape[axis]
    return x if whole else e.emit(Slice(axis, start, stop, step), x)


@converts("slice", "slice_copy")
def slice_(
    e: Emitter,
    x: Value,
    dim: int = 0,
    start: Dim | None = None,
    end: Dim | None = None,
    step: int = 1,
) -> Value:
    """Torch clips bounds, and its end may be a huge number; the length is the one it computed."""
    axis = axis_of(x, dim)
    size, length = x.type.shape[axis], e.shape[axis]
    first = _start(start or 0, size)
    if step == 1:
        return take(e, x, axis, first, as_dim(sympy.sympify(first) + length))
    return take(e, x, axis, first, size if end is None else _stop(end, size), step)


def _start(start: Dim, size: Dim) -> Dim:
    if sympy.sympify(start).is_negative:  # of a symbol too: the last `tokens` of them
        first = as_dim(sympy.sympify(size) + start)
        return max(first, 0) if isinstance(first, int) else first
    return min(start, size) if isinstance(start, int) and isinstance(size, int) else start


def _stop(end: Dim, size: Dim) -> Dim:
    if isinstance(end, int) and end < 0:
        return as_dim(sympy.sympify(size) + end)
    if isinstance(end, int) and not isinstance(size, int):
        if end >= 2**31 - 1:
            return size
        raise Unsupported(f"a strided slice that ends at {end} of {size}")
    return min(end, size) if isinstance(end, int) and isinstance(size, int) else end


@converts("select", "select_copy")
def select(e: Emitter, x: Value, dim: int, index: Dim) -> Value:
    axis = axis_of(x, dim)
    first = _start(index, x.type.shape[axis])
    row = take(e, x, axis, first, as_dim(sympy.sympify(first) + 1))
    return e.reshape(row, e.shape)


@converts("cat", "concat", "concatenate")
def cat(e: Emitter, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Empty 1-d operands are skipped, as torch does."""
    dtype = e.result.dtype
    parts = [e.cast(t, dtype) for t in tensors if t.type.shape != (0,)]
    if not parts:
        return e.cast(tensors[0], dtype)
    return parts[0] if len(parts) == 1 else e.emit(Concat(axis_of(parts[0], dim)), *parts)


@converts("stack")
def stack(e: Emitter, tensors: Sequence[Value], dim: int = 0) -> Value:
    result = e.result
    axis = dim % result.rank
    shape = (*result.shape[:axis], 1, *result.shape[axis + 1 :])
    parts = [e.reshape(e.cast(t, result.dtype), shape) for t in tensors]
    return parts[0] if len(parts) == 1 else e.emit(Concat(axis), *parts)


@converts("split", "split_with_sizes", "chunk", "tensor_split", "split_copy")
def split(e: Emitter, x: Value, _: Any, dim: int = 0) -> tuple[Value, ...]:
    """Parts of the sizes that torch computed."""
    assert e.node is not None
    axis = axis_of(x, dim)
    parts, start = [], as_dim(sympy.Integer(0))
    for fake in e.node.meta["val"]:
        stop = as_dim(sympy.sympify(start) + e.dims(fake.shape[axis]))
        parts.append(take(e, x, axis, start, stop))
        start = stop
    return tuple(parts)


@converts("unbind")
def unbind(e: Emitter, x: Value, dim: int = 0) -> tuple[Value, ...]:
    axis = axis_of(x, dim)
    count = x.type.shape[axis]
    if not isinstance(count, int):
        raise Unsupported(f"unbinding the symbolic size {count}")
    return tuple(e.reshape(take(e, x, axis, i, i + 1), e.shape) for i in range(count))


@converts("repeat")
def repeat(e: Emitter, x: Value, repeats: Sequence[Dim]) -> Value:
    """A dim that is repeated gets a dim of its repeats in front, which is then joined with it."""
    lead = len(repeats) - x.type.rank
    pairs = list(zip(repeats, (*(1,) * lead, *x.type.shape), strict=True))
    apart = [(1, size) if count != 1 and size != 1 else (size,) for count, size in pairs]
    wide = [
        (count, size) if count != 1 and size != 1 else (count if size == 1 else size,)
        for count, size in pairs
    ]
    spread = e.reshape(x, tuple(d for each in apart for d in each))
    return e.reshape(e.broadcast(spread, tuple(d for each in wide for d in each)), e.shape)


@converts("repeat_interleave")
def repeat_interleave(
    e: Emitter, x: Value, repeats: Dim | Value, dim: int | None = None, **_: Any
) -> Value:
    if isinstance(repeats, Value) or dim is None:
        raise Unsupported("repeating elements a different number of times, or without a dim")
    axis, shape = axis_of(x, dim), x.type.shape
    apart = (*shape[: axis + 1], 1, *shape[axis + 1 :])
    wide = (*shape[: axis + 1], repeats, *shape[axis + 1 :])
    return e.reshape(e.broadcast(e.reshape(x, apart), wide), e.shape)


@converts("copy")
def copy(e: Emitter, x: Value, source: Value, non_blocking: bool = False) -> Value:
    """The functional form of ``x.copy_(source)``."""
    return e.broadcast(e.cast(source, x.type.dtype), x.type.shape)


@converts("slice_scatter")
def slice_scatter(
    e: Emitter,
    x: Value,
    source: Value,
    dim: int = 0,
    start: Dim | None = None,
    end: Dim | None = None,
    step: int = 1,
) -> Value:
    """What stands before the replaced part, the new part, what stands after it."""
    axis = axis_of(x, dim)
    size, length = x.type.shape[axis], source.type.shape[axis]
    first = _start(start or 0, size)
    if step != 1:
        return _strided_scatter(e, x, e.cast(source, x.type.dtype), axis, first, step)
    last = as_dim(sympy.sympify(first) + length)
    parts = [e.cast(source, x.type.dtype)]
    if first != 0:
        parts.insert(0, take(e, x, axis, 0, first))
    if last != size:
        parts.append(take(e, x, axis, last, size))
    return parts[0] if len(parts) == 1 else e.emit(Concat(axis), *parts)


def _strided_scatter(
    e: Emitter, x: Value, source: Value, axis: int, first: Dim, step: int
) -> Value:
    count = source.type.shape[axis]
    if not isinstance(count, int) or not isinstance(first, int):
        raise Unsupported("a strided slice of symbolic size that is assigned to")
    ids = np.arange(first, first + count * step, step, dtype=np.int32)
    return e.emit(PutAxis(axis), x, e.graph.const(ids, TensorType(I32, ids.shape)), source)

"""Converters of reductions: over any axes, of floats, integers and bools, of scalars too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir.dtype import BOOL, F32, I32
from ..ir.graph import Value
from ..ir.ops import elementwise as ops
from ..ir.ops import reduce as reduces
from ..ir.types import TensorType
from .fx_convert_context import Converter, Emitter, Unsupported, axis_of, converts
from .fx_convert_shape import permute

Dims = int | Sequence[int] | None


def axes_of(x: Value, dim: Dims) -> list[int]:
    """The axes to reduce, in order; none given means all."""
    chosen = range(x.type.rank) if dim is None or dim == [] else np.atleast_1d(dim)
    return sorted({axis_of(x, int(d)) for d in chosen})


def reduced(
    e: Emitter, op: type[reduces.Reduce], x: Value, dim: Dims = None, keepdim: bool = False
) -> Value:
    """One axis as it is; several become one, moved to the end unless they are neighbours."""
    if not x.type.rank:
        return e.reshape(e.emit(op(0), e.reshape(x, (1,))), ())
    axes = axes_of(x, dim)
    if len(axes) == 1:
        return e.emit(op(axes[0], keepdim), x)
    shape = x.type.shape
    kept = [i for i in range(x.type.rank) if i not in axes]
    result = tuple(1 if i in axes else d for i, d in enumerate(shape) if keepdim or i in kept)
    if axes != list(range(axes[0], axes[-1] + 1)):
        x, first = permute(e, x, [*kept, *axes]), len(kept)
    else:
        first = axes[0]
    moved = x.type.shape
    size = TensorType(F32, moved[first : first + len(axes)]).size
    joined = e.reshape(x, (*moved[:first], size, *moved[first + len(axes) :]))
    return e.reshape(e.emit(op(first), joined), result)


def _reduction(op: type[reduces.Reduce]) -> Converter:
    def convert(
        e: Emitter, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
    ) -> Value:
        if 0 in x.type.shape:  # kernels have no loop to begin with; an empty result stays empty
            of_none = e.scalar(_OF_NONE[op], F32)
            return e.broadcast(e.cast(of_none, e.result.dtype), e.shape)
        return reduced(e, op, e.cast(x, e.result.dtype), dim, keepdim)

    return convert


_OF_NONE = {reduces.Sum: 0.0, reduces.Prod: 1.0, reduces.Mean: float("nan")}
"""What reductions of no element give."""


converts("mean")(_reduction(reduces.Mean))
converts("sum")(_reduction(reduces.Sum))
converts("prod")(_reduction(reduces.Prod))


def _extreme(op: type[reduces.Reduce]) -> Converter:
    def convert(e: Emitter, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
        wide = e.cast(x, I32) if x.type.dtype == BOOL else x
        return e.cast(reduced(e, op, wide, dim, keepdim), x.type.dtype)

    return convert


_AMAX, _AMIN = _extreme(reduces.Max), _extreme(reduces.Min)
converts("amax")(_AMAX)
converts("amin")(_AMIN)


def _place(op: type[reduces.Reduce]) -> Converter:
    def convert(e: Emitter, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if dim is None:
            x, dim, keepdim = e.reshape(x, (x.type.size,)), 0, False
        return e.reshape(reduced(e, op, x, dim, keepdim), e.shape)

    return convert


_ARGMAX, _ARGMIN = _place(reduces.Argmax), _place(reduces.Argmin)
converts("argmax")(_ARGMAX)
converts("argmin")(_ARGMIN)


def _extreme_of(
    pair: type[ops.Binary], on_bools: type[ops.Binary], value: Converter, place: Converter
) -> Converter:
    def convert(e: Emitter, x: Value, dim: Any = None, keepdim: bool = False) -> Any:
        """``max(x)``, ``max(x, other)`` and ``max(x, dim)`` share a name."""
        if isinstance(dim, Value):
            dtype = e.result.dtype
            op = on_bools() if dtype == BOOL else pair()
            return e.emit(op, e.cast(x, dtype), e.cast(dim, dtype))
        if dim is None:
            return value(e, x)
        wide = e.cast(x, I32) if x.type.dtype == BOOL else x
        return value(e, x, dim, keepdim), place(e, wide, dim, keepdim)

    return convert


converts("max")(_extreme_of(ops.Maximum, ops.Or, _AMAX, _ARGMAX))
converts("min")(_extreme_of(ops.Minimum, ops.And, _AMIN, _ARGMIN))


def _truth(op: type[reduces.Reduce], of_none: bool) -> Converter:
    def convert(e: Emitter, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
        if 0 in x.type.shape:
            return e.broadcast(e.scalar(of_none, BOOL), e.shape)
        ones = e.cast(e.cast(x, BOOL), I32)
        return e.cast(reduced(e, op, ones, dim, keepdim), e.result.dtype)

    return convert


converts("any")(_truth(reduces.Max, False))
converts("all")(_truth(reduces.Min, True))


@converts("var")
def variance(
    e: Emitter,
    x: Value,
    dim: Any = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Value:
    """Mean of squared differences, times N / (N - correction), which ``unbiased`` makes 1."""
    if isinstance(dim, bool):  # the overload ``var(x, unbiased)``
        dim, unbiased = None, dim
    axes = axes_of(x, dim)
    count = TensorType(F32, tuple(x.type.shape[a] for a in axes)).size
    correction = int(unbiased) if correction is None else correction
    if not isinstance(count, int):
        raise Unsupported(f"the variance of {count} elements with correction {correction}")
    centred = e.emit(ops.Sub(), x, reduced(e, reduces.Mean, x, axes, True))
    squares = reduced(e, reduces.Mean, e.emit(ops.Mul(), centred, centred), axes, keepdim)
    if correction == 0:
        return squares
    left = max(count - correction, 0)
    factor = count / left if left else float("inf")  # 0 * inf is NaN, as torch has it
    return e.emit(ops.Mul(), squares, e.scalar(factor, F32))


@converts("log_softmax", "_log_softmax")
def log_softmax(e: Emitter, x: Value, dim: int, *_: Any, **__: Any) -> Value:
    x, shape = _ranked(e, x)
    axis = axis_of(x, dim)
    if 0 in shape:
        return x
    shifted = e.emit(ops.Sub(), x, e.emit(reduces.Max(axis, True), x))
    total = e.emit(reduces.Sum(axis, True), e.emit(ops.Exp(), shifted))
    return e.reshape(e.emit(ops.Sub(), shifted, e.emit(ops.Log(), total)), shape)


@converts("softmax", "_softmax")
def softmax(e: Emitter, x: Value, dim: int, *_: Any, **__: Any) -> Value:
    """The optional dtype is a float, and all floats are f32."""
    x, shape = _ranked(e, x)
    if 0 in shape:
        return x
    return e.reshape(e.emit(reduces.Softmax(axis_of(x, dim)), x), shape)


def _ranked(e: Emitter, x: Value) -> tuple[Value, Any]:
    """In f32 and with an axis, and the shape that it had."""
    shape = x.type.shape
    return e.reshape(e.cast(x, F32), shape or (1,)), shape

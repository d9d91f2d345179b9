"""Converters of convolutions, pools, pads, interpolation and batch norms: ops on [N, C, ...]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir.dtype import F32
from ..ir.graph import Value
from ..ir.ops import elementwise as ops
from ..ir.ops import reduce as reduces
from ..ir.ops.linear import MatMul
from ..ir.ops.shape import Concat
from ..ir.ops.spatial import AvgPool, Convolution, MaxPool
from ..ir.types import TensorType
from .fx_convert_context import Emitter, Operand, converts
from .fx_convert_indexing import known_sizes, take_axis
from .fx_convert_reduce import reduced
from .fx_convert_shape import take, transpose

Ints = int | Sequence[int]


def _each(value: Ints, axes: int) -> tuple[int, ...]:
    """One number for each axis; a lone one is for all."""
    numbers = [value] if isinstance(value, int) else list(value)
    return tuple(numbers * axes if len(numbers) == 1 else numbers)


def _batched(e: Emitter, x: Value, axes: int) -> Value:
    return x if x.type.rank == axes + 2 else e.reshape(x, (1, *x.type.shape))


# Convolutions ---------------------------------------------------------------------------------


@converts("convolution")
def convolution(
    e: Emitter,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> Value:
    axes = weight.type.rank - 2
    steps, before, spread = (_each(v, axes) for v in (stride, padding, dilation))
    after = before
    if transposed:
        after = tuple(p - o for p, o in zip(before, _each(output_padding, axes), strict=True))
        weight = _turned(e, weight, groups)
    op = Convolution(steps, before, after, spread, groups, transposed, bias is not None)
    given = [x, weight] if bias is None else [x, weight, bias]
    floats = [e.cast(v, F32) for v in given]
    y = e.emit(op, _batched(e, floats[0], axes), *floats[1:])
    return e.cast(e.reshape(y, e.shape), x.type.dtype)


def _turned(e: Emitter, weight: Value, groups: int) -> Value:
    """[C, M / groups, ...] -> [M, C / groups, ...]."""
    c, m, *kernel = weight.type.shape
    inside = known_sizes([c], "a convolution")[0] // groups
    apart = e.reshape(weight, (groups, inside, m, *kernel))
    swapped = transpose(e, apart, 1, 2)
    return e.reshape(swapped, (known_sizes([m], "a convolution")[0] * groups, inside, *kernel))


# Pools ----------------------------------------------------------------------------------------


def _after(
    e: Emitter, x: Value, window: Sequence[int], stride: Sequence[int], before: Sequence[int]
) -> tuple[int, ...]:
    """Padding at the end by which exactly the windows fit that torch counted (``ceil_mode``)."""
    axes = len(window)
    sizes = known_sizes(x.type.shape[-axes:], "a pool")
    counts = known_sizes(e.shape[-axes:], "a pool")
    return tuple(
        (n - 1) * s + w - size - b
        for n, s, w, size, b in zip(counts, stride, window, sizes, before, strict=True)
    )


@converts("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    e: Emitter,
    x: Value,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
) -> tuple[Value, ...]:
    assert e.node is not None
    axes = 3 if "3d" in str(e.node.target) else 2
    kernel, before, spread = (_each(v, axes) for v in (kernel_size, padding, dilation))
    steps = _each(stride, axes) if stride not in ((), []) else kernel
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, spread, strict=True)]
    after = _after(e, x, reach, steps, before)
    op = MaxPool(kernel, steps, before, after, spread)
    values, ids = e.graph.append(op, _batched(e, e.cast(x, F32), axes))
    return e.cast(e.reshape(values, e.shape), x.type.dtype), e.reshape(ids, e.shape)


@converts("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    e: Emitter,
    x: Value,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    assert e.node is not None
    axes = int(str(e.node.target).split("avg_pool")[1][0])
    kernel, before = _each(kernel_size, axes), _each(padding, axes)
    steps = _each(stride, axes) if stride not in ((), []) else kernel
    after = _after(e, x, kernel, steps, before)
    ones = (1,) * axes
    op = AvgPool(
        kernel, steps, before, after, ones, count_include_pad, divisor_override or 0, before
    )
    means = e.emit(op, _batched(e, e.cast(x, F32), axes))
    return e.cast(e.reshape(means, e.shape), x.type.dtype)


@converts("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d")
def adaptive_avg_pool(e: Emitter, x: Value, output_size: Ints) -> Value:
    """One axis after the other: means of parts of one length, or a product with a matrix."""
    axes = 1 if isinstance(output_size, int) else len(output_size)
    counts = known_sizes(e.shape[-axes:], "a pool")
    sizes = known_sizes(x.type.shape[-axes:], "a pool")
    if all(n and size % n == 0 for n, size in zip(counts, sizes, strict=True)):
        kernel = tuple(size // n for n, size in zip(counts, sizes, strict=True))
        zeros, ones = (0,) * axes, (1,) * axes
        op = AvgPool(kernel, kernel, zeros, zeros, ones, pads=zeros)
        return e.reshape(e.emit(op, _batched(e, x, axes)), e.shape)
    for axis, count, size in zip(
        range(x.type.rank - axes, x.type.rank), counts, sizes, strict=True
    ):
        x = along_axis(e, x, axis, _adaptive_matrix(count, size))
    return x


def _adaptive_matrix(count: int, size: int) -> np.ndarray:
    """[size, count]: column n averages size * n // count up to the ceiling of the next."""
    matrix = np.zeros((size, count), np.float32)
    for n in range(count):
        start, stop = n * size // count, -(-(n + 1) * size // count)
        matrix[start:stop, n] = 1 / (stop - start)
    return matrix


def along_axis(e: Emitter, x: Value, axis: int, matrix: np.ndarray) -> Value:
    """Every line along an axis times a constant matrix."""
    constant = e.graph.const(matrix, TensorType(F32, matrix.shape))
    moved = transpose(e, x, axis, -1)
    rows = e.reshape(moved, (TensorType(F32, moved.type.shape[:-1]).size, matrix.shape[0]))
    product = e.emit(MatMul(), rows, constant)
    back = e.reshape(product, (*moved.type.shape[:-1], matrix.shape[1]))
    return transpose(e, back, axis, -1)


# Pads -----------------------------------------------------------------------------------------


@converts("constant_pad_nd")
def constant_pad(e: Emitter, x: Value, pad: Sequence[int], value: Operand = 0) -> Value:
    """Pairs of numbers from the last axis on; a negative one cuts."""
    for back, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        axis = x.type.rank - 1 - back
        if before < 0 or after < 0:
            (size,) = known_sizes([x.type.shape[axis]], "a pad that cuts")
            x = take(e, x, axis, max(-before, 0), size - max(-after, 0))
        parts = [_fill(e, x, axis, before, value), x, _fill(e, x, axis, after, value)]
        present = [part for part in parts if part is not None]
        x = present[0] if len(present) == 1 else e.emit(Concat(axis), *present)
    return x


def _fill(e: Emitter, x: Value, axis: int, count: int, value: Operand) -> Value | None:
    if count <= 0:
        return None
    shape = (*x.type.shape[:axis], count, *x.type.shape[axis + 1 :])
    return e.broadcast(e.operand(value, x.type.dtype), shape)


@converts(*(f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3)))
def mirror_pad(e: Emitter, x: Value, padding: Sequence[int]) -> Value:
    """Elements again, from the edge on: mirrored, or the last one."""
    assert e.node is not None
    mirrored = "reflection" in str(e.node.target)
    for back, (before, after) in enumerate(zip(padding[::2], padding[1::2], strict=True)):
        axis = x.type.rank - 1 - back
        (size,) = known_sizes([x.type.shape[axis]], "a pad")
        at = np.arange(-before, size + after)
        if mirrored:
            at = size - 1 - np.abs(size - 1 - np.abs(at))
        x = take_axis(e, x, axis, np.clip(at, 0, size - 1))
    return x


# Interpolation --------------------------------------------------------------------------------


def _scales(e: Emitter, x: Value, rest: Sequence[Any]) -> list[tuple[int, int, int, float]]:
    """(axis, size, new size, step) of each axis: one over the given factor, else their ratio."""
    axes = x.type.rank - 2
    given = rest[0] if rest and isinstance(rest[0], list) else list(rest)
    factors = [*given, *[None] * axes][:axes]
    sizes = known_sizes(x.type.shape[2:], "interpolation")
    counts = known_sizes(e.shape[2:], "interpolation")
    return [
        (axis + 2, size, count, 1 / factor if factor else size / count)
        for axis, (size, count, factor) in enumerate(zip(sizes, counts, factors, strict=True))
    ]


@converts(*(f"upsample_nearest{n}d" for n in (1, 2, 3)))
def upsample_nearest(e: Emitter, x: Value, output_size: Any, *rest: Any) -> Value:
    for axis, size, count, step in _scales(e, x, rest):
        at = np.floor(np.arange(count, dtype=np.float32) * np.float32(step)).astype(int)
        x = take_axis(e, x, axis, np.minimum(at, size - 1))
    return x


@converts("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
def upsample_linear(
    e: Emitter, x: Value, output_size: Any, align_corners: bool, *rest: Any
) -> Value:
    """Between the two neighbours, one axis after the other."""
    for axis, size, count, step in _scales(e, x, rest):
        at = np.arange(count, dtype=np.float64)
        if align_corners:
            at = at * ((size - 1) / (count - 1) if count > 1 else 0.0)
        else:
            at = np.maximum((at + 0.5) * step - 0.5, 0.0)
        low = np.minimum(np.floor(at).astype(int), size - 1)
        x = _between(e, x, axis, low, np.minimum(low + 1, size - 1), at - low)
    return x


def _between(e: Emitter, x: Value, axis: int, low: Any, high: Any, share: Any) -> Value:
    if not share.any():
        return take_axis(e, x, axis, low)
    shape = [1] * x.type.rank
    shape[axis] = len(share)
    weights = [
        e.graph.const(part.reshape(shape), TensorType(F32, tuple(shape)))
        for part in ((1 - share).astype(np.float32), share.astype(np.float32))
    ]
    parts = [take_axis(e, x, axis, ids) for ids in (low, high)]
    left, right = (e.emit(ops.Mul(), p, w) for p, w in zip(parts, weights, strict=True))
    return e.emit(ops.Add(), left, right)


# Norms ----------------------------------------------------------------------------------------


@converts("_native_batch_norm_legit_no_training")
def batch_norm(
    e: Emitter,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, Value, Value]:
    """x scale + shift, both of them worked out when weights are packed."""
    scale = e.emit(ops.Rsqrt(), e.emit(ops.Add(), variance, e.scalar(eps, F32)))
    if weight is not None:
        scale = e.emit(ops.Mul(), scale, weight)
    shift = e.emit(ops.Neg(), e.emit(ops.Mul(), mean, scale))
    if bias is not None:
        shift = e.emit(ops.Add(), shift, bias)
    none = e.broadcast(e.scalar(0, F32), (0,))
    return _affine(e, x, scale, shift), none, none


def _affine(e: Emitter, x: Value, scale: Value, shift: Value) -> Value:
    """Along the channels, axis 1."""
    column = (x.type.shape[1], *(1 for _ in x.type.shape[2:]))
    scaled = e.emit(ops.Mul(), x, e.reshape(scale, column))
    return e.emit(ops.Add(), scaled, e.reshape(shift, column))


@converts("native_group_norm")
def group_norm(
    e: Emitter,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    n: int,
    c: int,
    hw: int,
    group: int,
    eps: float,
) -> tuple[Value, Value, Value]:
    rows = e.reshape(x, (n, group, c // group * hw))
    mean = reduced(e, reduces.Mean, rows, -1, True)
    centred = e.emit(ops.Sub(), rows, mean)
    square = reduced(e, reduces.Mean, e.emit(ops.Mul(), centred, centred), -1, True)
    deviation = e.emit(ops.Rsqrt(), e.emit(ops.Add(), square, e.scalar(eps, F32)))
    y = e.reshape(e.emit(ops.Mul(), centred, deviation), x.type.shape)
    column = (c, *(1 for _ in x.type.shape[2:]))
    if weight is not None:
        y = e.emit(ops.Mul(), y, e.reshape(weight, column))
    if bias is not None:
        y = e.emit(ops.Add(), y, e.reshape(bias, column))
    return y, e.reshape(mean, (n, group)), e.reshape(deviation, (n, group))


# Distances and bags ---------------------------------------------------------------------------


@converts("_cdist_forward")
def cdist(e: Emitter, a: Value, b: Value, p: float, compute_mode: int | None = None) -> Value:
    """The p-norm of every difference of a row of ``a`` and one of ``b``."""
    if 0 in e.shape or a.type.shape[-1] == 0:
        return e.broadcast(e.scalar(0, F32), e.shape)
    left = e.reshape(a, (*a.type.shape[:-1], 1, a.type.shape[-1]))
    right = e.reshape(b, (*b.type.shape[:-2], 1, *b.type.shape[-2:]))
    apart = e.emit(ops.Abs(), e.emit(ops.Sub(), left, right))
    if math.isinf(p):
        return reduced(e, reduces.Max, apart, -1)
    if p == 0:
        there = e.cast(e.emit(ops.Ne(), apart, e.scalar(0, F32)), F32)
        return reduced(e, reduces.Sum, there, -1)
    if p == 1:
        return reduced(e, reduces.Sum, apart, -1)
    if p == 2:
        return e.emit(ops.Sqrt(), reduced(e, reduces.Sum, e.emit(ops.Mul(), apart, apart), -1))
    total = reduced(e, reduces.Sum, e.emit(ops.Pow(), apart, e.scalar(p, F32)), -1)
    return e.emit(ops.Pow(), total, e.scalar(1 / p, F32))

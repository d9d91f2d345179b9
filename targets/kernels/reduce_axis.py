"""Reductions over any axis, of any size, of f32 or i32: what the kernels of `reduce` leave.

Layouts: x [outer, n, inner] contiguous; y [outer, inner] (argmax, argmin: i32), or for cumsum and
softmax as x. size = outer * inner. Grid: (cdiv(size, BLOCK), 1, 1). BLOCK a power of two.
Numerics: f32 or i32, in ascending order. NaN wins as largest and as smallest; of equal elements the
first place counts.
"""

import triton
import triton.language as tl

from .elementwise import load_number


@triton.jit
def beats(value, best, KIND: tl.constexpr):
    if KIND == "max" or KIND == "argmax":
        better = value > best
    else:
        better = value < best
    return better | ((value != value) & (best == best))


@triton.jit
def lines(n, size, inner, BLOCK: tl.constexpr):
    """The lane's index and, in x, the place of the first element of its line."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    outer = lane // inner
    return lane, outer.to(tl.int64) * n * inner + (lane - outer * inner)


@triton.jit
def reduce(x, y, n, size, inner, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """KIND: sum, mean, prod, max, min, argmax, argmin. n >= 1."""
    lane, start = lines(n, size, inner, BLOCK)
    inside = lane < size
    best = load_number(x + start, inside, 1)
    where = tl.zeros((BLOCK,), tl.int32)
    for k in range(1, n):
        value = load_number(x + start + k * inner, inside, 1)
        if KIND == "sum" or KIND == "mean":
            best += value
        elif KIND == "prod":
            best *= value
        else:
            better = beats(value, best, KIND)
            best = tl.where(better, value, best)
            where = tl.where(better, k, where)
    if KIND == "mean":
        best = best / n.to(tl.float32)
    if KIND == "argmax" or KIND == "argmin":
        tl.store(y + lane, where, mask=inside)
    else:
        tl.store(y + lane, best.to(y.dtype.element_ty), mask=inside)


@triton.jit
def cumsum(x, y, n, size, inner, BLOCK: tl.constexpr):
    lane, start = lines(n, size, inner, BLOCK)
    inside = lane < size
    total = load_number(x + start, inside, 0)
    tl.store(y + start, total.to(y.dtype.element_ty), mask=inside)
    for k in range(1, n):
        total += load_number(x + start + k * inner, inside, 0)
        tl.store(y + start + k * inner, total.to(y.dtype.element_ty), mask=inside)


@triton.jit
def softmax(x, y, n, size, inner, BLOCK: tl.constexpr):
    lane, start = lines(n, size, inner, BLOCK)
    inside = lane < size
    top = load_number(x + start, inside, 0)
    for k in range(1, n):
        top = tl.maximum(top, load_number(x + start + k * inner, inside, 0))
    total = tl.zeros((BLOCK,), tl.float32)
    for k in range(n):
        total += tl.exp(load_number(x + start + k * inner, inside, 0) - top)
    for k in range(n):
        value = tl.exp(load_number(x + start + k * inner, inside, 0) - top) / total
        tl.store(y + start + k * inner, value.to(y.dtype.element_ty), mask=inside)


@triton.jit
def fill(y, size, first, step, BLOCK: tl.constexpr):
    """y[i] = first + i * step, in y's type: constants too large to store, and 0, 1, 2, ..."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, (first + i * step).to(y.dtype.element_ty), mask=i < size)

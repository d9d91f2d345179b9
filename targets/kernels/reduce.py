"""Reductions over the last axis of floats, in f32.

Layouts: x f32 [rows, N] contiguous; y f32 [rows] (argmax: i32 [rows]; softmax: f32 [rows, N]).
Grid: (rows, 1, 1), one program per row. Limits: N >= 1, BLOCK a power of two.
Numerics: BLOCK partial results in ascending chunks, then one reduction over BLOCK. argmax takes the
first of equals; NaN is not handled.
"""

import triton
import triton.language as tl

from .norm import store_chunk


@triton.jit
def load_or(p, at, fill, N: tl.constexpr, BLOCK: tl.constexpr):
    """p[at .. at+BLOCK), `fill` beyond N: chosen after the load, as some chips ignore `other`."""
    i = at + tl.arange(0, BLOCK)
    if N % BLOCK == 0:
        chunk = tl.load(p + i).to(tl.float32)
    else:
        chunk = tl.load(p + i, mask=i < N).to(tl.float32)
        chunk = tl.where(i < N, chunk, fill)
    return chunk


@triton.jit
def row_max(x, N: tl.constexpr, BLOCK: tl.constexpr):
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    for at in range(0, N, BLOCK):
        best = tl.maximum(best, load_or(x, at, float("-inf"), N, BLOCK))
    return tl.max(best, 0)


@triton.jit
def row_argmax(x, N: tl.constexpr, BLOCK: tl.constexpr):
    """Index of the largest element, the first of equals."""
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    where = tl.arange(0, BLOCK)
    for at in range(0, N, BLOCK):
        chunk = load_or(x, at, float("-inf"), N, BLOCK)
        where = tl.where(chunk > best, at + tl.arange(0, BLOCK), where)
        best = tl.maximum(best, chunk)
    top = tl.max(best, 0)
    return tl.min(tl.where((best == top) & (where < N), where, N - 1), 0)


@triton.jit
def reduce(x, y, N: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """KIND: sum, mean, max, min."""
    row = tl.program_id(0)
    x += row.to(tl.int64) * N
    if KIND == "max":
        value = row_max(x, N, BLOCK)
    elif KIND == "min":
        best = tl.full((BLOCK,), float("inf"), tl.float32)
        for at in range(0, N, BLOCK):
            best = tl.minimum(best, load_or(x, at, float("inf"), N, BLOCK))
        value = tl.min(best, 0)
    else:
        tl.static_assert(KIND == "sum" or KIND == "mean")
        total = tl.zeros((BLOCK,), tl.float32)
        for at in range(0, N, BLOCK):
            total += load_or(x, at, 0.0, N, BLOCK)
        value = tl.sum(total, 0)
        if KIND == "mean":
            value = value / N
    tl.store(y + row, value.to(y.dtype.element_ty))


@triton.jit
def argmax(x, y, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    tl.store(y + row, row_argmax(x + row.to(tl.int64) * N, N, BLOCK))


@triton.jit
def softmax(x, y, N: tl.constexpr, BLOCK: tl.constexpr):
    """y may be x. A row of -inf only gives NaN, as elsewhere."""
    row = tl.program_id(0).to(tl.int64) * N
    top = row_max(x + row, N, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for at in range(0, N, BLOCK):
        total += tl.exp(load_or(x + row, at, float("-inf"), N, BLOCK) - top)
    total = tl.sum(total, 0)
    for at in range(0, N, BLOCK):
        value = tl.exp(load_or(x + row, at, float("-inf"), N, BLOCK) - top) / total
        store_chunk(y + row, at, value, N, BLOCK)

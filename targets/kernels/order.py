"""Ops along the last axis: the largest, elements by index, running sums; sums of a middle axis;
products of small matrices in batches.

Layouts: x [rows, N] contiguous, f32 or i32 (take_along, put_along: any type); ids
i32 [rows, TOP_K].
Grid: (rows, 1, 1), one program per row; sum_middle: (outer, cdiv(INNER, BLOCK), 1); batched_matmul:
(batches * M, cdiv(N, BLOCK), 1).
Limits: BLOCK a power of two, at least N in top_k and put_along. NaN is not handled.
Numerics: cumsum and sum_middle add in ascending order.
"""

import triton
import triton.language as tl


@triton.jit
def top_k(x, values, ids, N: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """values [rows, TOP_K] and their places, largest first, of equal ones the lowest place."""
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)
    low = float("-inf") if x.dtype.element_ty.is_floating() else -2147483648
    every = tl.load(x + row * N + e, mask=e < N, other=low)
    free = (e < N).to(tl.int32)
    for j in range(TOP_K):
        best = tl.max(tl.where(free > 0, every, low), 0)
        chosen = tl.min(tl.where((free > 0) & (every == best), e, BLOCK), 0)
        tl.store(values + row * TOP_K + j, best)
        tl.store(ids + row * TOP_K + j, chosen)
        free = tl.where(e == chosen, 0, free)


@triton.jit
def top_k_integers(x, values, ids, N: tl.constexpr, TOP_K: tl.constexpr):
    """The same for integers of any type, whose least value may be among them: one after another."""
    row = tl.program_id(0).to(tl.int64)
    x += row * N
    last = tl.load(x)
    place = 0
    for j in range(TOP_K):
        best = last
        chosen = -1
        for e in range(N):
            value = tl.load(x + e)
            follows = (j == 0) | (value < last) | ((value == last) & (e > place))
            better = follows & ((chosen < 0) | (value > best))
            best = tl.where(better, value, best)
            chosen = tl.where(better, e, chosen)
        tl.store(values + row * TOP_K + j, best)
        tl.store(ids + row * TOP_K + j, chosen)
        last = best
        place = chosen


@triton.jit
def take_along(x, ids, y, N: tl.constexpr, TOP_K: tl.constexpr):
    """y[row, j] = x[row, ids[row, j]]."""
    row = tl.program_id(0).to(tl.int64)
    for j in range(TOP_K):
        tl.store(y + row * TOP_K + j, tl.load(x + row * N + tl.load(ids + row * TOP_K + j)))


@triton.jit
def put_along(x, ids, src, y, N: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """y = x with y[row, ids[row, j]] = src[row, j]; of repeated ids the last j stays."""
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)
    every = tl.load(x + row * N + e, mask=e < N, other=0)
    for j in range(TOP_K):
        at = tl.load(ids + row * TOP_K + j)
        every = tl.where(e == at, tl.load(src + row * TOP_K + j), every)
    tl.store(y + row * N + e, every, mask=e < N)


@triton.jit
def cumsum(x, y, N: tl.constexpr):
    """y[row, i] = x[row, 0] + ... + x[row, i]."""
    row = tl.program_id(0).to(tl.int64) * N
    total = tl.load(x + row)
    tl.store(y + row, total)
    for i in range(1, N):
        total += tl.load(x + row + i)
        tl.store(y + row + i, total)


@triton.jit
def sum_middle(x, y, N: tl.constexpr, INNER: tl.constexpr, BLOCK: tl.constexpr):
    """y[outer, i] = sum over n of x[outer, n, i]."""
    outer = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x += outer * (N * INNER)
    total = tl.zeros((BLOCK,), tl.float32)
    for n in range(N):
        total += tl.load(x + n * INNER + i, mask=i < INNER, other=0.0)
    tl.store(y + outer * INNER + i, total, mask=i < INNER)


@triton.jit
def batched_matmul(
    a, b, y, d1, a0, a1, b0, b1,
    M: tl.constexpr, K: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y[i, j] = a[i, j] @ b[i, j], matrices [M, K] and [K, N] row-major; j counts d1 batches.

    a0, a1, b0, b1: strides of the batches in elements, 0 where one matrix serves all.
    """
    row = tl.program_id(0)
    batch = row // M
    i0 = (batch // d1).to(tl.int64)
    i1 = (batch % d1).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    a += i0 * a0 + i1 * a1 + row % M * K
    b += i0 * b0 + i1 * b1
    acc = tl.zeros((BLOCK,), y.dtype.element_ty)
    for k in range(K):
        acc += tl.load(a + k) * tl.load(b + k * N + n, mask=n < N, other=0.0)
    tl.store(y + row.to(tl.int64) * N + n, acc, mask=n < N)

"""Mixture of experts on whole tiles, no product masked: choosing, products by expert, sums.

For chips whose block transfers may not leave an allocation (see whole_linear.py), and whose masked
lanes hold anything: what is beyond a row is taken out after the load.

Layouts
  x of top_k f32 [rows, N]; values f32, ids i32 [rows, TOP_K]
  x of expert_linear f32 [T, K] (SHARED) or [T * TOP_K, K]; ids i32 [T, TOP_K]; w [E, N, K] of f32,
  bf16 or f16; y f32 [T * TOP_K, N]. x and y have memory for BLOCK_M rows from each row on.
  x of sum_middle f32 [outer, N, INNER]; y f32 [outer, INNER]
  x and y of put_along [rows, N], ids i32 and src [rows, TOP_K]: f32 or i32
Grid: top_k (rows, 1, 1); expert_linear (T * TOP_K, cdiv(N, BLOCK_N), 1): a choice of a token, so
  its expert's rows are read for it alone; sum_middle (outer, INNER / BLOCK, 1); put_along
  (rows, 1, 1).
Limits: BLOCK of top_k the power of two at N or above, more than 32; that of sum_middle divides
  INNER; tiles of expert_linear as in
  whole_linear.py. NaN is not handled by top_k.
Numerics: as whole_linear.py; a choice's bits depend on nothing else in the batch.
"""

import triton
import triton.language as tl

from .whole_linear import dot_whole


@triton.jit
def top_k(x, values, ids, N: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """The TOP_K largest and their places, largest first, of equal ones the lowest place."""
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)
    every = tl.where(e < N, tl.load(x + row * N + e, mask=e < N), float("-inf"))
    free = (e < N).to(tl.int32)
    for j in range(TOP_K):
        left = tl.where(free > 0, every, float("-inf"))
        best = tl.max(left, 0)
        chosen = tl.min(tl.where((free > 0) & (left == best), e, BLOCK), 0)
        tl.store(values + row * TOP_K + j, best)
        tl.store(ids + row * TOP_K + j, chosen)
        free = tl.where(e == chosen, 0, free)


@triton.jit
def expert_linear(
    x, w, ids, y,
    K: tl.constexpr, N: tl.constexpr, TOP_K: tl.constexpr, SHARED: tl.constexpr,
    HALF: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """y[p] = x[row of p] @ W[ids[p]]^T. The tile's other rows are what follows, and not stored."""
    pair = tl.program_id(0)
    row = pair // TOP_K if SHARED else pair
    n0 = tl.minimum(tl.program_id(1) * BLOCK_N, N - BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    x += row.to(tl.int64) * K
    w += (tl.load(ids + pair).to(tl.int64) * N + n0) * K
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        xs = tl.load(x + m[:, None] * K + (k0 + k)[None, :])
        acc = dot_whole(acc, xs, w, k0, K, BLOCK_N, BLOCK_K, HALF)
    at = m[:, None] * N + n[None, :]
    tl.store(y + pair.to(tl.int64) * N + n0 + at, acc, mask=m[:, None] < 1)


@triton.jit
def sum_middle(x, y, N: tl.constexpr, INNER: tl.constexpr, BLOCK: tl.constexpr):
    """y[outer, i] = x[outer, 0, i] + x[outer, 1, i] + ..."""
    outer = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x += outer * (N * INNER)
    total = tl.load(x + i)
    for n in range(1, N):
        total += tl.load(x + n * INNER + i)
    tl.store(y + outer * INNER + i, total)


@triton.jit
def put_along(x, ids, src, y, N: tl.constexpr, TOP_K: tl.constexpr):
    """y = x with y[row, ids[row, j]] = src[row, j]; of repeated ids the last j stays. One after
    another: a row of scores is short, and no lane is masked."""
    row = tl.program_id(0).to(tl.int64)
    for e in range(N):
        tl.store(y + row * N + e, tl.load(x + row * N + e))
    for j in range(TOP_K):
        at = tl.load(ids + row * TOP_K + j)
        tl.store(y + row * N + at, tl.load(src + row * TOP_K + j))

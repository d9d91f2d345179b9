"""Products of tokens with the weights of the experts chosen for them, for GPUs.

Layouts (pair p is token p // TOP_K at its choice p % TOP_K; `route_experts.py` has order and tiles)
  w         [EXPERTS, N, K] row-major; GATED: [EXPERTS, 2N, K], N gate rows, then N up rows
  x         [T, K] (FROM 0: the row of a pair's token), [pairs, K] by pair (FROM 1) or by place in
            `order` (FROM 2)
  y         [pairs, N] by pair (BY_PLACE 0) or by place in `order` (BY_PLACE 1)
  ids, weights  [T, TOP_K]: i32 and f32
x, w and y are bf16 (or f16); y may be f32.
Kernels and grids
  linear          many pairs: each tile of an expert's pairs reads a tile of its weight by the
                  matrix units. Grid (most_tiles * cdiv(N, OUTPUTS), 1, 1), OUTPUTS = BLOCK_N, or
                  BLOCK_N / 2 if GATED; programs of an expert follow each other, so that its weight
                  comes from memory once.
  few             few pairs: every pair reads its expert's weight; bound by that. Grid
                  (cdiv(N, BLOCK_N), pairs, 1)
  few_combined    y[t] = residual[t] + sum over j of weights[t, j] * (w[ids[t, j]] @
                  x[t * TOP_K + j]); grid (cdiv(N, BLOCK_N), T, 1)
  combine         y[t] = residual[t] + sum over j of weights[t, j] * z[t * TOP_K + j]; grid
                  (cdiv(N, BLOCK), T, 1)
residual [T, N] may be None, then given as a constant.
Limits: blocks powers of two, in `linear` at least 16; any N and K; BLOCK_J the next power of two of
  TOP_K. SWAP as in `split_k.py`.
Numerics: `linear` sums over ascending k in steps of the matrix units, whatever BLOCK_M, BLOCK_N and
  BLOCK_K are, and `combine` over ascending j: a row has the same bits whatever it shares a tile
  with. The others sum in another order, always the same.
PDL: as in `gemv.py`; the wait comes first. `few_combined` follows `few`, which lets it start when
  the choices are there: it reads its weights while `few` still runs.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .activation import activate
from .epilogue import halves, weight_rows

MOST_AHEAD = tl.constexpr(4)  # blocks of weights that wait in registers


@triton.jit
def load_rows(p, k0, exists, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """BLOCK_K columns from k0 of rows at p; zero outside."""
    k = k0 + tl.arange(0, BLOCK_K)
    pointers = p[:, None] + k[None, :]
    if K % BLOCK_K == 0:
        tile = tl.load(pointers, mask=exists[:, None], other=0.0)
    else:
        tile = tl.load(pointers, mask=exists[:, None] & (k < K)[None, :], other=0.0)
    return tile


@triton.jit
def linear(
    x, w, order, tiles, y,
    K: tl.constexpr, N: tl.constexpr, TOP_K: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr,
    FROM: tl.constexpr, BY_PLACE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, SWAP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y = x @ w[expert]^T, or act(gate) * up."""
    OUTPUTS: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    COLUMNS: tl.constexpr = (N + OUTPUTS - 1) // OUTPUTS
    ROWS: tl.constexpr = 2 * N if GATED else N
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    tile = tiles + tl.program_id(0) // COLUMNS * 3
    column = tl.program_id(0) % COLUMNS
    count = tl.load(tile + 2)
    if count > 0:
        expert = tl.load(tile).to(tl.int64)
        m = tl.arange(0, BLOCK_M)
        place = tl.load(tile + 1) + m
        pair = tl.load(order + place, mask=m < count, other=0)
        if FROM == 0:
            source = pair // TOP_K
        elif FROM == 1:
            source = pair
        else:
            source = place
        n, exists = weight_rows(column, N, BLOCK_N, GATED)
        rows = x + source.to(tl.int64) * K
        w_rows = w + (expert * ROWS + n) * K
        acc = tl.zeros((BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N), tl.float32)
        for k0 in range(0, K, BLOCK_K):
            xs = load_rows(rows, k0, m < count, K, BLOCK_K)
            ws = load_rows(w_rows, k0, exists, K, BLOCK_K)
            if SWAP:
                acc = tl.dot(ws, xs.T, acc)
            else:
                acc = tl.dot(xs, ws.T, acc)
        out = acc.T if SWAP else acc
        if GATED:
            gate, up = halves(out, BLOCK_M, BLOCK_N)
            out = activate(gate, ACT) * up
        target = place if BY_PLACE else pair
        at = column * OUTPUTS + tl.arange(0, OUTPUTS)
        inside = (m < count)[:, None] & (at < N)[None, :]
        to = y + target.to(tl.int64)[:, None] * N + at[None, :]
        tl.store(to, out.to(y.dtype.element_ty), mask=inside)


@triton.jit
def load_some(p, k, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """p[k] in f32, zero beyond K."""
    if K % BLOCK_K == 0:
        v = tl.load(p + k)
    else:
        v = tl.load(p + k, mask=k < K, other=0.0)
    return v.to(tl.float32)


@triton.jit
def load_weight(
    w, n, k, N: tl.constexpr, K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """f32 [BLOCK_N, BLOCK_K] of w, read once."""
    pointers = w + n[:, None] * K + k[None, :]
    if N % BLOCK_N == 0 and K % BLOCK_K == 0:
        tile = tl.load(pointers, eviction_policy="evict_first")
    else:
        inside = (n < N)[:, None] & (k < K)[None, :]
        tile = tl.load(pointers, mask=inside, other=0.0, eviction_policy="evict_first")
    return tile.to(tl.float32)


@triton.jit
def few(
    x, w, ids, y,
    K: tl.constexpr, N: tl.constexpr, TOP_K: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr,
    FROM: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One pair: y = x @ w[expert]^T, or act(gate) * up."""
    if PDL:
        gdc_wait()  # first: `few_combined` counts on what was written before this kernel
        gdc_launch_dependents()
    ROWS: tl.constexpr = 2 * N if GATED else N
    pair = tl.program_id(1)
    source = pair // TOP_K if FROM == 0 else pair
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    x += source.to(tl.int64) * K
    w += tl.load(ids + pair).to(tl.int64) * (ROWS * K)
    sums = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    ups = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for k0 in tl.static_range(0, K, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        xs = tl.broadcast_to(load_some(x, k, K, BLOCK_K)[None, :], (BLOCK_N, BLOCK_K))
        sums = tl.fma(load_weight(w, n, k, N, K, BLOCK_N, BLOCK_K), xs, sums)
        if GATED:
            ups = tl.fma(load_weight(w + N * K, n, k, N, K, BLOCK_N, BLOCK_K), xs, ups)
    total = activate(tl.sum(sums, 1), ACT)
    if GATED:
        total *= tl.sum(ups, 1)
    tl.store(y + pair.to(tl.int64) * N + n, total.to(y.dtype.element_ty), mask=n < N)


@triton.jit
def store_sum(residual, y, t, n, total, N: tl.constexpr):
    """Columns n of row t."""
    at = t.to(tl.int64) * N + n
    if residual is not None:
        total += tl.load(residual + at, mask=n < N, other=0.0).to(tl.float32)
    tl.store(y + at, total.to(y.dtype.element_ty), mask=n < N)


@triton.jit
def few_combined(
    x, w, ids, weights, residual, y,
    K: tl.constexpr, N: tl.constexpr, TOP_K: tl.constexpr, BLOCK_J: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """All choices of one token, summed: rows of all its experts in one tile, read at a time."""
    AHEAD: tl.constexpr = min((K + BLOCK_K - 1) // BLOCK_K, MOST_AHEAD)
    if PDL:
        gdc_launch_dependents()
    t = tl.program_id(1)
    row = tl.arange(0, BLOCK_J * BLOCK_N)
    j = row // BLOCK_N
    n = tl.program_id(0) * BLOCK_N + row % BLOCK_N
    exists = (j < TOP_K) & (n < N)
    pair = t * TOP_K + tl.minimum(j, TOP_K - 1)
    weight = tl.load(weights + pair)
    w_rows = w + (tl.load(ids + pair).to(tl.int64) * N + n) * K
    x_rows = x + pair.to(tl.int64) * K
    ahead = ()
    for i in tl.static_range(AHEAD):
        ahead = ahead + (load_rows(w_rows, i * BLOCK_K, exists, K, BLOCK_K),)  # noqa: RUF005
    if PDL:
        gdc_wait()
    sums = tl.zeros((BLOCK_J * BLOCK_N, BLOCK_K), tl.float32)
    for i in tl.static_range((K + BLOCK_K - 1) // BLOCK_K):
        ws = ahead[i] if i < AHEAD else load_rows(w_rows, i * BLOCK_K, exists, K, BLOCK_K)
        xs = load_rows(x_rows, i * BLOCK_K, exists, K, BLOCK_K).to(tl.float32)
        sums = tl.fma(ws.to(tl.float32), xs, sums)
    each = tl.where(exists, tl.sum(sums, 1) * weight, 0.0)
    total = tl.sum(tl.reshape(each, (BLOCK_J, BLOCK_N)), 0)
    store_sum(residual, y, t, tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), total, N)


@triton.jit
def combine(
    z, weights, residual, y,
    N: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The weighted sum of a token's rows."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    t = tl.program_id(1)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    z += t.to(tl.int64) * (TOP_K * N)
    total = tl.zeros((BLOCK,), tl.float32)
    for j in tl.static_range(TOP_K):
        row = tl.load(z + j * N + n, mask=n < N, other=0.0).to(tl.float32)
        total = tl.fma(tl.load(weights + t * TOP_K + j), row, total)
    store_sum(residual, y, t, n, total, N)

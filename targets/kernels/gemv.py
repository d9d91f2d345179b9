"""Products of a few rows (decode): y[M, N] = epilogue(x[M, K] @ W[N, K]^T), bound by reading W.

Layouts
  x         bf16, f16 or f32 [M, K], rows contiguous
  w         bf16, f16, f32, e4m3 or i8 [N, K] row-major; GATED: [2N, K], N gate rows, then N up rows
  scale     f32 [rows of w] or None: what a row's integers or e4m3 are multiplied by
  bias      [rows of w] or None; residual [M, N] or None (may alias y); y bf16 or f32 [M, N]
  norm      [K] or None: x is first normalized, x / sqrt(mean(x^2) + eps) * (norm + OFFSET)
  Arguments that are None are given as constants and are no parameters of the compiled kernel.
Grid: (cdiv(N, BLOCK_N), 1, 1).
Limits: rows <= ROWS, ROWS 1 to 4; BLOCK_N, BLOCK_K powers of two; any N and K; num_warps 1 to 8.
  Loads are 16 bytes wide where a row of w is a multiple of 16 bytes and the pointers are aligned.
Numerics: f32 fma over k in steps of BLOCK_K, then one tl.sum over BLOCK_K: fixed by K, BLOCK_K and
  num_warps, so a row has the same bits whatever is computed beside it. With norm the row's factor
  is applied to the sum: the normalized row is not rounded to bf16.
  Order: * scale, + bias, activation (GATED: act(gate) * up), + residual.
PDL: 1: weights of the first step are read before the wait for the preceding kernel, all else after;
  needs the compile option launch_pdl and a launch with programmatic serialization.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .activation import activate


@triton.jit
def load_weight(w, n, k, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr):
    """Rows n and columns k of w, read once: first to leave the caches."""
    pointers = w + n.to(tl.int64)[:, None] * K + k[None, :]
    if EVEN:
        tile = tl.load(pointers, eviction_policy="evict_first")
    else:
        inside = (n < N)[:, None] & (k < K)[None, :]
        tile = tl.load(pointers, mask=inside, other=0.0, eviction_policy="evict_first")
    return tile


@triton.jit
def load_vector(p, k, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """p[k] in f32, zero beyond K."""
    if K % BLOCK_K == 0:
        v = tl.load(p + k)
    else:
        v = tl.load(p + k, mask=k < K, other=0.0)
    return v.to(tl.float32)


@triton.jit
def add_step(
    sums, ups, squares, ws, us, x, norm, k, rows,
    K: tl.constexpr, GATED: tl.constexpr, OFFSET: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One step over k, all rows; sums, ups and squares hold one tensor a row."""
    wide = ws.to(tl.float32)
    wide_up = us.to(tl.float32)
    new_sums, new_ups, new_squares = (), (), ()
    for m in tl.static_range(ROWS):
        xs = load_vector(x + tl.minimum(m, rows - 1) * K, k, K, BLOCK_K)
        square = squares[m]
        if norm is not None:
            square = tl.fma(xs, xs, square)
            xs *= load_vector(norm, k, K, BLOCK_K) + OFFSET
        tile = tl.broadcast_to(xs[None, :], wide.shape)
        new_sums = new_sums + (tl.fma(wide, tile, sums[m]),)  # noqa: RUF005
        new_ups = new_ups + (tl.fma(wide_up, tile, ups[m]) if GATED else ups[m],)  # noqa: RUF005
        new_squares = new_squares + (square,)  # noqa: RUF005
    return new_sums, new_ups, new_squares


@triton.jit
def load_residual(residual, n, m, rows, N: tl.constexpr):
    """What is added to outputs n of row m."""
    add = 0.0
    if residual is not None:
        write = n < tl.where(m < rows, N, 0)
        add = tl.load(residual + m * N + n, mask=write, other=0.0).to(tl.float32)
    return add


@triton.jit
def finish_half(total, scale, bias, n, inside):
    """Scale and bias of rows n of w."""
    if scale is not None:
        total *= tl.load(scale + n, mask=inside, other=0.0)
    if bias is not None:
        total += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)
    return total


@triton.jit
def linear(
    x, w, scale, bias, norm, residual, y, rows, eps,
    K: tl.constexpr, N: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr,
    OFFSET: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """y = act(norm(x) @ W^T * scale + bias) + residual, or act(gate) * up + residual."""
    EVEN: tl.constexpr = N % BLOCK_N == 0 and K % BLOCK_K == 0
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    up = w + N * K
    if PDL:
        gdc_launch_dependents()
    ws = load_weight(w, n, k, N, K, EVEN)
    us = load_weight(up, n, k, N, K, EVEN) if GATED else ws
    if PDL:
        gdc_wait()
    adds, sums, ups, squares = (), (), (), ()
    for m in tl.static_range(ROWS):
        # read first, since nothing is left to hide it behind at the end
        adds = adds + (load_residual(residual, n, m, rows, N),)  # noqa: RUF005
        sums = sums + (tl.zeros((BLOCK_N, BLOCK_K), tl.float32),)  # noqa: RUF005
        ups = ups + (tl.zeros((BLOCK_N, BLOCK_K), tl.float32) if GATED else 0,)  # noqa: RUF005
        squares = squares + (tl.zeros((BLOCK_K,), tl.float32),)  # noqa: RUF005
    sums, ups, squares = add_step(
        sums, ups, squares, ws, us, x, norm, k, rows, K, GATED, OFFSET, ROWS, BLOCK_K
    )
    for k0 in range(BLOCK_K, K, BLOCK_K):
        ws = load_weight(w, n, k0 + k, N, K, EVEN)
        us = load_weight(up, n, k0 + k, N, K, EVEN) if GATED else ws
        sums, ups, squares = add_step(
            sums, ups, squares, ws, us, x, norm, k0 + k, rows, K, GATED, OFFSET, ROWS, BLOCK_K
        )
    inside = n < N
    for m in tl.static_range(ROWS):
        factor = 1.0
        if norm is not None:
            factor = 1.0 / tl.sqrt(tl.sum(squares[m], 0) / K + eps)
        total = activate(finish_half(tl.sum(sums[m], 1) * factor, scale, bias, n, inside), ACT)
        if GATED:
            total *= finish_half(tl.sum(ups[m], 1) * factor, scale, bias, N + n, inside)
        write = n < tl.where(m < rows, N, 0)  # no rows beyond the last
        total += adds[m]
        tl.store(y + m * N + n, total.to(y.dtype.element_ty), mask=write)

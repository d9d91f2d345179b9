"""What follows a product, on f32 tiles [rows of x, rows of w]: scale, bias, gate, store; inlined.

A gated tile holds BLOCK_N / 2 gate rows of w and then the same number of up rows, of a weight
[2N, K] with N gate rows before N up rows (`weight_rows`).
Order: * scales, + bias, activation (gated: act(gate) * up), + residual; one rounding, at the end.
"""

import triton
import triton.language as tl

from .activation import activate


@triton.jit
def weight_rows(column, N: tl.constexpr, BLOCK_N: tl.constexpr, GATED: tl.constexpr):
    """(rows of w of a column of tiles, which of them exist)."""
    lane = tl.arange(0, BLOCK_N)
    if GATED:
        HALF: tl.constexpr = BLOCK_N // 2
        n = column * HALF + lane % HALF
        rows = n + lane // HALF * N
    else:
        n = column * BLOCK_N + lane
        rows = n
    return rows, n < N


@triton.jit
def halves(acc, M: tl.constexpr, N: tl.constexpr):
    """The left and the right half of a tile [M, N]."""
    return tl.split(tl.permute(tl.reshape(acc, (M, 2, N // 2)), (0, 2, 1)))


@triton.jit
def scale_and_shift(acc, scale, bias, w_rows, exists):
    """acc * scale + bias, both by rows of w."""
    if scale is not None:
        acc *= tl.load(scale + w_rows, mask=exists, other=0.0)[None, :]
    if bias is not None:
        acc += tl.load(bias + w_rows, mask=exists, other=0.0).to(tl.float32)[None, :]
    return acc


@triton.jit
def finish(
    acc, up, scale, bias, residual, y, m, first, rows,
    N: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr, OUTPUTS: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """From sums to y, at rows m and OUTPUTS columns from first; up: where GATED, the up half.

    TILE: outputs of the whole tile; where it divides N, all columns of all tiles exist.
    """
    n = first + tl.arange(0, OUTPUTS)
    exists = n < N
    out = activate(scale_and_shift(acc, scale, bias, n, exists), ACT)
    if GATED:
        out *= scale_and_shift(up, scale, bias, N + n, exists)
    at = m.to(tl.int64)[:, None] * N + n[None, :]
    inside = (m < rows)[:, None]
    if N % TILE != 0:
        inside = inside & exists[None, :]
    if residual is not None:
        out += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + at, out.to(y.dtype.element_ty), mask=inside)


@triton.jit
def finish_columns(
    acc, scale, bias, residual, y, m, first, rows,
    N: tl.constexpr, ACT: tl.constexpr, BLOCK_M: tl.constexpr, WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """WIDTH columns from first; wide f32 outputs in halves, to take less shared memory."""
    if y.dtype.element_ty == tl.float32 and BLOCK_M * WIDTH > 64 * 128:
        left, right = halves(acc, BLOCK_M, WIDTH)
        finish_columns(
            left, scale, bias, residual, y, m, first, rows, N, ACT, BLOCK_M, WIDTH // 2, TILE
        )  # fmt: skip
        finish_columns(
            right, scale, bias, residual, y, m, first + WIDTH // 2, rows,
            N, ACT, BLOCK_M, WIDTH // 2, TILE,
        )  # fmt: skip
    else:
        finish(
            acc, acc, scale, bias, residual, y, m, first, rows, N, ACT, False, WIDTH, TILE
        )  # fmt: skip


@triton.jit
def finish_tile(
    acc, scale, bias, residual, y, row, column, rows,
    N: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The whole tile at (row, column), counted in tiles."""
    m = row * BLOCK_M + tl.arange(0, BLOCK_M)
    if GATED:
        HALF: tl.constexpr = BLOCK_N // 2
        gate, up = halves(acc, BLOCK_M, BLOCK_N)
        finish(
            gate, up, scale, bias, residual, y, m, column * HALF, rows, N, ACT, True, HALF, HALF
        )  # fmt: skip
    else:
        finish_columns(
            acc, scale, bias, residual, y, m, column * BLOCK_N, rows, N, ACT, BLOCK_M, BLOCK_N,
            BLOCK_N,
        )  # fmt: skip

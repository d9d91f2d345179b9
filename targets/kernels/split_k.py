"""Products of some rows by loads of plain pointers: y[M, N] = epilogue(x[M, K] @ W[N, K]^T).

For 5 to 64 rows (bound by reading W) on any chip, and for all larger products on chips without
tensor maps. The work over K is split so that all programs read the same number of bytes, and the
parts of a tile are added in the same launch: `tile_schedule.py`.

Layouts
  x         bf16 or f16 [M, K], rows contiguous
  w         the same type [N, K] row-major; GATED: [2N, K], N gate rows, then N up rows
  bias      [rows of w] or None; residual [M, N] or None (may alias y); y bf16 or f32 [M, N]
  partials, locks: `tile_schedule.py`; both are untouched (may be any pointer) where STREAM is 0
  Arguments that are None are given as constants and are no parameters of the compiled kernel.
Grid: (PROGRAMS, 1, 1); PROGRAMS a multiple of the number of SMs that fits on them.
Limits: any M, N, K; blocks powers of two, BLOCK_M, BLOCK_N >= 16, BLOCK_K >= 16; K % 8 == 0 for
  loads of 16 bytes. GROUP_M 0 where M <= BLOCK_M always, else row tiles of a group.
Shared memory: num_stages * (BLOCK_M + BLOCK_N) * BLOCK_K * 2 bytes, or the f32 tile if larger.
SWAP: the tile is computed as W @ x^T: the tensor cores of sm_90 work on 64 rows at least, and here
  W has them. Use where BLOCK_M < 64 and BLOCK_N >= 64.
Numerics: bf16 products summed in f32 by the tensor cores, steps of BLOCK_K in ascending order, the
  parts of a tile added in ascending order: the same bits in every run.
PDL: as in `gemv.py`; the wait comes first.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .epilogue import finish_tile, weight_rows
from .tile_schedule import finish_part, following, plan, streamed_tiles, tile_at


@triton.jit
def load_columns(p, r, exists, k, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Rows r and any columns k of a row-major matrix; zero outside. BLOCK_K: of all such tiles."""
    pointers = p + r.to(tl.int64)[:, None] * K + k[None, :]
    mask = exists[:, None]
    if K % BLOCK_K != 0:
        mask = mask & (k < K)[None, :]
    return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def load_tile(p, r, exists, k0, K: tl.constexpr, BLOCK_K: tl.constexpr, ALL: tl.constexpr):
    """Rows r and BLOCK_K columns from k0 of a row-major matrix; zero outside."""
    k = tl.arange(0, BLOCK_K)
    pointers = p + k0 + r.to(tl.int64)[:, None] * K + k[None, :]
    if K % BLOCK_K != 0:
        tile = tl.load(pointers, mask=exists[:, None] & (k0 + k < K)[None, :], other=0.0)
    elif ALL:
        tile = tl.load(pointers)
    else:
        tile = tl.load(pointers, mask=exists[:, None], other=0.0)
    return tile


@triton.jit
def linear(
    x, w, bias, residual, y, partials, locks, rows,
    K: tl.constexpr, N: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PROGRAMS: tl.constexpr, STREAM: tl.constexpr, SWAP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y = act(x @ W^T + bias) + residual, or act(gate) * up + residual."""
    OUTPUTS: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    STEPS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    column_tiles = (N + OUTPUTS - 1) // OUTPUTS
    row_tiles = 1 if GROUP_M == 0 else tl.cdiv(rows, BLOCK_M)
    tiles = row_tiles * column_tiles
    program = tl.program_id(0)
    streamed = streamed_tiles(tiles, PROGRAMS, STREAM)
    tile, step, share, total = plan(program, tiles, STEPS, PROGRAMS, STREAM)
    begin = step
    acc = tl.zeros((BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N), tl.float32)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    for done in range(1, total + 1):
        row, column = tile_at(tile, row_tiles, column_tiles, GROUP_M)
        m = row * BLOCK_M + tl.arange(0, BLOCK_M)
        n, exists = weight_rows(column, N, BLOCK_N, GATED)
        xs = load_tile(x, m, m < rows, step * BLOCK_K, K, BLOCK_K, False)
        ws = load_tile(w, n, exists, step * BLOCK_K, K, BLOCK_K, N % OUTPUTS == 0)
        if SWAP:
            acc = tl.dot(ws, xs.T, acc)
        else:
            acc = tl.dot(xs, ws.T, acc)
        last = (step == STEPS - 1) | (done == share)
        if last:
            out = acc.T if SWAP else acc
            if STREAM and (done <= share) & ((begin > 0) | (step < STEPS - 1)):
                finish_part(
                    out, None, bias, residual, y, partials, locks, program, tile, begin,
                    streamed * STEPS, row, column, rows,
                    N, ACT, GATED, BLOCK_M, BLOCK_N, STEPS, PROGRAMS,
                )  # fmt: skip
            else:
                finish_tile(
                    out, None, bias, residual, y, row, column, rows,
                    N, ACT, GATED, BLOCK_M, BLOCK_N,
                )  # fmt: skip
            acc = tl.zeros((BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N), tl.float32)
        # selections, no branch: loads of later steps must not depend on this step's product
        after = following(tile, done, share, streamed, program, PROGRAMS, STREAM)
        tile = tl.where(last, after, tile)
        step = tl.where(last, 0, step + 1)
        begin = tl.where(last, 0, begin)

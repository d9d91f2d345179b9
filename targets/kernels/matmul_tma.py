"""Products by tensor maps (TMA, sm_90 and later): y[M, N] = epilogue(x[M, K] @ W[N, K]^T).

For more than 64 rows, bound by arithmetic or by L2. The programs are persistent; the last round of
tiles, or all tiles where they are few, is split over K (`tile_schedule.py`), so that M of 65 to 512
fills the chip.

Layouts
  x         bf16 or f16 [M, K], rows contiguous; w the same type [N, K] row-major; GATED: [2N, K],
            N gate rows, then N up rows: a tile reads BLOCK_N / 2 rows of both through one map of
            w as [2, N, K], so no packing is asked for
  MAPS 0    x and w are pointers and the maps are made by each program (needs global scratch);
  MAPS 1    x and w are tensor maps made by the host: boxes [BLOCK_M, BLOCK_K], and
            [BLOCK_N, BLOCK_K] or (GATED) [2, BLOCK_N / 2, BLOCK_K]
  bias      [rows of w] or None; residual [M, N] or None (may alias y); y bf16 or f32 [M, N]
  partials, locks: `tile_schedule.py`; both are untouched (may be any pointer) where STREAM is 0
  Arguments that are None are given as constants and are no parameters of the compiled kernel.
Grid: (PROGRAMS, 1, 1); PROGRAMS a multiple of the number of SMs that fits on them.
Limits: any M and N; K % 8 == 0 and all bases at 16 bytes (rules of tensor maps); blocks powers of
  two, BLOCK_M >= 64, or SWAP with BLOCK_N >= 64 and BLOCK_M >= 16. GROUP_M as in `split_k.py`.
Shared memory: num_stages * (BLOCK_M + BLOCK_N) * BLOCK_K * 2 bytes and the tile's change of layout.
SWAP, numerics, PDL: as in `split_k.py`.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .epilogue import finish_tile
from .tile_schedule import finish_part, following, plan, streamed_tiles, tile_at


@triton.jit
def map_x(x, rows, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):
    return tl.make_tensor_descriptor(x, [rows, K], [K, 1], [BLOCK_M, BLOCK_K])


@triton.jit
def map_w(
    w, K: tl.constexpr, N: tl.constexpr, GATED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    if GATED:
        HALF: tl.constexpr = BLOCK_N // 2
        made = tl.make_tensor_descriptor(w, [2, N, K], [N * K, K, 1], [2, HALF, BLOCK_K])
    else:
        made = tl.make_tensor_descriptor(w, [N, K], [K, 1], [BLOCK_N, BLOCK_K])
    return made


@triton.jit
def load_w(
    w_map, column, k, GATED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """[BLOCK_N, BLOCK_K] of w; GATED: gate rows above up rows."""
    if GATED:
        both = w_map.load([0, column * (BLOCK_N // 2), k])
        tile = tl.reshape(both, (BLOCK_N, BLOCK_K))
    else:
        tile = w_map.load([column * BLOCK_N, k])
    return tile


@triton.jit
def linear(
    x, w, bias, residual, y, partials, locks, rows,
    K: tl.constexpr, N: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PROGRAMS: tl.constexpr, STREAM: tl.constexpr, SWAP: tl.constexpr, MAPS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """y = act(x @ W^T + bias) + residual, or act(gate) * up + residual."""
    OUTPUTS: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    STEPS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    x_map = x if MAPS else map_x(x, rows, K, BLOCK_M, BLOCK_K)
    w_map = w if MAPS else map_w(w, K, N, GATED, BLOCK_N, BLOCK_K)
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
        xs = x_map.load([row * BLOCK_M, step * BLOCK_K])
        ws = load_w(w_map, column, step * BLOCK_K, GATED, BLOCK_N, BLOCK_K)
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

"""Products by one program for each tile, or for each part of a tile's sum over K:
y[M, N] = epilogue(x[M, K] @ W[N, K]^T).

One plain loop over K, nothing else beside it: the compiler keeps all stages of it in flight, and
what limits these products on sm_90 is bytes in flight. For launches whose tiles fit the chip at
once: 2 to 512 rows, and small weights. Larger ones: `matmul_tiles.py`.

Layouts
  x, w, bias, residual, y as in `matmul_tma.py`
  x_scale, w_scale, w_zero, and w of other types: `weight_forms.py`; "i4" only with MAPS 2
  MAPS 0    x and w are pointers, tiles are loaded through tensor maps that each program makes
            (needs global scratch); MAPS 1: x and w are tensor maps made by the host, boxes as
            there; MAPS 2: loads of pointers, on any chip
  partials  f32 [tiles * SPLITS, BLOCK_M * BLOCK_N], needs no initial values
  locks     i32 [tiles], zero before the first launch, every launch leaves them zero
            both are untouched where SPLITS is 1
  Arguments that are None are given as constants and are no parameters of the compiled kernel.
Grid: (cdiv(M, BLOCK_M) * cdiv(N, outputs of a tile) * SPLITS, 1, 1); the parts of a tile, then the
  tiles of a column (or of a group of GROUP_M), follow one another.
Limits: any M and N; MAPS 0 and 1 ask for K % 8 == 0 and bases at 16 bytes; blocks powers of two,
  BLOCK_N, BLOCK_K >= 16 (e4m3 each: 32), BLOCK_M >= 16. GROUP_M 0 where M <= BLOCK_M always.
  SPLITS <= K / BLOCK_K; BLOCK_K divides GROUP; K % 32 == 0 of "i4".
Shared memory: num_stages * (BLOCK_M + BLOCK_N) * BLOCK_K * 2 bytes; the tile's change of layout
  takes the place of the stages.
SWAP: as in `split_k.py`. Numerics: bf16 products summed in f32 by the tensor cores, k ascending;
  parts are added in ascending order: the same bits in every run.
PDL: 1: waits before the first load of x; AHEAD: 1: reads the part's first step of w (MAPS 2 alone)
  to registers before it waits, and multiplies it last.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .epilogue import finish_tile, weight_rows
from .matmul_tma import load_w, map_w, map_x
from .split_k import load_columns, load_tile
from .tile_schedule import finish_split, tile_at
from .weight_forms import add_group, low_columns, scaled


@triton.jit
def load_x(x, m, rows, k, K: tl.constexpr, BLOCK_K: tl.constexpr, FORM: tl.constexpr):
    """Rows m and BLOCK_K columns from k; of "i4" those of the low and of the high numbers."""
    if FORM == "i4":
        columns = k + low_columns(tl.arange(0, BLOCK_K // 2))
        low = load_columns(x, m, m < rows, columns, K, BLOCK_K)
        xs = (low, load_columns(x, m, m < rows, columns + 16, K, BLOCK_K))
    else:
        xs = load_tile(x, m, m < rows, k, K, BLOCK_K, False)
    return xs


@triton.jit
def residual_tile(residual, m, n, rows, exists, N: tl.constexpr, SWAP: tl.constexpr):
    """What is added to a tile, in f32."""
    if SWAP:
        at = n[:, None] + m.to(tl.int64)[None, :] * N
        inside = exists[:, None] & (m < rows)[None, :]
    else:
        at = m.to(tl.int64)[:, None] * N + n[None, :]
        inside = (m < rows)[:, None] & exists[None, :]
    return tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def leave_tile(
    acc, x_scale, w_scale, bias, residual, y, partials, locks, tile, part, row, column, m, n,
    exists, rows,
    N: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    """Scales, then the tile or its part."""
    acc = scaled(acc, x_scale, w_scale, m, rows, n, exists, GROUP, SWAP)
    if SPLITS > 1:
        finish_split(
            acc, None, bias, residual, y, partials, locks, tile, part, row,
            column, rows, N, ACT, GATED, BLOCK_M, BLOCK_N, SPLITS, SWAP,
        )  # fmt: skip
    else:
        finish_tile(
            acc.T if SWAP else acc, None, bias, residual, y, row, column, rows,
            N, ACT, GATED, BLOCK_M, BLOCK_N,
        )  # fmt: skip


@triton.jit
def linear(
    x, w, x_scale, w_scale, w_zero, bias, residual, y, partials, locks, rows,
    K: tl.constexpr, N: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr,
    FORM: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLITS: tl.constexpr, SWAP: tl.constexpr, MAPS: tl.constexpr, AHEAD: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """y = act(x @ W^T + bias) + residual, or act(gate) * up + residual."""
    OUTPUTS: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    STEPS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    WIDTH: tl.constexpr = BLOCK_K // 2 if FORM == "i4" else BLOCK_K  # elements of w in a step
    W_ROW: tl.constexpr = K // 2 if FORM == "i4" else K
    tl.static_assert(GROUP % BLOCK_K == 0)
    x_map = map_x(x, rows, K, BLOCK_M, BLOCK_K) if MAPS == 0 else x
    w_map = map_w(w, K, N, GATED, BLOCK_N, BLOCK_K) if MAPS == 0 else w
    tile, part = tl.program_id(0) // SPLITS, tl.program_id(0) % SPLITS
    row_tiles = 1 if GROUP_M == 0 else tl.cdiv(rows, BLOCK_M)
    row, column = tile_at(tile, row_tiles, (N + OUTPUTS - 1) // OUTPUTS, GROUP_M)
    begin, end = part * STEPS // SPLITS, (part + 1) * STEPS // SPLITS
    m = row * BLOCK_M + tl.arange(0, BLOCK_M)
    n, exists = weight_rows(column, N, BLOCK_N, GATED)
    ALL: tl.constexpr = N % OUTPUTS == 0
    if AHEAD:
        tl.static_assert(MAPS == 2)
        first_ws = load_tile(w, n, exists, begin * WIDTH, W_ROW, WIDTH, ALL)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    FIRST: tl.constexpr = (
        residual is not None and ACT == "none" and not GATED and w_scale is None
        and x_scale is None and BLOCK_M * BLOCK_N <= 64 * 64
    )  # fmt: skip
    acc = tl.zeros((BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N), tl.float32)
    # A small tile's sum starts with the residual, since nothing hides its loads at the end; a large
    # one would take it in through shared memory, and lose the loads of x and w in flight.
    if FIRST:
        acc = residual_tile(residual, m, n, tl.where(part == 0, rows, 0), exists, N, SWAP)
    if AHEAD:
        first_xs = load_x(x, m, rows, begin * BLOCK_K, K, BLOCK_K, FORM)
    for step in range(begin + AHEAD, end):
        if MAPS == 2:
            xs = load_x(x, m, rows, step * BLOCK_K, K, BLOCK_K, FORM)
            ws = load_tile(w, n, exists, step * WIDTH, W_ROW, WIDTH, ALL)
        else:
            xs = x_map.load([row * BLOCK_M, step * BLOCK_K])
            ws = load_w(w_map, column, step * BLOCK_K, GATED, BLOCK_N, BLOCK_K)
        acc = add_group(
            xs, ws, acc, w_scale, w_zero, n, exists, step * BLOCK_K, K, FORM, GROUP, SWAP
        )
    if AHEAD:
        acc = add_group(
            first_xs, first_ws, acc, w_scale, w_zero, n, exists, begin * BLOCK_K, K, FORM, GROUP,
            SWAP,
        )  # fmt: skip
    leave_tile(
        acc, x_scale, w_scale, bias, None if FIRST else residual, y, partials, locks, tile, part,
        row, column, m, n, exists, rows, N, ACT, GATED, GROUP, BLOCK_M, BLOCK_N, SPLITS, SWAP,
    )  # fmt: skip

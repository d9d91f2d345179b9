"""Products by tensor maps (TMA, sm_90 and later), tiles of BLOCK_N + EXTRA columns:
y[M, N] = epilogue(x[M, K] @ W[N, K]^T).

Blocks of Triton are powers of two, and seldom divide a weight into as many tiles as there are
multiprocessors: 6,144 outputs are 48 tiles of 128 columns, or 24 of 256, and with 512 rows 132
programs have 192 or 96 of them to do. Of 192 columns they have 128. A step over K multiplies x by
two blocks of W. Four warps of 128 x 192 sums each keep the tensor cores busier than eight of
128 x 256: one group of them issues all products of a step.

Layouts: as in `matmul_tma.py`, without partials and locks. A gated tile has (BLOCK_N + EXTRA) / 2
  outputs: those of the first block, then those of the second.
Grid: (PROGRAMS, 1, 1): the number of SMs, programs are persistent. PROGRAMS 0: one program for
  each tile, for launches whose tiles fit the chip at once.
Limits: any M and N; K % 8 == 0 and all bases at 16 bytes (rules of tensor maps); blocks and EXTRA
  powers of two, BLOCK_M >= 64, EXTRA >= 16. GROUP_M as in `split_k.py`.
Shared memory: num_stages * (BLOCK_M + BLOCK_N + EXTRA) * BLOCK_K * 2 bytes; the tile's change of
  layout takes the place of the stages.
Numerics: bf16 products summed in f32 by the tensor cores, k ascending. PDL: as in `gemv.py`; the
  wait comes first.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .epilogue import finish, finish_columns, halves
from .matmul_tma import map_w, map_x
from .tile_schedule import tile_at


@triton.jit
def load_from(
    w_map, first, k, GATED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """[BLOCK_N, BLOCK_K] of w from an output on; GATED: gate rows above up rows."""
    if GATED:
        tile = tl.reshape(w_map.load([0, first, k]), (BLOCK_N, BLOCK_K))
    else:
        tile = w_map.load([first, k])
    return tile


@triton.jit
def finish_block(
    acc, bias, residual, y, m, first, rows,
    N: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """One block's outputs, of a tile of OUTPUTS."""
    if GATED:
        gate, up = halves(acc, BLOCK_M, BLOCK_N)
        finish(
            gate, up, None, bias, residual, y, m, first, rows,
            N, ACT, True, BLOCK_N // 2, OUTPUTS,
        )  # fmt: skip
    else:
        finish_columns(
            acc, None, bias, residual, y, m, first, rows, N, ACT, BLOCK_M, BLOCK_N, OUTPUTS
        )  # fmt: skip


@triton.jit
def whole_tile(
    x_map, left_map, right_map, bias, residual, y, tile, row_tiles, columns, rows,
    K: tl.constexpr, N: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EXTRA: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):  # fmt: skip
    """All of one tile."""
    HALVES: tl.constexpr = 2 if GATED else 1
    OUTPUTS: tl.constexpr = (BLOCK_N + EXTRA) // HALVES
    row, column = tile_at(tile, row_tiles, columns, GROUP_M)
    first = column * OUTPUTS
    second = first + BLOCK_N // HALVES
    left = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    right = tl.zeros((BLOCK_M, EXTRA), tl.float32)
    for step in range((K + BLOCK_K - 1) // BLOCK_K):
        k = step * BLOCK_K
        xs = x_map.load([row * BLOCK_M, k])
        lefts = load_from(left_map, first, k, GATED, BLOCK_N, BLOCK_K)
        rights = load_from(right_map, second, k, GATED, EXTRA, BLOCK_K)
        left = tl.dot(xs, lefts.T, left)
        right = tl.dot(xs, rights.T, right)
    m = row * BLOCK_M + tl.arange(0, BLOCK_M)
    finish_block(
        left, bias, residual, y, m, first, rows, N, ACT, GATED, BLOCK_M, BLOCK_N, OUTPUTS
    )  # fmt: skip
    finish_block(
        right, bias, residual, y, m, second, rows, N, ACT, GATED, BLOCK_M, EXTRA, OUTPUTS
    )  # fmt: skip


@triton.jit
def linear(
    x, w, bias, residual, y, rows,
    K: tl.constexpr, N: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EXTRA: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, PROGRAMS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y = act(x @ W^T + bias) + residual, or act(gate) * up + residual."""
    OUTPUTS: tl.constexpr = (BLOCK_N + EXTRA) // 2 if GATED else BLOCK_N + EXTRA
    x_map = map_x(x, rows, K, BLOCK_M, BLOCK_K)
    left_map = map_w(w, K, N, GATED, BLOCK_N, BLOCK_K)
    right_map = map_w(w, K, N, GATED, EXTRA, BLOCK_K)
    columns = (N + OUTPUTS - 1) // OUTPUTS
    row_tiles = 1 if GROUP_M == 0 else tl.cdiv(rows, BLOCK_M)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    if PROGRAMS == 0:
        whole_tile(
            x_map, left_map, right_map, bias, residual, y, tl.program_id(0), row_tiles, columns,
            rows, K, N, ACT, GATED, BLOCK_M, BLOCK_N, EXTRA, BLOCK_K, GROUP_M,
        )  # fmt: skip
    else:
        for tile in range(tl.program_id(0), row_tiles * columns, PROGRAMS):
            whole_tile(
                x_map, left_map, right_map, bias, residual, y, tile, row_tiles, columns, rows,
                K, N, ACT, GATED, BLOCK_M, BLOCK_N, EXTRA, BLOCK_K, GROUP_M,
            )  # fmt: skip

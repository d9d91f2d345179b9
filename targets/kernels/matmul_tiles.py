"""Products of many rows by tensor maps (TMA, sm_90 and later), whole tiles:
y[M, N] = epilogue(x[M, K] @ W[N, K]^T).

For 256 rows and more, bound by arithmetic: persistent programs take tile after tile, each with one
plain loop over K, which the compiler keeps in flight better than `matmul_tma.py`'s single loop over
the steps of all tiles. Fewer rows: `matmul_parts.py`.

The last round seldom has a tile for every program. 14,336 pairs of outputs of 512 rows are 448
tiles of 128 x 256: three rounds of 132, and 52 more that take as long as a round. In halves they
are 104, for as many programs, and take half as long.

Layouts: as in `matmul_tma.py`, without partials and locks; x_scale, w_scale, w_zero, and w of
  other types than "i4": `weight_forms.py`.
Grid: (PROGRAMS, 1, 1): the number of SMs, times the programs that fit on one.
Limits: any M and N; K % 8 == 0 (of bytes: 16) and all bases at 16 bytes (rules of tensor maps);
  blocks powers of two, BLOCK_M >= 64; BLOCK_K divides GROUP. GROUP_M as in `split_k.py`.
REST: 1: tiles beyond the last whole round are computed in halves of their columns, where those
  make no second round (2 * rest <= PROGRAMS). BLOCK_N / 2 >= 32 then, and MAPS 0.
FLAT: 1: the loads of a tile's first steps start while the tile before is stored; without effect
  where there is a residual: its loads would keep the compiler from keeping any in flight.
Shared memory: num_stages * (BLOCK_M + BLOCK_N) * BLOCK_K * 2 bytes; FLAT: and the change of layout.
Numerics: bf16 products summed in f32 by the tensor cores, k ascending; where there is no activation
  and no scale the sum starts with the residual, so that its loads are over before the products.
  PDL: as in `gemv.py`; the wait comes first.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .epilogue import finish_tile, weight_rows
from .matmul_tma import load_w, map_w, map_x
from .tile_schedule import tile_at
from .weight_forms import add_group, scaled


@triton.jit
def first_sums(
    residual, row, column, rows, N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """The residual's tile in f32, or zeros."""
    if residual is None:
        sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    else:
        m = row * BLOCK_M + tl.arange(0, BLOCK_M)
        n = column * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = (m < rows)[:, None]
        if N % BLOCK_N != 0:
            inside = inside & (n < N)[None, :]
        at = m.to(tl.int64)[:, None] * N + n[None, :]
        sums = tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    return sums


@triton.jit
def one_tile(
    x_map, w_map, x_scale, w_scale, w_zero, bias, residual, y, row, column, rows,
    K: tl.constexpr, N: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr,
    FORM: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """All of the tile at (row, column), counted in tiles."""
    FIRST: tl.constexpr = ACT == "none" and not GATED and w_scale is None
    m = row * BLOCK_M + tl.arange(0, BLOCK_M)
    n, exists = weight_rows(column, N, BLOCK_N, GATED)
    acc = first_sums(residual if FIRST else None, row, column, rows, N, BLOCK_M, BLOCK_N)
    for step in range((K + BLOCK_K - 1) // BLOCK_K):
        xs = x_map.load([row * BLOCK_M, step * BLOCK_K])
        ws = load_w(w_map, column, step * BLOCK_K, GATED, BLOCK_N, BLOCK_K)
        acc = add_group(
            xs, ws, acc, w_scale, w_zero, n, exists, step * BLOCK_K, K, FORM, GROUP, False
        )
    acc = scaled(acc, x_scale, w_scale, m, rows, n, exists, GROUP, False)
    finish_tile(
        acc, None, bias, None if FIRST else residual, y, row, column, rows,
        N, ACT, GATED, BLOCK_M, BLOCK_N,
    )  # fmt: skip


@triton.jit
def linear(
    x, w, x_scale, w_scale, w_zero, bias, residual, y, rows,
    K: tl.constexpr, N: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr,
    FORM: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PROGRAMS: tl.constexpr, FLAT: tl.constexpr, REST: tl.constexpr, MAPS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """y = act(x @ W^T + bias) + residual, or act(gate) * up + residual."""
    OUTPUTS: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    FUSED: tl.constexpr = FLAT == 1 and residual is None
    x_map = x if MAPS else map_x(x, rows, K, BLOCK_M, BLOCK_K)
    w_map = w if MAPS else map_w(w, K, N, GATED, BLOCK_N, BLOCK_K)
    column_tiles = (N + OUTPUTS - 1) // OUTPUTS
    row_tiles = 1 if GROUP_M == 0 else tl.cdiv(rows, BLOCK_M)
    tiles = row_tiles * column_tiles
    rest = 0
    if REST:
        tl.static_assert(not MAPS)
        half_map = map_w(w, K, N, GATED, BLOCK_N // 2, BLOCK_K)
        rest = tiles % PROGRAMS
        rest = tl.where(2 * rest <= PROGRAMS, rest, 0)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    program = tl.program_id(0)
    for tile in tl.range(program, tiles - rest, PROGRAMS, flatten=FUSED):
        row, column = tile_at(tile, row_tiles, column_tiles, GROUP_M)
        one_tile(
            x_map, w_map, x_scale, w_scale, w_zero, bias, residual, y, row, column, rows,
            K, N, ACT, GATED, FORM, GROUP, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    if REST:  # noqa: SIM102, Triton leaves the rest out by this alone
        if program < 2 * rest:
            tile = tiles - rest + program % rest
            row, column = tile_at(tile, row_tiles, column_tiles, GROUP_M)
            one_tile(
                x_map, half_map, x_scale, w_scale, w_zero, bias, residual, y, row,
                2 * column + program // rest, rows,
                K, N, ACT, GATED, FORM, GROUP, BLOCK_M, BLOCK_N // 2, BLOCK_K,
            )  # fmt: skip

"""Which program computes which steps of which tile of a product [M, N] over K; inlined, no kernel.

A launch has PROGRAMS programs, whatever the size: they are few and stay (persistent). The product
has cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N) tiles of STEPS = cdiv(K, BLOCK_K) steps.
  STREAM 0: program p computes tiles p, p + PROGRAMS, ...
  STREAM 1: when the tiles do not divide evenly, the last of them (one whole round and the rest, or
  all when there are less than PROGRAMS) are streamed: their steps, counted through, are cut into
  PROGRAMS equal shares. A share may end or begin inside a tile; then each of the tile's programs
  leaves its part in `partials`, takes a ticket from `locks`, and the one that comes last adds all
  parts in ascending order of k and goes on as if the tile were its own. The cut depends on M, N, K
  and the tile sizes alone, so equal shapes give equal bits; nobody ever waits for another program.

partials  f32 [2 * PROGRAMS, BLOCK_M * BLOCK_N]; needs no initial values
locks     i32 [2 * PROGRAMS], zero before the first launch; every launch leaves them zero
Order of tiles: groups of GROUP_M row tiles run over all column tiles, so that programs of the same
time read the same rows of x and w from L2.
"""

import triton
import triton.language as tl

from .epilogue import finish, finish_tile, halves


@triton.jit
def tile_at(tile, row_tiles, column_tiles, GROUP_M: tl.constexpr):
    """Row and column of a tile by its number."""
    if GROUP_M == 0:  # one row of tiles only
        row = 0
        column = tile
    else:
        per_group = GROUP_M * column_tiles
        first = tile // per_group * GROUP_M
        height = tl.minimum(row_tiles - first, GROUP_M)
        inner = tile % per_group
        row = first + inner % height
        column = inner // height
    return row, column


@triton.jit
def streamed_tiles(tiles, PROGRAMS: tl.constexpr, STREAM: tl.constexpr):
    """How many tiles, counted from 0, are cut into shares; the others are computed whole."""
    if STREAM:
        whole = tl.maximum(tiles // PROGRAMS - 1, 0) * PROGRAMS
        streamed = tl.where(tiles % PROGRAMS == 0, 0, tiles - whole)
    else:
        streamed = 0
    return streamed


@triton.jit
def share_start(program, total, PROGRAMS: tl.constexpr):
    """First streamed step of a program; beyond the last program, the end."""
    sharing = tl.minimum(PROGRAMS, tl.maximum(total, 1))
    return tl.minimum(program, sharing) * total // sharing


@triton.jit
def sharer_of(step, total, PROGRAMS: tl.constexpr):
    """The program whose share holds a streamed step: the inverse of `share_start`."""
    sharing = tl.minimum(PROGRAMS, total)
    return ((step + 1) * sharing - 1) // total


@triton.jit
def plan(program, tiles, STEPS: tl.constexpr, PROGRAMS: tl.constexpr, STREAM: tl.constexpr):
    """(first tile, step in it, steps of the streamed share, steps in all) of a program."""
    streamed = streamed_tiles(tiles, PROGRAMS, STREAM)
    start = share_start(program, streamed * STEPS, PROGRAMS)
    share = share_start(program + 1, streamed * STEPS, PROGRAMS) - start
    own = tl.cdiv(tl.maximum(tiles - streamed - program, 0), PROGRAMS)
    tile = tl.where(share > 0, start // STEPS, streamed + program)
    step = tl.where(share > 0, start % STEPS, 0)
    return tile, step, share, share + own * STEPS


@triton.jit
def following(tile, done, share, streamed, program, PROGRAMS: tl.constexpr, STREAM: tl.constexpr):
    """The tile after `tile` when a program has done `done` steps."""
    after = tile + PROGRAMS
    if STREAM:
        first_own = tl.where(done == share, streamed + program, after)
        after = tl.where(done < share, tile + 1, first_own)
    return after


@triton.jit
def park(acc, partials, column, M: tl.constexpr, N: tl.constexpr, WIDTH: tl.constexpr):
    """Writes columns of a part of a tile, [M, N] f32, row-major with rows of WIDTH."""
    if M * N > 64 * 128:  # in halves: the change of layout takes less shared memory
        left, right = halves(acc, M, N)
        park(left, partials, column, M, N // 2, WIDTH)
        park(right, partials, column + N // 2, M, N // 2, WIDTH)
    else:
        at = tl.arange(0, M)[:, None] * WIDTH + (column + tl.arange(0, N))[None, :]
        tl.store(partials + at, acc, cache_modifier=".cg")


@triton.jit
def sum_parts(
    partials, first, last, row, column,
    SIZE: tl.constexpr, M: tl.constexpr, N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """[M, N] at (row, column) of a tile: the parts of its programs, in ascending order of k."""
    at = (row + tl.arange(0, M))[:, None] * WIDTH + (column + tl.arange(0, N))[None, :]
    total = tl.load(partials + (2 * first + 1) * SIZE + at, cache_modifier=".cg")
    for program in range(first + 1, last + 1):
        total += tl.load(partials + 2 * program * SIZE + at, cache_modifier=".cg")
    return total


@triton.jit
def finish_part(
    acc, scale, bias, residual, y, partials, locks, program, tile, begin, total,
    row, column, rows,
    N: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STEPS: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Leaves one part of a streamed tile; the program that comes last finishes the tile.

    begin: the step of the tile at which this part starts; total: all streamed steps.
    """
    SIZE: tl.constexpr = BLOCK_M * BLOCK_N
    OUTPUTS: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    CHUNK: tl.constexpr = min(BLOCK_M, 16384 // BLOCK_N)  # rows at a time: few registers
    first = sharer_of(tile * STEPS, total, PROGRAMS)
    last = sharer_of(tile * STEPS + STEPS - 1, total, PROGRAMS)
    mine = partials + (2 * program + tl.where(begin == 0, 1, 0)) * SIZE
    park(acc, mine, 0, BLOCK_M, BLOCK_N, BLOCK_N)
    # all threads' parts are written before the ticket is taken: a release after a barrier
    ticket = tl.atomic_add(locks + tile, 1, sem="acq_rel", scope="gpu")
    if ticket == last - first:
        for r in range(0, BLOCK_M, CHUNK):
            out = sum_parts(partials, first, last, r, 0, SIZE, CHUNK, OUTPUTS, BLOCK_N)
            up = out
            if GATED:
                up = sum_parts(partials, first, last, r, OUTPUTS, SIZE, CHUNK, OUTPUTS, BLOCK_N)
            m = row * BLOCK_M + r + tl.arange(0, CHUNK)
            finish(
                out, up, scale, bias, residual, y, m, column * OUTPUTS, rows,
                N, ACT, GATED, OUTPUTS, OUTPUTS,
            )  # fmt: skip
        tl.store(locks + tile, 0)


@triton.jit
def finish_split(
    acc, scale, bias, residual, y, partials, locks, tile, part, row, column, rows,
    N: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    """Leaves one of a tile's SPLITS parts; the program that comes last finishes the tile.

    partials f32 [tiles * SPLITS, BLOCK_M * BLOCK_N]; locks i32 [tiles]. acc: transposed if SWAP.
    """
    SIZE: tl.constexpr = BLOCK_M * BLOCK_N
    R: tl.constexpr = BLOCK_N if SWAP else BLOCK_M
    C: tl.constexpr = BLOCK_M if SWAP else BLOCK_N
    parts = partials + tile * SPLITS * SIZE
    park(acc, parts + part * SIZE, 0, R, C, C)
    ticket = tl.atomic_add(locks + tile, 1, sem="acq_rel", scope="gpu")
    if ticket == SPLITS - 1:
        at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
        if SPLITS == 2:  # a sum of two has no order
            acc += tl.load(parts + (1 - part) * SIZE + at, cache_modifier=".cg")
        else:
            acc = tl.load(parts + at, cache_modifier=".cg")
            for i in range(1, SPLITS):
                acc += tl.load(parts + i * SIZE + at, cache_modifier=".cg")
        finish_tile(
            acc.T if SWAP else acc, scale, bias, residual, y, row, column, rows,
            N, ACT, GATED, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        tl.store(locks + tile, 0)

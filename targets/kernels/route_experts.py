"""Which experts do which tokens, on GPUs: the choice, and the pairs of (token, choice) by expert.

Layouts
  logits   f32 [T, EXPERTS]; ids i32 [T, TOP_K], best first; weights f32 [T, TOP_K]
  order    i32 [pairs]: pairs sorted by expert, those of one expert in ascending order; pair p is
           token p // TOP_K at its choice p % TOP_K
  tiles    i32 [most_tiles, 3]: expert, first place in `order`, and number of places (0: none), at
           most BLOCK_M; the tiles of one expert follow each other
Arguments pairs and most_tiles are i32; most_tiles >= min(pairs, EXPERTS + pairs // BLOCK_M).
Grids: route (T, 1, 1); sort_pairs (EXPERTS, 1, 1), where each program writes what is its expert's.
Limits: BLOCK_E a power of two, for sort_pairs above EXPERTS; BLOCK_J, CHUNK powers of two.
Numerics: softmax in f32; of equal scores the lower expert wins. All else is integers.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def route(
    logits, ids, weights,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, RENORMALIZE: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_J: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The TOP_K likeliest experts of a token, their weights divided by their sum if RENORMALIZE."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    t = tl.program_id(0)
    e = tl.arange(0, BLOCK_E)
    j = tl.arange(0, BLOCK_J)
    x = tl.load(logits + t * EXPERTS + e, mask=e < EXPERTS, other=float("-inf"))
    score = tl.exp(x - tl.max(x, 0))
    score = tl.where(e < EXPERTS, score / tl.sum(score, 0), -1.0)
    chosen = tl.zeros((BLOCK_J,), tl.int32)
    value = tl.zeros((BLOCK_J,), tl.float32)
    for i in tl.static_range(TOP_K):
        best = tl.max(score, 0)
        place = tl.min(tl.where(score == best, e, EXPERTS - 1), 0)  # of NaN the last one
        chosen = tl.where(j == i, place, chosen)
        value = tl.where(j == i, best, value)
        score = tl.where(e == place, -1.0, score)
    if RENORMALIZE:
        value = value / tl.sum(value, 0)
    at = t * TOP_K + j
    tl.store(ids + at, chosen, mask=j < TOP_K)
    tl.store(weights + at, value, mask=j < TOP_K)


@triton.jit
def count_pairs(ids, pairs, EXPERTS: tl.constexpr, BLOCK_E: tl.constexpr, CHUNK: tl.constexpr):
    """i32 [BLOCK_E]: pairs of each expert."""
    counts = tl.zeros((BLOCK_E,), tl.int32)
    for at in range(0, pairs, CHUNK):
        i = at + tl.arange(0, CHUNK)
        counts += tl.histogram(tl.load(ids + i, mask=i < pairs, other=EXPERTS), BLOCK_E)
    return tl.where(tl.arange(0, BLOCK_E) < EXPERTS, counts, 0)


@triton.jit
def sort_pairs(
    ids, order, tiles, pairs, most_tiles,
    EXPERTS: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_M: tl.constexpr, CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    expert = tl.program_id(0)
    e = tl.arange(0, BLOCK_E)
    counts = count_pairs(ids, pairs, EXPERTS, BLOCK_E, CHUNK)
    first = tl.sum(tl.where(e < expert, counts, 0), 0)
    count = tl.sum(tl.where(e == expert, counts, 0), 0)
    needed = (counts + BLOCK_M - 1) // BLOCK_M
    tile = tl.sum(tl.where(e < expert, needed, 0), 0)
    seen = first
    for at in range(0, pairs, CHUNK):
        i = at + tl.arange(0, CHUNK)
        mine = (tl.load(ids + i, mask=i < pairs, other=EXPERTS) == expert).to(tl.int32)
        place = seen + tl.cumsum(mine, 0) - 1
        tl.store(order + place, i, mask=mine == 1)
        seen += tl.sum(mine, 0)
    for done in range(0, count, BLOCK_M):
        record = tiles + 3 * (tile + done // BLOCK_M)
        tl.store(record, expert)
        tl.store(record + 1, first + done)
        tl.store(record + 2, tl.minimum(count - done, BLOCK_M))
    if expert == EXPERTS - 1:
        total = tl.sum(needed, 0)
        for at in range(0, most_tiles, BLOCK_E):
            i = at + e
            tl.store(tiles + 3 * i + 2, tl.zeros_like(i), mask=(i >= total) & (i < most_tiles))

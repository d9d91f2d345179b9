"""Tiles of queries against tiles of keys, shared by the GPU's attention kernels.

The cache of a GPU keeps K and V alike: bf16 [pages, KV_HEADS, PAGE, D], so that a page of one head
is one run of memory. A tile of keys is BLOCK_N = PAGE or 2 * PAGE of them; the numbers of its pages
come as two scalars, so that addresses cost a few integer operations per row.
Scores stay raw (q @ k); a step takes exp2(score * unit - best * unit) by one fma, where unit =
scale * log2(e), or log2(e) after a softcap, which gives scores in natural units.
`best` starts at NEVER, which is finite: NEVER - NEVER is 0. With every weight of a masked key an
exact 0 and every rescale of a tile that a row does not see an exact 1, a row's bits do not depend
on the tiles that it shares with others.
"""

import triton
import triton.language as tl

NEVER = tl.constexpr(-1e30)
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def find_sequence(query_start, tile, seqs, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """The last sequence whose first tile, query_start * GROUP // BLOCK_M + s, is not after `tile`.

    First tiles ascend, so it is a count: one load of 128 numbers in place of a chain of loads.
    """
    count = 0
    for at in range(0, seqs, 128):
        s = at + tl.arange(0, 128)
        first = tl.load(query_start + s, mask=s < seqs, other=0) * GROUP // BLOCK_M + s
        count += tl.sum(((first <= tile) & (s < seqs)).to(tl.int32), 0)
    return tl.maximum(count - 1, 0)


@triton.jit
def page_of(table, index, pages):
    """The physical page at `index` of a row of the page table; page 0 beyond its end."""
    return tl.load(table + index, mask=(index >= 0) & (index < pages), other=0)


@triton.jit
def load_block(
    cache, page0, page1, head, length,
    KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """[BLOCK_N, BLOCK_D] of K or V; with EDGE, zero from the `length`-th key of the block on."""
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    cell = (page0.to(tl.int64) * KV_HEADS + head) * (PAGE * D)
    at = n[:, None] * D + d[None, :]
    if BLOCK_N == PAGE:
        pointers = cache + cell + at
    else:
        tl.static_assert(BLOCK_N == 2 * PAGE)
        # what the second page lies further; by a product, since Triton loses a where's alignment
        step = ((page1 - page0).to(tl.int64) * KV_HEADS - 1) * (PAGE * D)
        pointers = cache + cell + (n // PAGE).to(tl.int64)[:, None] * step + at
    if EDGE:
        inside = (n[:, None] < length) & (d[None, :] < D)
        block = tl.load(pointers, mask=inside, other=0.0)
    elif D == BLOCK_D:
        block = tl.load(pointers)
    else:
        block = tl.load(pointers, mask=d[None, :] < D, other=0.0)
    return block


@triton.jit
def cap_scores(score, scale, SOFTCAP: tl.constexpr):
    """SOFTCAP * tanh(score * scale / SOFTCAP), of error 1e-7 * SOFTCAP; raw scores without one."""
    if SOFTCAP > 0.0:
        power = tl.exp2(score * (scale * (2.0 * LOG2E / SOFTCAP)))
        score = SOFTCAP - (2.0 * SOFTCAP) / (power + 1.0)
    return score


@triton.jit
def exp_unit(scale, SOFTCAP: tl.constexpr):
    """What a score is multiplied by to be an exponent of 2."""
    if SOFTCAP > 0.0:
        unit = scale * 0.0 + LOG2E
    else:
        unit = scale * LOG2E
    return unit


@triton.jit
def visible(key, position, WINDOW: tl.constexpr):
    """[BLOCK_M, BLOCK_N]: the keys that each row sees."""
    seen = key[None, :] <= position[:, None]
    if WINDOW > 0:
        seen = seen & (key[None, :] > position[:, None] - WINDOW)
    return seen


@triton.jit
def start_softmax(sinks, head_of_row, unit, BLOCK_M: tl.constexpr):
    """best and total before any key; a sink is a key with a score and no value."""
    if sinks is None:
        best = tl.full((BLOCK_M,), NEVER, tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
    else:
        best = tl.load(sinks + head_of_row).to(tl.float32) * (LOG2E / unit)
        total = tl.full((BLOCK_M,), 1.0, tl.float32)
    return best, total


@triton.jit
def add_block(score, vs, best, total, acc, unit):
    """One step of the online softmax."""
    new_best = tl.maximum(best, tl.max(score, 1))
    weight = tl.exp2(tl.fma(score, unit, (-new_best * unit)[:, None]))
    shrink = tl.exp2((best - new_best) * unit)
    total = total * shrink + tl.sum(weight, 1)
    acc = tl.dot(weight.to(vs.dtype), vs, acc * shrink[:, None])
    return new_best, total, acc

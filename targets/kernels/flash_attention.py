"""Causal attention of prompts over a paged cache, for GPUs with matrix units.

Layouts (GROUP = query heads per KV head)
  q, y              bf16 [T, KV_HEADS * GROUP, D]
  k_cache, v_cache  bf16 [pages, KV_HEADS, PAGE, D]
  query_start       i32 [S + 1]; seq_lens i32 [S], tokens of the sequence including this step's; the
                    queries of s are flat rows query_start[s] .. query_start[s+1], its last tokens
  page_table        i32 [S, pages] (columns `pages`); sinks float [heads] or None (a constant then)
Arguments seqs = S and pages are i32, scale is f32 above 0.
Grid: (KV_HEADS, T * GROUP // BLOCK_M + S, 1). A program owns BLOCK_M rows of one sequence and one
KV head; a row is (query, head of the group), so a GROUP of any size fills the tile and keys are
read once per group. Sequence s owns the tiles from query_start[s] * GROUP // BLOCK_M + s on. The
last tiles of a prompt see the most keys, so tiles run from the last one to the first.
MIN_QUERIES: sequences with fewer queries in this step are left alone. With 2, a mixed step launches
this kernel and `decode_attention` on the same arguments: each writes its own rows. With 1 this
kernel does all rows, in one order of sums for prompts, chunks and decoding (batch invariance).
Rows of padding (beyond query_start[S]) are not written.
Options: WINDOW (0: none), keys with key <= query - WINDOW are masked; SOFTCAP (0.0: none); PDL:
launched with programmatic dependent launch. LOADS: "pointers", or "maps" (tensor maps made in the
kernel, which need global scratch, sm_90 and BLOCK_N = PAGE). AHEAD: the product of the next block's
scores is issued before the softmax of this one, so that the matrix units work while exponents are
taken.
Limits: BLOCK_M, PAGE powers of two, BLOCK_N = PAGE or 2 * PAGE, BLOCK_D = next power of two of D.
Numerics: products of bf16, sums and softmax in f32; blocks of keys counted from the sequence's
start.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .paged_tile import (
    add_block,
    cap_scores,
    exp_unit,
    find_sequence,
    load_block,
    page_of,
    start_softmax,
    visible,
)


@triton.jit
def fetch(
    source, page0, page1, head, length,
    KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, EDGE: tl.constexpr, LOADS: tl.constexpr,
):  # fmt: skip
    """A block of K or V, from a pointer or a tensor map of rows [pages * KV_HEADS * PAGE, D]."""
    if LOADS == "pointers":
        block = load_block(
            source, page0, page1, head, length, KV_HEADS, D, PAGE, BLOCK_N, BLOCK_D, EDGE
        )
    else:
        tl.static_assert(BLOCK_N == PAGE)
        block = source.load([(page0 * KV_HEADS + head) * PAGE, 0])
        if EDGE:
            inside = tl.arange(0, BLOCK_N)[:, None] < length
            block = tl.where(inside, block, tl.zeros_like(block))
    return block


@triton.jit
def make_source(
    cache, D: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, LOADS: tl.constexpr
):  # fmt: skip
    if LOADS == "pointers":
        source = cache
    else:
        # the number of pages is not known here, and every page number is a real one
        source = tl.make_tensor_descriptor(cache, [2147483647, D], [D, 1], [BLOCK_N, BLOCK_D])
    return source


@triton.jit
def walk(
    qs, keys, values, table, position, length, head, pages, scale, unit, best, total, acc, low,
    high,
    KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    EDGE: tl.constexpr, LOADS: tl.constexpr,
):  # fmt: skip
    """Blocks low .. high of keys; EDGE: some row may not see all of them."""
    PER: tl.constexpr = BLOCK_N // PAGE
    page0 = page_of(table, low * PER, pages)
    page1 = page_of(table, low * PER + 1, pages)
    for block in range(low, high):
        next0 = page_of(table, (block + 1) * PER, pages)
        next1 = page_of(table, (block + 1) * PER + 1, pages)
        left = length - block * BLOCK_N
        ks = fetch(
            keys, page0, page1, head, left,
            KV_HEADS, D, PAGE, BLOCK_N, BLOCK_D, False, LOADS,
        )  # fmt: skip
        score = cap_scores(tl.dot(qs, tl.trans(ks)), scale, SOFTCAP)
        if EDGE:
            key = block * BLOCK_N + tl.arange(0, BLOCK_N)
            score = tl.where(visible(key, position, WINDOW), score, float("-inf"))
        vs = fetch(
            values, page0, page1, head, left,
            KV_HEADS, D, PAGE, BLOCK_N, BLOCK_D, EDGE, LOADS,
        )  # fmt: skip
        best, total, acc = add_block(score, vs, best, total, acc, unit)
        page0, page1 = next0, next1
    return best, total, acc


@triton.jit
def walk_ahead(
    qs, keys, values, table, position, length, head, pages, scale, unit, best, total, acc, raw, low,
    high,
    KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    EDGE: tl.constexpr, LOADS: tl.constexpr,
):  # fmt: skip
    """As `walk`, on scores `raw` of block `low`; gives the scores of block `high` too."""
    PER: tl.constexpr = BLOCK_N // PAGE
    page0 = page_of(table, low * PER, pages)
    page1 = page_of(table, low * PER + 1, pages)
    for block in range(low, high):
        next0 = page_of(table, (block + 1) * PER, pages)
        next1 = page_of(table, (block + 1) * PER + 1, pages)
        left = length - block * BLOCK_N
        ks = fetch(
            keys, next0, next1, head, left,
            KV_HEADS, D, PAGE, BLOCK_N, BLOCK_D, False, LOADS,
        )  # fmt: skip
        following = tl.dot(qs, tl.trans(ks))
        score = cap_scores(raw, scale, SOFTCAP)
        if EDGE:
            key = block * BLOCK_N + tl.arange(0, BLOCK_N)
            score = tl.where(visible(key, position, WINDOW), score, float("-inf"))
        vs = fetch(
            values, page0, page1, head, left,
            KV_HEADS, D, PAGE, BLOCK_N, BLOCK_D, EDGE, LOADS,
        )  # fmt: skip
        best, total, acc = add_block(score, vs, best, total, acc, unit)
        page0, page1, raw = next0, next1, following
    return best, total, acc, raw


@triton.jit
def edges(
    first, last, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Blocks low .. whole .. whole_end .. end: those between are seen by all rows, entirely.

    Rows see keys up to positions first .. last.
    """
    end = last // BLOCK_N + 1
    low = 0
    whole = 0
    whole_end = (first + 1) // BLOCK_N
    if WINDOW > 0:
        low = tl.maximum(first - WINDOW + 1, 0) // BLOCK_N
        whole = tl.maximum(last - WINDOW + BLOCK_N, 0) // BLOCK_N
        whole = tl.minimum(tl.maximum(whole, low), end)
        whole_end = tl.maximum(whole_end, whole)
    return low, whole, whole_end, end


@triton.jit
def walk_all(
    qs, keys, values, table, position, first, last, length, head, pages, scale, unit, best, total,
    acc,
    KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, LOADS: tl.constexpr,
):  # fmt: skip
    """Every block that some row sees: across the window's edge, whole ones, the diagonal."""
    low, whole, whole_end, end = edges(first, last, WINDOW, BLOCK_N)
    if WINDOW > 0:
        best, total, acc = walk(
            qs, keys, values, table, position, length, head, pages, scale, unit,
            best, total, acc, low, whole,
            KV_HEADS, D, PAGE, WINDOW, SOFTCAP, BLOCK_N, BLOCK_D, True, LOADS,
        )  # fmt: skip
    best, total, acc = walk(
        qs, keys, values, table, position, length, head, pages, scale, unit,
        best, total, acc, whole, whole_end,
        KV_HEADS, D, PAGE, WINDOW, SOFTCAP, BLOCK_N, BLOCK_D, False, LOADS,
    )  # fmt: skip
    return walk(
        qs, keys, values, table, position, length, head, pages, scale, unit,
        best, total, acc, whole_end, end,
        KV_HEADS, D, PAGE, WINDOW, SOFTCAP, BLOCK_N, BLOCK_D, True, LOADS,
    )  # fmt: skip


@triton.jit
def walk_all_ahead(
    qs, keys, values, table, position, first, last, length, head, pages, scale, unit, best, total,
    acc,
    KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, LOADS: tl.constexpr,
):  # fmt: skip
    """As `walk_all`, the scores a block ahead."""
    low, whole, whole_end, end = edges(first, last, WINDOW, BLOCK_N)
    page0 = page_of(table, low * (BLOCK_N // PAGE), pages)
    page1 = page_of(table, low * (BLOCK_N // PAGE) + 1, pages)
    ks = fetch(keys, page0, page1, head, length, KV_HEADS, D, PAGE, BLOCK_N, BLOCK_D, False, LOADS)
    raw = tl.dot(qs, tl.trans(ks))
    if WINDOW > 0:
        best, total, acc, raw = walk_ahead(
            qs, keys, values, table, position, length, head, pages, scale, unit,
            best, total, acc, raw, low, whole,
            KV_HEADS, D, PAGE, WINDOW, SOFTCAP, BLOCK_N, BLOCK_D, True, LOADS,
        )  # fmt: skip
    best, total, acc, raw = walk_ahead(
        qs, keys, values, table, position, length, head, pages, scale, unit,
        best, total, acc, raw, whole, whole_end,
        KV_HEADS, D, PAGE, WINDOW, SOFTCAP, BLOCK_N, BLOCK_D, False, LOADS,
    )  # fmt: skip
    best, total, acc, raw = walk_ahead(
        qs, keys, values, table, position, length, head, pages, scale, unit,
        best, total, acc, raw, whole_end, end,
        KV_HEADS, D, PAGE, WINDOW, SOFTCAP, BLOCK_N, BLOCK_D, True, LOADS,
    )  # fmt: skip
    return best, total, acc


@triton.jit
def flash_attention(
    q, k_cache, v_cache, query_start, seq_lens, page_table, sinks, y, seqs, pages, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, MIN_QUERIES: tl.constexpr, LOADS: tl.constexpr, AHEAD: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """y = softmax(scale * q @ k^T, masked) @ v."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    seq = find_sequence(query_start, tile, seqs, GROUP, BLOCK_M)
    start = tl.load(query_start + seq)
    queries = tl.load(query_start + seq + 1) - start
    length = tl.load(seq_lens + seq)
    row0 = (tile - (start * GROUP // BLOCK_M + seq)) * BLOCK_M
    if (queries >= MIN_QUERIES) & (row0 < queries * GROUP):
        row = row0 + tl.arange(0, BLOCK_M)
        first = length - queries + row0 // GROUP
        last = tl.minimum(length - queries + (row0 + BLOCK_M - 1) // GROUP, length - 1)
        position = length - queries + row // GROUP
        d = tl.arange(0, BLOCK_D)
        base = (start.to(tl.int64) * KV_HEADS + head) * (GROUP * D)
        at = row // GROUP * (KV_HEADS * GROUP * D) + row % GROUP * D
        at = at[:, None] + d[None, :]
        inside = (row[:, None] < queries * GROUP) & (d[None, :] < D)
        qs = tl.load(q + base + at, mask=inside, other=0.0)
        unit = exp_unit(scale, SOFTCAP)
        best, total = start_softmax(sinks, head * GROUP + row % GROUP, unit, BLOCK_M)
        acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
        table = page_table + seq.to(tl.int64) * pages
        keys = make_source(k_cache, D, BLOCK_N, BLOCK_D, LOADS)
        values = make_source(v_cache, D, BLOCK_N, BLOCK_D, LOADS)
        if AHEAD:
            best, total, acc = walk_all_ahead(
                qs, keys, values, table, position, first, last, length, head, pages, scale, unit,
                best, total, acc, KV_HEADS, D, PAGE, WINDOW, SOFTCAP, BLOCK_N, BLOCK_D, LOADS,
            )  # fmt: skip
        else:
            best, total, acc = walk_all(
                qs, keys, values, table, position, first, last, length, head, pages, scale, unit,
                best, total, acc, KV_HEADS, D, PAGE, WINDOW, SOFTCAP, BLOCK_N, BLOCK_D, LOADS,
            )  # fmt: skip
        tl.store(y + base + at, (acc / total[:, None]).to(y.dtype.element_ty), mask=inside)

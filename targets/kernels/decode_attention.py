"""Causal attention of sequences with one new token over a paged cache, for GPUs: keys split up.

Layouts (GROUP = query heads per KV head, H = KV_HEADS * GROUP)
  q, y              bf16 [T, H, D]
  k_cache, v_cache  bf16 [pages, KV_HEADS, PAGE, D]
  query_start       i32 [S + 1]; seq_lens i32 [S]; page_table i32 [S, pages] (columns `pages`)
  sinks             float [H] or None (a constant then)
  partials          f32 [S, splits, H, D + 4]: D sums, the best score, the total weight; 2 unused
  counters          i32 [S, KV_HEADS], all 0 before and after; None unless MERGE is "last"
Arguments seqs = S, pages and splits are i32, scale is f32 above 0.
Only sequences with exactly one query in this step are done: their row is query_start[s]. The
others, and rows of padding, are left alone; `flash_attention` with MIN_QUERIES = 2 does the others.
Grid: decode_attention (KV_HEADS, S, Z); combine_attention (H, S, 1) after it, unless MERGE is
"last": then the last program of a sequence and head to finish merges its parts, in their order.
A sequence of `blocks` visible blocks of BLOCK_N keys is cut into parts of
  SPLIT = 0   max(LEAST, cdiv(blocks, splits)) blocks; splits = Z. Programs without a part leave.
  SPLIT > 0   SPLIT blocks, counted from the sequence's start, whatever Z is (batch invariance);
              splits >= cdiv(pages * PAGE, SPLIT * BLOCK_N).
A sequence of one part writes y at once. `splits_for` gives splits that fill a chip.
Options: WINDOW (0: none), SOFTCAP (0.0: none), PDL (programmatic dependent launch).
Limits: BLOCK_M = max(16, next power of two of GROUP); BLOCK_N = PAGE or 2 * PAGE; BLOCK_D = next
power of two of D; BLOCK_S a power of two: parts that are merged at a time.
Numerics: products of bf16, sums and softmax in f32; partial results in f32.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .paged_tile import (
    NEVER,
    add_block,
    cap_scores,
    exp_unit,
    load_block,
    page_of,
    start_softmax,
    visible,
)


def splits_for(kv_heads: int, seqs: int, units: int, waves: int = 2, most: int = 64) -> int:
    """Parts per sequence so that `waves` programs come to each of `units` multiprocessors.

    >>> splits_for(8, 1, 132), splits_for(8, 64, 132), splits_for(8, 256, 132)
    (33, 2, 2)
    """
    return max(2, min(most, waves * units // (kv_heads * seqs)))


@triton.jit
def key_parts(
    length, splits,
    WINDOW: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """First block of the first part, blocks per part, and parts of a sequence."""
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0) // BLOCK_N
    end = (length + BLOCK_N - 1) // BLOCK_N
    if SPLIT > 0:
        per = SPLIT
        first = first // SPLIT * SPLIT
    else:
        per = tl.maximum((end - first + splits - 1) // splits, LEAST)
    return first, per, (end - first + per - 1) // per


@triton.jit
def leave_part(
    y, partials, acc, best, total, row, seq, m, heads, part, parts, splits,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A sequence of one part is done; of others, the part goes to its place."""
    d = tl.arange(0, BLOCK_D)
    inside = (m[:, None] < GROUP) & (d[None, :] < D)
    if parts == 1:
        at = (row.to(tl.int64) * HEADS + heads)[:, None] * D + d[None, :]
        tl.store(y + at, (acc / total[:, None]).to(y.dtype.element_ty), mask=inside)
    else:
        cell = (seq.to(tl.int64) * splits + part) * HEADS
        target = partials + (cell + heads) * (D + 4)
        tl.store(target[:, None] + d[None, :], acc, mask=inside)
        tl.store(target + D, best, mask=m < GROUP)
        tl.store(target + D + 1, total, mask=m < GROUP)


@triton.jit
def attend_part(
    q, k_cache, v_cache, table, sinks, y, partials, row, seq, head, part, first, per, parts, length,
    splits, pages, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One part of one sequence for one KV head."""
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    heads = head * GROUP + m
    inside = (m[:, None] < GROUP) & (d[None, :] < D)
    at = (row.to(tl.int64) * (KV_HEADS * GROUP) + heads)[:, None] * D + d[None, :]
    qs = tl.load(q + at, mask=inside, other=0.0)
    unit = exp_unit(scale, SOFTCAP)
    best, total = start_softmax(sinks, tl.minimum(heads, KV_HEADS * GROUP - 1), unit, BLOCK_M)
    if sinks is not None:
        best = tl.where(part == 0, best, NEVER)
        total = tl.where(part == 0, total, 0.0)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    position = tl.zeros((BLOCK_M,), tl.int32) + (length - 1)
    low = first + part * per
    high = tl.minimum(low + per, (length + BLOCK_N - 1) // BLOCK_N)
    PER: tl.constexpr = BLOCK_N // PAGE
    page0 = page_of(table, low * PER, pages)
    page1 = page_of(table, low * PER + 1, pages)
    for block in range(low, high):
        next0 = page_of(table, (block + 1) * PER, pages)
        next1 = page_of(table, (block + 1) * PER + 1, pages)
        left = length - block * BLOCK_N
        ks = load_block(
            k_cache, page0, page1, head, left, KV_HEADS, D, PAGE, BLOCK_N, BLOCK_D, True
        )
        score = cap_scores(tl.dot(qs, tl.trans(ks)), scale, SOFTCAP)
        key = block * BLOCK_N + tl.arange(0, BLOCK_N)
        score = tl.where(visible(key, position, WINDOW), score, float("-inf"))
        vs = load_block(
            v_cache, page0, page1, head, left, KV_HEADS, D, PAGE, BLOCK_N, BLOCK_D, True
        )
        best, total, acc = add_block(score, vs, best, total, acc, unit)
        page0, page1 = next0, next1
    leave_part(
        y, partials, acc, best, total, row, seq, m, heads, part, parts, splits,
        KV_HEADS * GROUP, GROUP, D, BLOCK_D,
    )  # fmt: skip


@triton.jit
def merge_parts(
    y, partials, row, seq, head, parts, splits, unit,
    HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """The row of one query head from the parts of its sequence, BLOCK_S at a time."""
    d = tl.arange(0, BLOCK_D)
    best = tl.full((), NEVER, tl.float32)
    total = tl.zeros((), tl.float32)
    acc = tl.zeros((BLOCK_D,), tl.float32)
    source = partials + (seq.to(tl.int64) * splits * HEADS + head) * (D + 4)
    for at in range(0, parts, BLOCK_S):
        part = at + tl.arange(0, BLOCK_S)
        one = source + part.to(tl.int64) * (HEADS * (D + 4))
        is_real = part < parts
        inside = is_real[:, None] & (d[None, :] < D)
        sums = tl.load(one[:, None] + d[None, :], mask=inside, other=0.0)
        bests = tl.load(one + D, mask=is_real, other=NEVER)
        totals = tl.load(one + D + 1, mask=is_real, other=0.0)
        new_best = tl.maximum(best, tl.max(bests, 0))
        weight = tl.exp2((bests - new_best) * unit)
        shrink = tl.exp2((best - new_best) * unit)
        acc = acc * shrink + tl.sum(sums * weight[:, None], 0)
        total = total * shrink + tl.sum(totals * weight, 0)
        best = new_best
    target = y + (row.to(tl.int64) * HEADS + head) * D
    tl.store(target + d, (acc / total).to(y.dtype.element_ty), mask=d < D)


@triton.jit
def decode_attention(
    q, k_cache, v_cache, query_start, seq_lens, page_table, sinks, y, partials, counters,
    seqs, pages, splits, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr, SPLIT: tl.constexpr, LEAST: tl.constexpr,
    MERGE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y, or partial results, of softmax(scale * q @ k^T, masked) @ v."""
    tl.static_assert(MERGE == "last" or MERGE == "combine")
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    head = tl.program_id(0)
    seq = tl.program_id(1)
    row = tl.load(query_start + seq)
    queries = tl.load(query_start + seq + 1) - row
    length = tl.load(seq_lens + seq)
    first, per, parts = key_parts(length, splits, WINDOW, BLOCK_N, SPLIT, LEAST)
    parts = tl.where(queries == 1, parts, 0)
    table = page_table + seq.to(tl.int64) * pages
    for part in range(tl.program_id(2), parts, tl.num_programs(2)):
        attend_part(
            q, k_cache, v_cache, table, sinks, y, partials, row, seq, head, part, first, per, parts,
            length, splits, pages, scale,
            KV_HEADS, GROUP, D, PAGE, WINDOW, SOFTCAP, BLOCK_M, BLOCK_N, BLOCK_D,
        )  # fmt: skip
        if MERGE == "last":  # noqa: SIM102, Triton leaves the rest out by this alone
            if parts > 1:
                tl.debug_barrier()  # every thread's part is stored before the count says so
                counter = counters + seq * KV_HEADS + head
                if tl.atomic_add(counter, 1, sem="acq_rel") == parts - 1:
                    for i in range(GROUP):
                        merge_parts(
                            y, partials, row, seq, head * GROUP + i, parts, splits,
                            exp_unit(scale, SOFTCAP), KV_HEADS * GROUP, D, BLOCK_D, BLOCK_S,
                        )  # fmt: skip
                    tl.store(counter, 0)


@triton.jit
def combine_attention(
    query_start, seq_lens, y, partials, splits, scale,
    HEADS: tl.constexpr, D: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
    SPLIT: tl.constexpr, LEAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Rows of the sequences that have more than one part; constants as in decode_attention."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    head = tl.program_id(0)
    seq = tl.program_id(1)
    row = tl.load(query_start + seq)
    queries = tl.load(query_start + seq + 1) - row
    _, _, parts = key_parts(tl.load(seq_lens + seq), splits, WINDOW, BLOCK_N, SPLIT, LEAST)
    if (queries == 1) & (parts > 1):
        unit = exp_unit(scale, SOFTCAP)
        merge_parts(y, partials, row, seq, head, parts, splits, unit, HEADS, D, BLOCK_D, BLOCK_S)

"""Causal attention of flat tokens over a paged KV cache of one row per key.

Layouts (PAGE keys per page; GROUP = query heads per KV head)
  q, y              f32 [T, KV_HEADS * GROUP, D], memory for BLOCK_M rows of BLOCK_D beyond the end
  k_cache, v_cache  f32, bf16 or f16 [pages, KV_HEADS, PAGE, D], memory for BLOCK_D - D elements
                    beyond the end
  query_start  i32 [S + 1]; seq_lens i32 [S], tokens of the sequence including this step's; the
               queries of s are flat rows query_start[s] .. query_start[s+1] and its last tokens
  page_table   i32 [S, pages] (columns `pages`); sinks f32 [heads] or None (a constant then)
Arguments seqs = S and pages are i32, scale is f32.
Two kernels share the work by how many queries a sequence has: `few` takes those with less than FEW,
one query and all heads of a group at a time; `many` the others, BLOCK_M queries of one head. Rows
of both have the same bits.
Grid: few (KV_HEADS, S, 1), BLOCK_M >= GROUP; many (heads, T // BLOCK_M + S, 1), where sequence s
  owns the tiles from query_start[s] // BLOCK_M + s on. The last tile of a sequence moves back to
  end with it; one with fewer queries than BLOCK_M reads on behind them, and stores under a mask.
Options: WINDOW (0: none) keys with key <= query - WINDOW are masked; SOFTCAP (0.0: none)
cap * tanh(score / cap). HALF multiplies in f16 (the cache is f16), else in f32.
Limits: BLOCK_M, BLOCK_N, PAGE, BLOCK_D powers of two; BLOCK_D >= D: columns beyond D are what
  follows in memory, taken out after the load; PAGE % BLOCK_N == 0; S < 2^16.
Numerics: online softmax over blocks of BLOCK_N keys counted from the sequence's start: a row's bits
depend on neither BLOCK_M, nor the chunk its query came in, nor the other sequences.
"""

import triton
import triton.language as tl

from .activation import tanh
from .attention import NEVER, find_sequence, product


@triton.jit
def whole_columns(tile, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """The tile with zeros in columns beyond D."""
    if BLOCK_D != D:
        tile = tl.where((tl.arange(0, BLOCK_D) < D)[None, :], tile, 0.0)
    return tile


@triton.jit
def attend(
    qs, best, total, position, length, k_cache, v_cache, pages_of, head, scale, first, end,
    KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, HALF: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """softmax(scale * qs @ k^T, masked) @ v over the key blocks first .. end."""
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    zero = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for block in range(first, end):
        key = block * BLOCK_N + n
        page = tl.load(pages_of + block * BLOCK_N // PAGE).to(tl.int64)
        cell = ((page * KV_HEADS + head) * PAGE + block * BLOCK_N % PAGE) * D
        at = n[:, None] * D + d[None, :]
        ks = whole_columns(tl.load(k_cache + cell + at), D, BLOCK_D)
        score = product(qs, tl.trans(ks), zero, tl.float16 if HALF else tl.float32) * scale
        if SOFTCAP > 0.0:
            score = SOFTCAP * tanh(score / SOFTCAP)
        seen = key[None, :] <= position[:, None]
        if WINDOW > 0:
            seen = seen & (key[None, :] > position[:, None] - WINDOW)
        score = tl.where(seen, score, float("-inf"))
        new_best = tl.maximum(best, tl.max(score, 1))
        weight = tl.exp(score - new_best[:, None])
        shrink = tl.exp(best - new_best)
        total = total * shrink + tl.sum(weight, 1)
        # beyond the sequence a page may hold anything, NaN included
        vs = tl.load(v_cache + cell + at).to(tl.float32)
        vs = tl.where(key[:, None] < length, vs, 0.0)
        acc = product(weight, vs, acc * shrink[:, None], tl.float16 if HALF else tl.float32)
        best = new_best
    return acc / total[:, None]


@triton.jit
def key_blocks(first_position, last_position, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """The blocks that any of the queries sees."""
    first = 0
    if WINDOW > 0:
        first = tl.maximum(first_position - WINDOW + 1, 0) // BLOCK_N
    return first, last_position // BLOCK_N + 1


@triton.jit
def few(
    q, k_cache, v_cache, query_start, seq_lens, page_table, sinks, y, seqs, pages, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, HALF: tl.constexpr, FEW: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Sequences with less than FEW queries."""
    head = tl.program_id(0)
    seq = tl.program_id(1)
    start = tl.load(query_start + seq)
    queries = tl.load(query_start + seq + 1) - start
    length = tl.load(seq_lens + seq)
    row = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    at = row[:, None] * D + d[None, :]
    inside = row[:, None] < GROUP
    if BLOCK_D != D:
        inside = inside & (d[None, :] < D)
    if queries < FEW:
        for i in range(0, queries):
            base = ((start + i).to(tl.int64) * KV_HEADS + head) * (GROUP * D)
            position = length - queries + i + row * 0
            last = length - queries + i
            first, end = key_blocks(last, last, WINDOW, BLOCK_N)
            best = tl.full((BLOCK_M,), NEVER, tl.float32)
            total = tl.zeros((BLOCK_M,), tl.float32)
            if sinks is not None:
                own = tl.minimum(row, GROUP - 1)
                best = tl.load(sinks + head * GROUP + own, mask=row < GROUP)
                total = tl.full((BLOCK_M,), 1.0, tl.float32)
            qs = whole_columns(tl.load(q + base + at), D, BLOCK_D)
            out = attend(
                qs, best, total, position, length, k_cache, v_cache, page_table + seq * pages,
                head, scale, first, end,
                KV_HEADS, D, PAGE, WINDOW, SOFTCAP, HALF, BLOCK_M, BLOCK_N, BLOCK_D,
            )  # fmt: skip
            tl.store(y + base + at, out, mask=inside)


@triton.jit
def many(
    q, k_cache, v_cache, query_start, seq_lens, page_table, sinks, y, seqs, pages, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, HALF: tl.constexpr, FEW: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Sequences with FEW queries and more."""
    head = tl.program_id(0)
    tile = tl.program_id(1)
    seq = find_sequence(query_start, tile, seqs, 1, BLOCK_M)
    start = tl.load(query_start + seq)
    queries = tl.load(query_start + seq + 1) - start
    length = tl.load(seq_lens + seq)
    row0 = (tile - (start // BLOCK_M + seq)) * BLOCK_M
    if (queries >= FEW) & (row0 < queries):
        row0 = tl.maximum(tl.minimum(row0, queries - BLOCK_M), 0)
        row = row0 + tl.arange(0, BLOCK_M)
        position = length - queries + row
        base = ((start + row0).to(tl.int64) * (KV_HEADS * GROUP) + head) * D
        d = tl.arange(0, BLOCK_D)
        at = tl.arange(0, BLOCK_M)[:, None] * (KV_HEADS * GROUP * D) + d[None, :]
        inside = row[:, None] < queries
        if BLOCK_D != D:
            inside = inside & (d[None, :] < D)
        last = tl.minimum(length - queries + row0 + BLOCK_M, length) - 1
        first, end = key_blocks(length - queries + row0, last, WINDOW, BLOCK_N)
        best = tl.full((BLOCK_M,), NEVER, tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        if sinks is not None:
            best = best * 0.0 + tl.load(sinks + head)
            total = tl.full((BLOCK_M,), 1.0, tl.float32)
        qs = whole_columns(tl.load(q + base + at), D, BLOCK_D)
        out = attend(
            qs, best, total, position, length, k_cache, v_cache, page_table + seq * pages,
            head // GROUP, scale, first, end,
            KV_HEADS, D, PAGE, WINDOW, SOFTCAP, HALF, BLOCK_M, BLOCK_N, BLOCK_D,
        )  # fmt: skip
        tl.store(y + base + at, out, mask=inside)
